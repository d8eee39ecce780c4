"""An ID for every request, in its response and in the log (R55)."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from starlette.types import Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from emulator.http.disconnect import ABORT_EXTENSION
from emulator.http.shutdown_state import ShutdownState
from emulator.middleware.request_id import RequestIdMiddleware
from engine.errors import EngineDead
from handler.errors import InvalidRequest, NotFound
from handler.logs.json_lines import collect_fields
from tests.unit.emulator.asgi import InnerApp, call

MADE = re.compile("[0-9a-f]{32}")


class Lines(logging.Handler):
    """Records each log line with the fields that were bound at that moment."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[tuple[str, str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelname, record.getMessage(), collect_fields(record)))


@pytest.fixture
def lines() -> Any:
    logger = logging.getLogger("emulator.middleware.request_id")
    handler, level = Lines(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def inner() -> InnerApp:
    return InnerApp()


async def test_valid_id_is_used(inner: InnerApp) -> None:
    for name in ("abc", "A-1_2.3:4/5+6=7@8", "x" * 128):
        response = await call(RequestIdMiddleware(inner), "/run", headers={"X-Request-ID": name})
        assert response.headers["x-request-id"] == name


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 129, "a\nb", "a\x00", "é", '"', "a;b"])
async def test_invalid_ids_are_replaced(inner: InnerApp, name: str) -> None:
    response = await call(RequestIdMiddleware(inner), "/run", headers={"X-Request-ID": name})
    assert MADE.fullmatch(response.headers["x-request-id"])


async def test_generated_ids_differ(inner: InnerApp) -> None:
    names = {
        (await call(RequestIdMiddleware(inner), "/run")).headers["x-request-id"] for _ in range(20)
    }
    assert len(names) == 20


async def test_log_lines_of_the_request_have_its_id(inner: InnerApp, lines: Lines) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def later() -> None:
            logging.getLogger("emulator.middleware.request_id").warning("inside")

        await asyncio.create_task(later())
        await inner(scope, receive, send)

    await call(RequestIdMiddleware(app), "/status/j-1", headers={"x-request-id": "abc"})
    assert [bound["request_id"] for _, _, bound in lines.records] == ["abc", "abc"]
    assert structlog.contextvars.get_contextvars() == {}


async def test_each_request_logs_one_line(inner: InnerApp, lines: Lines) -> None:
    await call(
        RequestIdMiddleware(inner),
        "/cancel/j-1",
        headers={"authorization": "Bearer secret", "x-request-id": "abc"},
        scope={"path_params": {"job_id": "j-1"}, "query_string": b"key=secret"},
    )
    ((level, message, bound),) = lines.records
    assert (level, message) == ("INFO", "GET /cancel/j-1 200")
    assert bound.pop("duration_ms") >= 0
    assert bound == {
        "request_id": "abc",
        "method": "GET",
        "path": "/cancel/j-1",
        "status": 200,
        "job_id": "j-1",
    }
    assert "secret" not in str(lines.records)


@pytest.mark.parametrize(
    "path",
    [
        *("/health", "/docs", "/", "/console/jobs", "/console/description", "/metrics"),
        *("/v2/e/job-take/w", "/v2/e/job-take-batch/w", "/v2/e/job-stop/w", "/v2/e/ping/w"),
        *("/status/j-1", "/v2/e/stream/j-1", "/v2/e/job-stream/w/j-1", "/v2/e/job-done/w/j-1"),
        *("/v2/serverless/e/workers", "/v2/serverless/e/workers/w/logs"),
    ],
)
async def test_frequent_requests_are_logged_at_debug(
    inner: InnerApp, lines: Lines, path: str
) -> None:
    await call(RequestIdMiddleware(inner), path)
    assert [level for level, _, _ in lines.records] == ["DEBUG"]


async def test_log_line_cannot_be_forged_or_endless(inner: InnerApp, lines: Lines) -> None:
    await call(
        RequestIdMiddleware(inner),
        "/a\nINFO b",
        scope={"raw_path": b"/a%0AINFO%20b" + b"x" * 10_000},
    )
    ((_, message, _),) = lines.records
    assert "\n" not in message
    assert len(message) < 300


