"""Error responses over HTTP (R53, R54)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import EngineState
from engine.hooks import RequestQueued, RequestStarted
from handler.apis.openai.service import OpenAIService
from handler.errors import OPENAI_CODES
from handler.models.model_list import ModelEntry
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Gate, Serve
from tests.integration.emulator.serving import RawConnection, Server, build_request_head

HANG = {"hang_s": 3600}
POSTS = ("/v1/completions", "/v1/chat/completions", "/run", "/runsync", "/v2/default/run")
JSON = {"content-type": "application/json"}


def parse_error(response: httpx2.Response) -> dict[str, Any]:
    """Check that the body has all fields of its error format; return `message` and `param`."""
    assert response.headers["content-type"] == "application/json"
    assert "Traceback" not in response.text
    body = response.json()
    error = body["error"]
    if isinstance(error, str):
        assert body.keys() <= {"error", "param", "request_id"}
        return {"message": error, "param": body.get("param")}
    assert set(body) == {"error"}
    assert {"message", "type", "param", "code"} <= set(error)
    # R64: OpenAI's codes that clients compare, and else the status.
    assert OPENAI_CODES.get(error["code"], error["code"]) == response.status_code
    return dict(error)


@pytest.mark.parametrize("path", POSTS)
async def test_bodies_that_are_no_json_objects(serve: Serve, path: str) -> None:
    server = await serve()
    deep = b"[" * 100_000
    bodies = [b"", b"{", b"[]", b"null", b'"x"', b'{"prompt": NaN}', b'{"prompt": "\xff\xfe"}']
    async with server.client() as client:
        for body in [*bodies, deep, deep + b"]" * 100_000, b'{"input":' + deep + b"}"]:
            response = await client.post(path, content=body, headers=JSON)
            assert response.status_code == 400, body[:40]
            assert parse_error(response)["message"]
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("path", POSTS)
async def test_wrong_content_type_is_415_when_a_browser_sends_it(serve: Serve, path: str) -> None:
    server = await serve()
    async with server.client() as client:
        for label in ("text/plain", "application/x-www-form-urlencoded"):
            headers = {"content-type": label, "sec-fetch-site": "same-origin"}
            response = await client.post(path, content=b"{}", headers=headers)
            assert response.status_code == 415
            assert label in parse_error(response)["message"]


@pytest.mark.parametrize("path", POSTS)
async def test_body_above_the_limit_is_413_with_or_without_a_content_length(
    serve: Serve, path: str
) -> None:
    server = await serve(max_body_mb=0.01, max_run_mb=0.01, max_runsync_mb=0.01)
    body = b'{"prompt": "' + b"x" * 20_000 + b'"}'

    async def without_length() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    async with server.client() as client:
        for content in (body, without_length()):
            response = await client.post(path, content=content, headers=JSON)
            assert response.status_code == 413
            assert parse_error(response)["message"] == "the body is larger than 0.01 MB"
        small = await client.post("/v1/completions", json={"prompt": "x" * 5000})
        assert small.status_code == 200


async def test_too_large_a_body_is_refused_before_it_is_sent(serve: Serve) -> None:
    server = await serve(max_run_mb=1)
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("POST", "/run", "content-length: 2000000\r\n"))
        assert (await wire.read_response())[0] == 413
        # The server discards a body that is sent anyway, and the connection stays usable.
        for _ in range(20):
            await wire.send(b"x" * 100_000)
        await wire.send(build_request_head("GET", "/health"))
        assert (await wire.read_response())[0] == 200


async def test_unending_body_is_refused_at_the_limit(serve: Serve) -> None:
    server = await serve(max_run_mb=0.1)
    with await RawConnection.connect(server.port) as wire:
        await wire.send(build_request_head("POST", "/run", "transfer-encoding: chunked\r\n"))
        part = b"%x\r\n" % 50_000 + b"x" * 50_000 + b"\r\n"
        for _ in range(3):
            await wire.send(part)
        assert (await wire.read_response())[0] == 413


async def test_unknown_paths_are_404(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        for path in (
            "/nothing",
            "/v1",
            "/v1/engines",
            "/v2/other/go",
            "/status",
            "/%00%ff/\U0001f600",
        ):
            for method in ("GET", "POST", "DELETE"):
                response = await client.request(method, path)
                assert response.status_code == 404
                assert parse_error(response)["message"]


async def test_wrong_method_is_405_with_an_allow_header(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        for path in POSTS:
            for method in ("GET", "PUT", "DELETE", "OPTIONS"):
                response = await client.request(method, path)
                assert (response.status_code, response.headers["allow"]) == (405, "POST")
                assert parse_error(response)["message"]
        response = await client.post("/health", json={})
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}


async def test_unexpected_exception_is_500_without_a_traceback(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(OpenAIService, "complete", broken)
    server = await serve()
    async with server.client() as client:
        with caplog.at_level(logging.ERROR):
            response = await client.post("/v1/completions", json={"prompt": "x"})
        assert response.status_code == 500
        assert parse_error(response)["message"]
        assert "secret" not in response.text
        assert "secret" in caplog.text
        streamed = await client.post("/v1/completions", json={"prompt": "x", "stream": True})
        assert streamed.status_code == 200


async def test_full_queue_is_429_with_retry_after(
    serve: Serve, script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:  # R54
    server = await serve(script({"pieces": ["a", HANG]}, slots=1), max_queue=1)
    async with server.client() as client:

        async def ask(stream: bool) -> httpx2.Response:
            return await client.post("/v1/completions", json={"prompt": "x", "stream": stream})

        running = asyncio.create_task(ask(False))
        await server.events.wait(RequestStarted)
        waiting = asyncio.create_task(ask(True))
        await server.events.wait(RequestQueued)
        for stream in (False, True):
            response = await ask(stream)
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert parse_error(response)["message"]
        health = (await client.get("/health")).json()["engine"]
        assert (health["running"], health["waiting"]) == (1, 1)
        waiting.cancel()
        running.cancel()
        await asyncio.wait({running, waiting})
    await server.wait_until_idle()
    # These errors are expected: no error is logged, and no traceback.
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_model_that_cannot_be_loaded_is_503_and_health_names_the_reason(
    serve: Serve, script: ScriptFactory
) -> None:  # R54
    # A server without any model exits (R69); one that has another model stays.
    broken = ModelEntry(path=script({}, load_error="the file is broken"), name="broken")
    server = await serve(
        models=(broken, ModelEntry(path=script({}), name="good")), engine_isolation="process"
    )
    async with server.client() as client:
        for path, body in (
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/completions", {"prompt": "x", "stream": True}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ):
            response = await client.post(path, json=body)
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            error = parse_error(response)
            assert error["message"] == "Completion service temporarily unavailable"
            assert error["type"] == "service_unavailable_error"
            reason = "the model broken cannot be loaded: the file is broken"
            # The sentence ends with the seconds until a request tries it again.
            assert error["details"]["reason"].startswith(f"{reason}; a request in ")
        other = await client.post("/v1/completions", json={"prompt": "x", "model": "good"})
        assert other.status_code == 200
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert health.json()["models"][0]["failure"].startswith(reason)
        assert (await client.get("/v1/models")).status_code == 200
        failed = (await client.post("/runsync", json={"input": {"prompt": "x"}})).json()
        assert failed["status"] == "FAILED"
        assert failed["error"].startswith(reason)


async def test_health_while_loading_and_when_ready(serve: Serve, gate: Gate) -> None:
    server = await serve(gate.path, model_name="little")
    async with server.client() as client:
        loading = await client.get("/health")
        assert (loading.status_code, loading.json()["status"]) == (200, "loading")
        await gate.open(slots=7)
        await server.engine.ready()
        ready = (await client.get("/health")).json()
    assert (ready["status"], ready["model"]) == ("ok", "little")
    assert ready["engine"] == {
        "state": "ready",
        "slots": 7,
        "running": 0,
        "waiting": 0,
        "restarts": 0,
        "failure": None,
        "trouble": None,
        "library": {},
    }


async def test_engine_is_loaded_without_a_local_worker(
    serve: Serve, script: ScriptFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve(script({}), local_worker=False, engine_isolation="process")
    await server.wait_until(lambda: server.engine.state is EngineState.READY)
    async with server.client() as client:
        assert (await client.get("/health")).json()["status"] == "ok"
    assert not caplog.records
    broken = await serve(script({}, load_error="the file is broken"), local_worker=False)
    await broken.wait_until(lambda: "the engine did not start: the file is broken" in caplog.text)
    async with broken.client() as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "unavailable")


async def test_prompt_longer_than_the_context_is_400_naming_both_lengths(
    serve: Serve, script: ScriptFactory
) -> None:  # R54
    server = await serve(script(context_length=8))
    async with server.client() as client:
        for stream in (False, True):
            body = {"prompt": "word " * 50, "stream": stream}
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 400
            message = parse_error(response)["message"]
            assert "8" in message.split()
            assert {"50", "51"} & set(message.split())


async def test_unknown_model_is_404_naming_the_known_model(serve: Serve) -> None:  # R7
    server = await serve(model_name="little")
    async with server.client() as client:
        response = await client.post("/v1/completions", json={"model": "gpt-4", "prompt": "x"})
    assert response.status_code == 404
    assert "little" in parse_error(response)["message"]


# -- fuzz -----------------------------------------------------------------------------------------

FIELDS = (
    "model prompt messages max_tokens max_completion_tokens temperature top_p top_k min_p seed "
    "stop stop_token_ids stream stream_options n best_of logprobs top_logprobs echo suffix user "
    "logit_bias repetition_penalty frequency_penalty presence_penalty ignore_eos tools functions "
    "include_stop_str_in_output chat_template_kwargs response_format input x"
).split()

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["\x00", "\ud800", "\U0001f600", "user", "include_usage", 10**400]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "include_usage", "5"])
            | st.text(max_size=8),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


def wrap_in_lists(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


BODIES = st.dictionaries(
    st.sampled_from(FIELDS),
    VALUES | st.builds(wrap_in_lists, LEAVES, st.integers(0, 900)),
    max_size=6,
)


async def post_arbitrary_body(server: Server, body: Any, path: str, valid: bool) -> None:
    if valid:
        body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]} | body
    raw = json.dumps(body).encode("utf-8", "surrogatepass")
    async with server.client(sends_anything=True) as client:
        response = await client.post(path, content=raw, headers=JSON)
        text = response.text
    assert response.status_code in (200, 400, 404), (response.status_code, raw, text)
    if response.status_code != 200:
        parse_error(response)


@pytest.mark.parametrize("path", POSTS[:3])
async def test_arbitrary_bodies_cause_no_server_error(serve: Serve, path: str, scale: int) -> None:
    server = await serve()
    loop = asyncio.get_running_loop()

    @settings(max_examples=12 * scale, suppress_health_check=list(HealthCheck))
    @given(body=BODIES, valid=st.booleans())
    def fuzz(body: Any, valid: bool) -> None:
        request = post_arbitrary_body(server, body, path, valid)
        asyncio.run_coroutine_threadsafe(request, loop).result(30)

    await asyncio.to_thread(fuzz)
    await server.wait_until_idle()
