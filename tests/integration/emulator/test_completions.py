"""`/v1/completions` over HTTP, complete and streamed, with one prompt."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from engine.hooks import RequestEnded
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import RawConnection, join_text, parse_chunks, parse_sse
from tests.usage import usage

ROUTE = "/v1/completions"
HANG = {"hang_s": 3600}
GRINNING = "😀"


async def test_completion_has_all_fields(serve: Serve, script: ScriptFactory) -> None:
    server = await serve(script({"pieces": ["Hello", ",", " world"]}), model_name="little")
    before = int(time.time())
    async with server.client() as client:
        response = await client.post(ROUTE, json={"model": "little", "prompt": "say it now"})
        second = await client.post(ROUTE, json={"prompt": "say it now"})
    # R1
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    # R2, R4: model tokens, and the total is their sum.
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["id"] != second.json()["id"]
    assert before <= body["created"] <= int(time.time())
    assert type(body["created"]) is int
    assert body["model"] == second.json()["model"] == "little"
    assert body["usage"] == usage(3, 3)
    # R3
    assert body["choices"] == [
        {"text": "Hello, world", "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]


async def test_stream_has_its_headers_and_every_chunk_its_fields(
    serve: Serve, script: ScriptFactory
) -> None:
    pieces = [{"text": text, "delay_ms": 5} for text in ("Hello", ",", " world")]
    server = await serve(script({"pieces": pieces}), model_name="little")
    async with server.client() as client:
        response = await client.post(ROUTE, json={"prompt": "say it now", "stream": True})
    # R19
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    chunks = parse_chunks(response.content)
    # R20
    assert len(chunks) > 1
    shared = [{key: chunk[key] for key in ("id", "object", "created", "model")} for chunk in chunks]
    assert shared == [shared[0]] * len(chunks)
    assert shared[0]["id"].startswith("cmpl-")
    assert (shared[0]["object"], shared[0]["model"]) == ("text_completion", "little")
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert {"index", "text", "logprobs", "finish_reason"} <= set(choice)
        assert (choice["index"], choice["logprobs"]) == (0, None)
    # R21: one finish reason, on a last chunk without text.
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1]["choices"][0]["text"] == ""
    assert all(chunk["choices"][0]["text"] for chunk in chunks[:-1])
    # R22: without stream_options the usage is on the finish chunk, and only there.
    assert chunks[-1]["usage"] == usage(3, 3)
    assert not any("usage" in chunk for chunk in chunks[:-1])
    # R24
    assert join_text(chunks) == "Hello, world"


async def test_usage_has_its_own_chunk_when_requested(serve: Serve) -> None:  # R22
    server = await serve()
    body = {"prompt": "a b", "stream": True, "stream_options": {"include_usage": True}}
    async with server.client() as client:
        *chunks, last = parse_chunks((await client.post(ROUTE, json=body)).content)
    assert last["choices"] == []
    assert last["usage"] == usage(2, 2)
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize("options", [{"include_usage": False}, {}])
async def test_stream_has_no_usage_when_it_is_declined(
    serve: Serve, options: dict[str, Any]
) -> None:  # R22
    server = await serve()
    async with server.client() as client:
        response = await client.post(
            ROUTE, json={"prompt": "a b", "stream": True, "stream_options": options}
        )
    assert all(
        "usage" not in chunk and chunk["choices"] for chunk in parse_chunks(response.content)
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_length_is_honoured_to_the_token(serve: Serve, stream: bool) -> None:  # R8
    server = await serve()
    async with server.client() as client:
        for count in (1, 2, 4):
            body = {"prompt": "one two three four", "max_tokens": count, "stream": stream}
            response = await client.post(ROUTE, json=body)
            last = parse_chunks(response.content)[-1] if stream else response.json()
            reason = last["choices"][0]["finish_reason"]
            assert reason == "length"
            assert last["usage"]["completion_tokens"] == count


async def test_default_length_is_a_setting(serve: Serve) -> None:  # R8
    server = await serve(default_max_tokens=2)
    async with server.client() as client:
        body = (await client.post(ROUTE, json={"prompt": "a b c d"})).json()
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("a b", "length")


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "stop_reason"),
    [
        (["one E", "N", "D two"], "END", "one ", "END"),  # over three tokens
        (["one ENDED two"], ["END"], "one ", "END"),  # inside a token
        (["one E", "N", "O two"], "END", "one ENO two", None),  # held back, then released
        (["one E", "N"], "END", "one EN", None),  # released at the end
        (["abc"], ["c", "bc"], "a", "bc"),  # the longest on a tie
        (["abcd"], ["bcd", "c"], "ab", "c"),  # the earliest to complete
        (["x\n", "\ny"], ["\n\n"], "x", "\n\n"),
        (["a", "😀b"], [GRINNING], "a", GRINNING),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_stop_strings(
    serve: Serve,
    script: ScriptFactory,
    pieces: list[str],
    stop: str | list[str],
    text: str,
    stop_reason: str | None,
) -> None:  # R11, R24, R25, R26
    delayed = [{"text": piece, "delay_ms": 3} for piece in pieces]
    server = await serve(script({"pieces": delayed}))
    async with server.client() as client:
        body = {"prompt": "x", "stop": stop}
        choice = (await client.post(ROUTE, json=body)).json()["choices"][0]
        streamed = parse_chunks((await client.post(ROUTE, json=body | {"stream": True})).content)
        included = (
            await client.post(ROUTE, json=body | {"include_stop_str_in_output": True})
        ).json()["choices"][0]
    assert (choice["text"], choice.get("stop_reason")) == (text, stop_reason)
    assert choice["finish_reason"] == "stop"
    assert join_text(streamed) == text
    assert streamed[-1]["choices"][0].get("stop_reason") == stop_reason
    assert included["text"] == text + (stop_reason or "")


async def test_possible_start_of_a_stop_sequence_is_held_back(
    serve: Serve, script: ScriptFactory
) -> None:  # R26
    server = await serve(script({"pieces": ["one E", {"text": "N", "delay_ms": 5}, HANG]}))
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "x", "stop": "END", "stream": True})
        await wire.read_head()
        assert join_text(parse_sse(await wire.read_chunk())) == "one "
    await server.events.wait(RequestEnded)


async def test_character_split_over_tokens_is_sent_complete(
    serve: Serve, script: ScriptFactory
) -> None:  # R27
    emoji = GRINNING.encode()
    pieces = [{"hex": emoji[i : i + 1].hex(), "delay_ms": 5} for i in range(4)]
    euro = [{"hex": "e282", "delay_ms": 5}, {"hex": "ac", "delay_ms": 5}]
    server = await serve(script({"pieces": [{"text": "a", "delay_ms": 1}, *pieces, *euro, "z"]}))
    async with server.client() as client:
        answer = (await client.post(ROUTE, json={"prompt": "x"})).json()
        streamed = parse_chunks(
            (await client.post(ROUTE, json={"prompt": "x", "stream": True})).content
        )
    assert answer["choices"][0]["text"] == join_text(streamed) == f"a{GRINNING}€z"
    texts = [chunk["choices"][0]["text"] for chunk in streamed]
    assert GRINNING in "".join(text for text in texts if "\ufffd" not in text)
    assert any(text.startswith(GRINNING) for text in texts)
    assert answer["usage"]["completion_tokens"] == streamed[-1]["usage"]["completion_tokens"] == 8


async def test_each_network_read_holds_complete_events(serve: Serve, script: ScriptFactory) -> None:
    # R29: a client that decodes each read alone works. One piece at a time, each in its own read.
    emoji = GRINNING.encode()
    pieces = [{"hex": emoji[i : i + 1].hex()} for i in range(4)]
    burst = {"pieces": [*pieces, "é", " word", {"text": "!", "delay_ms": 2}], "repeat": 100}
    server = await serve(script(burst))
    events: list[Any] = []
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "x", "stream": True})
        ended = False
        first = True
        while not ended:
            data = await wire.read()
            if first:
                _, _, data = data.partition(b"\r\n\r\n")
                first = False
            while data:
                size, _, data = data.partition(b"\r\n")
                block, data = data[: int(size, 16)], data[int(size, 16) :]
                assert data.startswith(b"\r\n")
                data = data[2:]
                ended = not block
                if block:
                    events += parse_sse(block)
    assert join_text(events[:-1]) == (GRINNING + "é word!") * 100
    assert events[-1] == "[DONE]"


async def test_first_event_is_sent_while_the_model_runs(
    serve: Serve, script: ScriptFactory
) -> None:  # R29
    server = await serve(script({"pieces": ["first", HANG, "second"]}))
    with await RawConnection.connect(server.port) as wire:
        await wire.post(ROUTE, {"prompt": "x", "stream": True})
        assert (await wire.read_head())[0] == 200
        (event,) = parse_sse(await wire.read_chunk())
        assert event["choices"][0]["text"] == "first"
        assert server.engine.running == 1
        assert server.events.of(RequestEnded) == []
    await server.events.wait(RequestEnded)


async def test_stream_interval_merges_deltas_after_the_first(
    serve: Serve, script: ScriptFactory
) -> None:  # R29
    pieces = [{"text": f"{number} ", "delay_ms": 2} for number in range(50)]
    # Time to send the first token, also on a busy machine.
    pieces[1]["delay_ms"] = 300
    path = script({"pieces": pieces})
    texts = {}
    for interval in (0.0, 500.0):
        server = await serve(path, stream_interval_ms=interval)
        async with server.client() as client:
            response = await client.post(ROUTE, json={"prompt": "x", "stream": True})
        chunks = parse_chunks(response.content)
        texts[interval] = [chunk["choices"][0]["text"] for chunk in chunks][:-1]
    assert "".join(texts[0.0]) == "".join(texts[500.0])
    assert texts[500.0][0] == "0 "
    assert len(texts[500.0]) <= 3 < len(texts[0.0])


async def test_connection_is_reusable_after_a_stream(serve: Serve) -> None:  # R43
    server = await serve()
    with await RawConnection.connect(server.port) as wire:
        for number in range(3):
            await wire.post(ROUTE, {"prompt": f"number {number}", "stream": True})
            status, headers, body = await wire.read_response()
            assert (status, headers.get("connection")) == (200, None)
            assert join_text(parse_chunks(body)) == f"number {number}"
            await wire.post(ROUTE, {"prompt": "whole"})
            assert (await wire.read_response())[0] == 200
        await wire.post(ROUTE, {"prompt": ""})
        assert (await wire.read_response())[0] == 400
        await wire.post(ROUTE, {"prompt": "after an error"})
        assert (await wire.read_response())[0] == 200


async def test_error_before_the_first_token_is_an_http_error(
    serve: Serve, script: ScriptFactory
) -> None:  # R30
    server = await serve(script({"pieces": [{"error": "out of memory"}]}))
    async with server.client() as client:
        for stream in (False, True):
            response = await client.post(ROUTE, json={"prompt": "x", "stream": stream})
            assert response.status_code == 500
            error = response.json()["error"]
            assert error.pop("request_id") == response.headers["x-request-id"]
            assert error == {
                "message": "out of memory",
                "type": "engine_error",
                "param": None,
                "code": 500,
            }


async def test_error_after_the_first_token_is_an_event_and_then_the_end(
    serve: Serve, script: ScriptFactory
) -> None:  # R30
    fault = {"error": "out of memory", "delay_ms": 20}
    server = await serve(script({"when": "bad", "pieces": ["so far", fault]}, {"pieces": ["ok"]}))
    async with server.client() as client:
        response = await client.post(ROUTE, json={"prompt": "bad", "stream": True})
        assert response.status_code == 200
        *chunks, error = parse_chunks(response.content)
        assert join_text(chunks) == "so far"
        assert error["error"]["message"] == "out of memory"
        assert error["error"]["code"] == 500
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        # A complete answer cannot hold partial text, so the request fails.
        assert (await client.post(ROUTE, json={"prompt": "bad"})).status_code == 500
        assert (await client.post(ROUTE, json={"prompt": "good"})).status_code == 200


@pytest.mark.parametrize(
    ("setting", "setting_name"),
    [
        ("request_timeout_s", "REQUEST_TIMEOUT_S"),
        ("prefill_timeout_s", "PREFILL_TIMEOUT_S"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_timeout_before_the_first_token_is_504(
    serve: Serve, script: ScriptFactory, setting: str, setting_name: str, stream: bool
) -> None:  # R30
    server = await serve(script({"pieces": [HANG]}), **{setting: 0.1})
    async with server.client() as client:
        response = await client.post(ROUTE, json={"prompt": "x", "stream": stream})
    assert response.status_code == 504
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("timeout_error", 504)
    assert setting_name in error["message"]
    await server.wait_until_idle()


@pytest.mark.long_except("request_timeout_s-REQUEST_TIMEOUT_S")
@pytest.mark.parametrize(
    ("setting", "setting_name"),
    [("request_timeout_s", "REQUEST_TIMEOUT_S"), ("stall_timeout_s", "STALL_TIMEOUT_S")],
)
async def test_timeout_after_the_first_token_is_an_event_and_then_the_end(
    serve: Serve, script: ScriptFactory, setting: str, setting_name: str
) -> None:  # R30
    server = await serve(script({"pieces": ["so far", HANG]}), **{setting: 0.5})
    async with server.client() as client:
        response = await client.post(ROUTE, json={"prompt": "x", "stream": True})
        *text, error = parse_chunks(response.content)
        assert join_text(text) == "so far"
        assert error["error"]["code"] == 504
        assert setting_name in error["error"]["message"]
        assert (await client.post(ROUTE, json={"prompt": "x"})).status_code == 504
    await server.wait_until_idle()


async def test_concurrent_streams_keep_their_own_text(serve: Serve) -> None:  # R31
    server = await serve()

    async def check_answers(number: int) -> None:
        prompt = " ".join(f"{number}.{index}" for index in range(50))
        async with server.client() as client:
            for stream in (True, False):
                response = await client.post(ROUTE, json={"prompt": prompt, "stream": stream})
                text = (
                    join_text(parse_chunks(response.content))
                    if stream
                    else response.json()["choices"][0]["text"]
                )
                assert text == prompt

    await asyncio.gather(*(check_answers(number) for number in range(12)))


async def test_models(serve: Serve) -> None:
    server = await serve(model_name="little")
    async with server.client() as client:
        body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    (model,) = body["data"]
    assert (model["id"], model["object"]) == ("little", "model")
    assert type(model["created"]) is int