async def test_unexpected_error_is_500_without_its_message(
    inner: InnerApp, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    inner.raises = KeyError("secret")
    response = await call(RequestIdMiddleware(inner), "/run", headers={"x-request-id": "abc"})
    assert (response.status, response.headers["x-request-id"]) == (500, "abc")
    assert json.loads(response.body)["request_id"] == "abc"
    assert "secret" not in response.body.decode()
    assert "secret" in caplog.text
    assert lines.records[-1][1] == "GET /run 500"


async def test_known_error_keeps_its_status(inner: InnerApp) -> None:
    inner.raises = NotFound("there is no such thing")
    assert (await call(RequestIdMiddleware(inner), "/x")).status == 404


async def test_error_during_the_response_is_raised(inner: InnerApp) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        await call(RequestIdMiddleware(app), "/run")


@pytest.mark.parametrize("is_shutdown", [True, False])
async def test_cancelled_request_is_503_only_at_shutdown(
    inner: InnerApp, is_shutdown: bool
) -> None:
    shutdown = ShutdownState()
    inner.gate.clear()
    task = asyncio.create_task(
        call(RequestIdMiddleware(inner), "/run", scope={"emulator.shutdown": shutdown})
    )
    await inner.entered.wait()
    if is_shutdown:
        shutdown.pass_deadline()
    task.cancel()
    if not is_shutdown:
        with pytest.raises(asyncio.CancelledError):
            await task
        return
    response = await task
    assert (response.status, response.reason) == (503, "the server is shutting down")
    assert int(response.headers["retry-after"]) >= 1


async def test_blocked_response_is_cut_at_shutdown_without_an_error(lines: Lines) -> None:
    """The client does not read; uvicorn would log a raised exception with its traceback."""
    shutdown, sending, dropped = ShutdownState(), asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        sending.set()
        await asyncio.Event().wait()

    scope = {"emulator.shutdown": shutdown, "extensions": {ABORT_EXTENSION: {"abort": dropped.set}}}
    task = asyncio.create_task(call(RequestIdMiddleware(app), "/status/j", scope=scope))
    await sending.wait()
    shutdown.pass_deadline()
    task.cancel()
    await task
    assert dropped.is_set()
    assert [message for _, message, _ in lines.records] == ["GET /status/j 200"]


async def test_job_id_is_logged_only_for_its_request(inner: InnerApp, lines: Lines) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/run":
            bind_contextvars(job_id="j-1")
        await inner(scope, receive, send)

    for path in ("/run", "/purge-queue"):
        # A pipelined request begins in the context of the previous one.
        await call(RequestIdMiddleware(app), path)
    assert [bound.get("job_id") for _, _, bound in lines.records] == ["j-1", None]


async def test_disconnect_before_the_response_is_499(lines: Lines) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pass

    await call(RequestIdMiddleware(app), "/run")
    assert lines.records[0][2]["status"] == 499


async def test_streamed_messages_are_sent_unchanged(inner: InnerApp) -> None:
    """A stream sends a message for each token, so the middleware must add no coroutine to it."""
    send_functions: list[Callable[..., Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        send_functions.append(send)
        await inner(scope, receive, send)

    await call(RequestIdMiddleware(app), "/run")
    assert not asyncio.iscoroutinefunction(send_functions[0])


async def test_on_end_gets_the_status_and_duration(inner: InnerApp) -> None:
    ended: list[tuple[str, int, float]] = []
    app = RequestIdMiddleware(
        inner, lambda scope, status, s: ended.append((scope["path"], status, s))
    )
    await call(app, "/run")
    inner.raises = KeyError("x")
    await call(app, "/status/1")
    assert [(path, status) for path, status, _ in ended] == [("/run", 200), ("/status/1", 500)]
    assert all(seconds >= 0 for _, _, seconds in ended)


@pytest.mark.parametrize(
    ("error", "status", "level"),
    [
        (InvalidRequest('n must be 1, got "my prompt"'), 400, "INFO"),
        (NotFound("there is no job j-1"), 404, "INFO"),
        (EngineDead("the model is gone"), 503, "WARNING"),
    ],
)
async def test_rejected_request_is_logged_with_its_error_message(
    error: Exception, status: int, level: str, inner: InnerApp, lines: Lines
) -> None:
    inner.raises = error
    response = await call(RequestIdMiddleware(inner), "/status/j-1")
    assert response.status == status
    ((logged_level, message, fields),) = lines.records
    assert (logged_level, message) == (level, f"GET /status/j-1 {status}")
    assert fields["error"] == str(error).replace('"my prompt"', "a string")


async def test_body_of_a_successful_response_is_not_read(lines: Lines) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"error": "of a job"}'})

    await call(RequestIdMiddleware(app), "/run")
    assert "error" not in lines.records[0][2]


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"error": ' + b'"x"' * 100_000])
async def test_error_without_a_message_is_logged_without_one(body: bytes, lines: Lines) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": body})

    await call(RequestIdMiddleware(app), "/run")
    assert lines.records[0][1] == "GET /run 400"
    assert "error" not in lines.records[0][2]
