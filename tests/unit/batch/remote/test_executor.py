"""One line as a request to a server: what is sent, what is kept, and what is sent again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2
import orjson
import pytest

from batch.input.line import BadLine, Line, parse_line
from batch.line_executor import LineOutcome
from batch.remote.concurrency_limit import ConcurrencyLimit
from batch.remote.executor import NoServer, RemoteExecutor
from engine.backends.openai.server_pool import ServerPool
from tests.virtual_time import VirtualClock

ANSWER = {"object": "chat.completion", "usage": {"prompt_tokens": 1, "completion_tokens": 7}}
ANSWER_WITHOUT_USAGE: dict[str, Any] = {}
Reply = Callable[[httpx2.Request], httpx2.Response]


def line(url: str = "/v1/chat/completions", **body: Any) -> Line:
    body = body or {"messages": [], "guided_choice": ["a"], "model": "m"}
    fields = {"custom_id": "a", "method": "POST", "url": url, "body": body}
    return parse_line(orjson.dumps(fields), 1)


class Servers:
    """Replies to the requests of an executor, each time with the next of some replies."""

    def __init__(self, *replies: httpx2.Response | Exception, urls: Sequence[str]) -> None:
        self._replies = list(replies)
        self.requests: list[httpx2.Request] = []
        self.http = httpx2.AsyncClient(transport=httpx2.MockTransport(self._reply))
        self.pool = ServerPool(urls)
        self.limit = ConcurrencyLimit(4)
        self.executor = RemoteExecutor(self.http, self.pool, self.limit, patience_s=60)

    def _reply(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        following = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(following, Exception):
            raise following
        return following


@pytest.fixture
async def servers() -> AsyncIterator[Callable[..., Servers]]:
    opened: list[Servers] = []

    def build(
        *replies: httpx2.Response | Exception, urls: Sequence[str] = ("http://a",)
    ) -> Servers:
        opened.append(Servers(*replies, urls=urls))
        return opened[-1]

    yield build
    for each in opened:
        await each.http.aclose()


def reply(status: int = 200, body: Any = ANSWER, **headers: str) -> httpx2.Response:
    return httpx2.Response(
        status, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


def response_of(outcome: LineOutcome) -> Any:
    return json.loads(outcome.line)["response"]


async def test_body_is_sent_and_kept_unchanged(servers: Callable[..., Servers]) -> None:
    server = servers(reply(x_request_id="r1"))
    outcome = await server.executor.answer(line())
    [request] = server.requests
    assert str(request.url) == "http://a/v1/chat/completions"
    assert json.loads(request.content) == dict(line().body)
    assert (outcome.ok, outcome.tokens) == (True, 7)
    assert json.loads(outcome.line) == {
        "id": "batch_req_r1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r1", "body": ANSWER},
        "error": None,
    }


async def test_line_without_a_model_gets_the_first_of_the_server(
    servers: Callable[..., Servers],
) -> None:
    server = servers(reply())
    server.pool.servers[0].models = ("one", "two")
    await server.executor.answer(line(messages=[]))
    assert json.loads(server.requests[0].content)["model"] == "one"


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_busy_server_gets_the_line_again_after_its_pause(
    servers: Callable[..., Servers], clock: VirtualClock, status: int
) -> None:
    server = servers(reply(status, {}, retry_after="3"), reply(status, {}), reply())
    for _ in range(6):
        server.limit.record_answer(1.0, 7)
    assert server.limit.limit == 4
    outcome = await server.executor.answer(line())
    assert outcome.ok
    assert len(server.requests) == 3
    # The second pause is the first one without Retry-After.
    assert clock.elapsed_s == pytest.approx(3.5, abs=0.01)
    assert server.limit.limit < 4


async def test_limit_gets_the_latency_and_the_size_of_complete_answers(
    servers: Callable[..., Servers], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[tuple[float, int]] = []
    monkeypatch.setattr(
        ConcurrencyLimit,
        "record_answer",
        lambda self, latency_s, tokens: recorded.append((latency_s, tokens)),
    )
    slow = servers(reply(400, {"error": {}}), reply(500, {}), reply(200, {"n": 1}), reply())

    async def wait(request: httpx2.Request) -> None:
        await asyncio.sleep(2)

    slow.http.event_hooks = {"request": [wait], "response": []}
    for _ in range(4):
        await slow.executor.answer(line())
    assert recorded == [(2.0, len(b'{"n":1}')), (2.0, 7)]
    assert clock.elapsed_s == 8


async def test_line_goes_to_another_server_if_one_refuses_connections(
    servers: Callable[..., Servers], clock: VirtualClock
) -> None:
    server = servers(httpx2.ConnectError("refused"), reply(), urls=("http://a", "http://b"))
    assert (await server.executor.answer(line())).ok
    assert len({request.url.host for request in server.requests}) == 2
    assert clock.elapsed_s == 0


async def test_batch_ends_if_no_server_answers_for_too_long(
    servers: Callable[..., Servers], clock: VirtualClock
) -> None:
    server = servers(httpx2.ConnectError("refused"))
    with pytest.raises(NoServer, match=r"no server has answered for 60 s: .*refused"):
        await server.executor.answer(line())
    assert 60 < clock.elapsed_s < 100
    assert (server.limit.in_use, server.pool.servers[0].in_progress) == (0, 0)


@pytest.mark.parametrize("status", [500, 502, 504, 408])
async def test_failure_of_the_server_is_an_attempt(
    servers: Callable[..., Servers], status: int
) -> None:
    outcome = await servers(reply(status, {"error": {"message": "no"}})).executor.answer(line())
    assert (outcome.ok, outcome.retryable) == (False, True)
    assert response_of(outcome)["status_code"] == status
    assert response_of(outcome)["body"] == {"error": {"message": "no"}}


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_refused_line_is_final(servers: Callable[..., Servers], status: int) -> None:
    outcome = await servers(reply(status, {"error": {"message": "no"}})).executor.answer(line())
    assert (outcome.ok, outcome.retryable) == (False, False)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (httpx2.Response(200, text="<html>"), "the server answered with 200 and no JSON: '<html>'"),
        (httpx2.Response(200, json=[1]), "the server answered with 200 and no JSON: '[1]'"),
        (httpx2.Response(502, text="Bad"), "the server answered with 502 and no JSON: 'Bad'"),
        (reply(200, {"error": {"message": "x"}}), "the server answered with 200 and an error: "),
        (httpx2.ReadTimeout("slow"), "the server's answer broke off: slow"),
        (httpx2.RemoteProtocolError("cut"), "the server's answer broke off: cut"),
        (httpx2.ReadError(""), "the server's answer broke off: ReadError"),
    ],
)
async def test_broken_answer_is_an_attempt_and_no_answer(
    servers: Callable[..., Servers], broken: httpx2.Response | Exception, reason: str
) -> None:
    outcome = await servers(broken).executor.answer(line())
    assert (outcome.ok, outcome.retryable) == (False, True)
    assert response_of(outcome)["body"]["error"]["message"].startswith(reason)


@pytest.mark.parametrize("usage", [None, {}, {"usage": None}, {"usage": {}}, {"usage": 3}])
async def test_answer_without_usage_has_no_tokens(
    servers: Callable[..., Servers], usage: Any
) -> None:
    outcome = await servers(reply(200, usage or ANSWER_WITHOUT_USAGE)).executor.answer(line())
    assert (outcome.ok, outcome.tokens) == (True, 0)


@pytest.mark.parametrize(
    ("url", "body", "reason"),
    [
        ("/v1/images", {"prompt": "x"}, "url must be one of /v1/chat/completions, "),
        ("/v1/chat/completions", {"prompt": "x"}, "body.messages is missing"),
        ("/v1/embeddings", {"model": "m"}, "body.input or body.messages is missing"),
        ("/v1/completions", {"prompt": "x", "stream": True}, "body.stream must be false"),
        ("/v1/completions", {"prompt": "x", "model": 3}, "body.model must be a text, got 3"),
    ],
)
def test_line_that_no_server_can_answer_is_refused(url: str, body: Any, reason: str) -> None:
    executor = RemoteExecutor(
        httpx2.AsyncClient(), ServerPool(["http://a"]), ConcurrencyLimit(1), patience_s=1
    )
    executor.check(line())
    with pytest.raises(BadLine) as caught:
        executor.check(line(url, **body))
    assert str(caught.value).startswith(reason)
