"""`/v1/chat/completions` over HTTP."""

from __future__ import annotations

from typing import Any

from engine.hooks import RequestEnded
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import RawConnection, join_text, parse_chunks, parse_sse

ROUTE = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi there"}]}


async def test_chat_completion_has_all_fields(
    serve: Serve, script: ScriptFactory
) -> None:  # R35, R38
    server = await serve(script({"when": "^user: hi there\nassistant:$", "pieces": ["he", "y"]}))
    async with server.client() as client:
        body = (await client.post(ROUTE, json=BODY)).json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "hey"
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert body["usage"]["completion_tokens"] == 2


async def test_stream(serve: Serve, script: ScriptFactory) -> None:  # R36
    pieces = [{"text": text, "delay_ms": 5} for text in ("he", "y")]
    server = await serve(script({"pieces": pieces}))
    async with server.client() as client:
        chunks = parse_chunks((await client.post(ROUTE, json=BODY | {"stream": True})).content)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert not any("role" in delta for delta in deltas[1:])
    assert join_text(chunks) == "hey"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1]["usage"]["completion_tokens"] == 2


async def test_role_waits_for_the_first_token(serve: Serve, script: ScriptFactory) -> None:  # R30
    answers = {"when": "bad", "pieces": [{"error": "no"}]}, {"pieces": ["ok", {"hang_s": 3600}]}
    server = await serve(script(*answers))
    bad = {"messages": [{"role": "user", "content": "bad"}], "stream": True}
    async with server.client() as client:
        assert (await client.post(ROUTE, json=bad)).status_code == 500
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, BODY | {"stream": True})
        await wire.read_head()
        role, text = parse_sse(await wire.read_chunk())
        assert role["choices"][0]["delta"]["role"] == "assistant"
        assert text["choices"][0]["delta"] == {"content": "ok"}
    await server.events.wait(RequestEnded, 2)


async def test_messages_are_checked(serve: Serve) -> None:  # R34
    server = await serve()
    async with server.client() as client:
        for messages in (None, [], "hi", [{"role": "king", "content": "x"}], [{"role": "user"}]):
            response = await client.post(ROUTE, json={"messages": messages})
            assert response.status_code == 400
            assert response.json()["error"]["param"].startswith("messages")
