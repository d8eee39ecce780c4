from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from emulator.http.call_answers import open_stream
from emulator.http.disconnect import ClientDisconnected
from emulator.http.sse import COMMENT, SSEResponse
from engine.runs.abortable import Abortable
from handler.apis.core.api import ApiCall, CallContext
from handler.apis.core.wire_format import WireFormat
from handler.errors import ErrorInfo, InvalidRequest
from tests.waiting import run_ready_tasks

SHORT_S, LONG_S = 0.01, 60.0


@dataclass
class Client:
    """A client that may disconnect, and a generation that the test opens."""

    aborted: list[str] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    opened: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)

    async def opening(self) -> str:
        return await self.opened

    async def receive(self) -> dict[str, Any]:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message.get("body", b"start"))

    async def open(self, comments_after_s: float) -> SSEResponse:
        return await open_stream(self.receive, Call(self), comments_after_s)


class Generation(Abortable):
    """A text that records its abort."""

    def __init__(self, text: str, aborted: list[str]) -> None:
        self.text = text
        self._aborted = aborted

    def abort(self) -> None:
        self._aborted.append(self.text)


class Call(ApiCall):
    """The call of a client."""

    def __init__(self, client: Client) -> None:
        wire_format = WireFormat(
            encode_error=ErrorInfo.openai_error,
            encode_stream_error=lambda failure, sent: b"error: " + failure.message.encode(),
        )
        super().__init__(wire_format, CallContext(), streaming=True)
        self._client = client

    async def complete(self) -> dict[str, Any]:
        raise NotImplementedError

    async def _open(self) -> Abortable:
        return Generation(await self._client.opening(), self._client.aborted)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        assert isinstance(self._opened, Generation)
        yield self._opened.text.encode()


def finish(client: Client) -> Callable[[], None]:
    return lambda: client.opened.set_result("text")


async def test_stream_that_opens_soon_has_its_events_only() -> None:
    client = Client()
    client.opened.set_result("text")
    response = await client.open(LONG_S)
    await response({"type": "http"}, client.receive, client.send)
    assert client.sent == [b"start", b"text", b""]
    assert set(client.aborted) == {"text"}


async def test_early_error_is_raised() -> None:
    client = Client()
    client.opened.set_exception(InvalidRequest("no"))
    with pytest.raises(InvalidRequest):
        await client.open(LONG_S)


async def test_stream_that_opens_late_begins_with_a_comment() -> None:
    client = Client()
    response = await client.open(SHORT_S)
    asyncio.get_running_loop().call_later(3 * SHORT_S, finish(client))
    await response({"type": "http"}, client.receive, client.send)
    assert client.sent[:2] == [b"start", COMMENT]
    assert [each for each in client.sent[2:] if each != COMMENT] == [b"text", b""]


async def test_late_error_is_the_only_event() -> None:
    client = Client()
    response = await client.open(SHORT_S)
    client.opened.set_exception(InvalidRequest("no"))
    await response({"type": "http"}, client.receive, client.send)
    assert [each for each in client.sent if each != COMMENT] == [b"start", b"error: no", b""]
    assert client.aborted == []


@pytest.mark.parametrize("comments_after_s", [SHORT_S, LONG_S])
async def test_disconnect_cancels_the_opening(comments_after_s: float) -> None:
    client = Client()
    if comments_after_s == LONG_S:
        opening = asyncio.create_task(client.open(comments_after_s))
        await run_ready_tasks()
        client.disconnected.set()
        with pytest.raises(ClientDisconnected):
            await opening
    else:
        response = await client.open(comments_after_s)
        client.disconnected.set()
        await response({"type": "http"}, client.receive, client.send)
    await run_ready_tasks()
    assert client.opened.cancelled()
    assert client.aborted == []


async def test_generation_that_opens_in_spite_of_a_disconnect_is_aborted() -> None:
    client = Client()

    async def opening() -> str:
        try:
            await client.opened
        except asyncio.CancelledError:
            return "late"
        return "text"

    client.opening = opening  # type: ignore[method-assign]
    waiting = asyncio.create_task(client.open(LONG_S))
    await run_ready_tasks()
    client.disconnected.set()
    with pytest.raises(ClientDisconnected):
        await waiting
    assert client.aborted == ["late"]
