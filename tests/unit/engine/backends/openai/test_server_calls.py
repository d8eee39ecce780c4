"""Which server gets a request, and what a request waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2
import pytest

from engine.backends.openai.server_calls import PATIENCE_S, ServerCalls
from engine.backends.openai.server_pool import ServerPool
from engine.errors import (
    EngineCrashed,
    EngineError,
    EngineRestarting,
    PromptTooLong,
    RequestRejected,
)
from tests.virtual_time import VirtualClock

OK = httpx2.Response(200, json={"fine": True})
PATH = "/v1/chat/completions"
Reply = httpx2.Response | Exception


class Servers:
    """Replies to each request of a host with the next of its replies, and then with the last."""

    def __init__(self, **replies: Sequence[Reply]) -> None:
        self._replies = {host: list(each) for host, each in replies.items()}
        self.hosts: list[str] = []
        self.pool = ServerPool([f"http://{host}/v1" for host in replies], max_pause_s=2.0)
        self.http = httpx2.AsyncClient(transport=httpx2.MockTransport(self._reply))
        self.calls = ServerCalls(self.http, self.pool)

    def _reply(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.host
        self.hosts.append(host)
        replies = self._replies[host]
        following = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(following, Exception):
            raise following
        return httpx2.Response(
            following.status_code, headers=following.headers, content=following.content
        )

    async def post(self) -> Any:
        return await self.calls.post(PATH, {"model": "m"})

    @property
    def in_progress(self) -> list[int]:
        return [each.in_progress for each in self.pool.servers]


@pytest.fixture
async def servers() -> AsyncIterator[Callable[..., Servers]]:
    opened: list[Servers] = []

    def build(**replies: Sequence[Reply]) -> Servers:
        opened.append(Servers(**replies))
        return opened[-1]

    yield build
    for each in opened:
        assert each.in_progress == [0] * len(each.in_progress)
        await each.http.aclose()


@pytest.mark.parametrize(
    "failure",
    [
        httpx2.ConnectError("refused"),
        httpx2.ConnectTimeout("too slow"),
        httpx2.Response(429),
        httpx2.Response(503),
        httpx2.Response(529),
    ],
    ids=repr,
)
async def test_request_goes_to_another_server_if_one_is_not_there(
    servers: Callable[..., Servers], failure: Reply
) -> None:
    both = servers(a=[failure], b=[OK])
    assert [await both.post() for _ in range(3)] == [{"fine": True}] * 3
    assert both.hosts == ["a", "b", "b", "b"]


async def test_request_waits_for_the_only_server(
    servers: Callable[..., Servers], clock: VirtualClock
) -> None:
    one = servers(a=[httpx2.Response(503), httpx2.ConnectError("refused"), OK])
    assert await one.post() == {"fine": True}
    assert one.hosts == ["a", "a", "a"]


async def test_request_fails_when_no_server_takes_it_for_too_long(
    servers: Callable[..., Servers], clock: VirtualClock
) -> None:
    both = servers(a=[httpx2.ConnectError("refused")], b=[httpx2.Response(429)])
    with pytest.raises(EngineRestarting) as caught:
        await both.post()
    assert "http://a/v1/chat/completions: refused" in caught.value.message
    assert "status 429" in caught.value.message
    assert caught.value.details["retry_after_s"] in (1, 2)
    # Pauses of 0.5, 1 and 2 seconds.
    assert len(both.hosts) <= 2 * (PATIENCE_S / 2.0 + 3)


async def test_request_does_not_wait_for_longer_than_the_server_asks(
    servers: Callable[..., Servers], clock: VirtualClock
) -> None:
    one = servers(a=[httpx2.Response(429, headers={"retry-after": "60"}), OK])
    with pytest.raises(EngineRestarting) as caught:
        await one.post()
    assert (caught.value.details["retry_after_s"], one.hosts) == (60, ["a"])
    await clock.advance(61)
    assert await one.post() == {"fine": True}


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (httpx2.Response(400, json={"error": {"message": "wrong"}}), RequestRejected),
        (httpx2.Response(400, json={"error": {"message": "context length"}}), PromptTooLong),
        (httpx2.Response(500), EngineCrashed),
        (httpx2.ReadError("reset"), EngineCrashed),
        (httpx2.Response(200, text="no JSON"), EngineCrashed),
    ],
    ids=repr,
)
async def test_request_that_a_server_has_taken_is_sent_once(
    servers: Callable[..., Servers], reply: Reply, error: type[Exception]
) -> None:
    both = servers(a=[reply], b=[OK])
    with pytest.raises(error):
        await both.post()
    assert both.hosts == ["a"]


async def test_request_is_sent_once_more_if_its_connection_was_closed(
    servers: Callable[..., Servers],
) -> None:
    closed = httpx2.RemoteProtocolError("disconnected")
    one = servers(a=[closed, OK])
    assert await one.post() == {"fine": True}
    broken = servers(a=[closed])
    with pytest.raises(EngineCrashed, match="did not answer: disconnected"):
        await broken.post()
    assert broken.hosts == ["a", "a"]


@pytest.mark.parametrize("status", [400, 418, 500])
async def test_error_has_neither_key_nor_password(status: int) -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        words = f"no access for {request.headers['authorization']}"
        return httpx2.Response(status, json={"error": {"message": words}})

    http = httpx2.AsyncClient(
        transport=httpx2.MockTransport(reply), headers={"authorization": "Bearer secret"}
    )
    calls = ServerCalls(http, ServerPool(["http://user:password@a/v1"]))
    with pytest.raises(EngineError) as caught:
        await calls.post(PATH, {})
    assert "no access" in caught.value.message
    assert "secret" not in caught.value.message
    assert "password" not in caught.value.message


async def test_error_in_an_answer_has_no_key() -> None:
    http = httpx2.AsyncClient(
        transport=httpx2.MockTransport(lambda _: OK), headers={"authorization": "Bearer secret"}
    )
    calls = ServerCalls(http, ServerPool(["http://a"]))
    with pytest.raises(EngineCrashed, match=r"key \*\*\*"):
        async with calls.open(PATH, {}):
            raise EngineCrashed("key secret")
