"""OpenAI calls over a real pipeline: complete events, joined text, errors in mid-stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai._streaming import SSEDecoder

from engine.errors import BackendFailed
from handler.apis.core.call_runner import CallDefaults
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.delivery import limits
from handler.errors import InvalidRequest, NotFound
from tests.unit.handler.conftest import PipelineFactory

TURNS = [{"role": "user", "content": "hi"}]
CALLS = [
    pytest.param("/v1/completions", {"prompt": "hi"}, id="completions"),
    pytest.param("/v1/chat/completions", {"messages": TURNS}, id="chat"),
]


async def blocks_of(
    service: OpenAIService, route: str, body: dict[str, Any], interval_s: float = 0.0
) -> list[bytes]:
    call = service.parse_call(route, {**body, "stream": True})
    async with await service.open_stream(call) as running:
        return [block async for block in stream_events(call, running, interval_s)]


def chunks_of(blocks: list[bytes]) -> list[dict[str, Any]]:
    """The chunks as the client's decoder reads them, every block on its own: R29."""
    read = []
    for block in blocks:
        assert block.endswith(b"\n\n")
        decoded = list(SSEDecoder().iter_bytes(iter([block])))
        assert len(decoded) == block.count(b"\n\n")
        read += decoded
    full = list(SSEDecoder().iter_bytes(iter([b"".join(blocks)])))
    assert [event.data for event in read] == [event.data for event in full]
    assert [event.data for event in read].count("[DONE]") == 1
    assert read[-1].data == "[DONE]"
    return [json.loads(event.data) for event in read[:-1]]


def text_of(chunk: dict[str, Any]) -> str:
    choice = chunk["choices"][0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content", ""))


@pytest.mark.parametrize(("route", "body"), CALLS)
async def test_joined_deltas_equal_the_full_text(
    route: str, body: dict[str, Any], pipeline_of: PipelineFactory
) -> None:
    # R24, R29
    pieces = ["Hé", {"hex": "f09f"}, {"hex": "9880"}, ' "quoted"', "\n\ndata: x\n\n", "\0", " end"]
    service = OpenAIService(pipeline_of({"pieces": pieces, "delay_ms": 2}))
    full = await service.complete(service.parse_call(route, body))
    choice = full["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert text == 'Hé😀 "quoted"\n\ndata: x\n\n\0 end'
    chunks = chunks_of(await blocks_of(service, route, body))
    assert "".join(map(text_of, chunks)) == text
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len({chunk["created"] for chunk in chunks}) == 1
    finished = [chunk for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert finished == chunks[-1:]
    assert chunks[-1]["usage"] == full["usage"]


@pytest.mark.parametrize(("route", "body"), CALLS)
@pytest.mark.parametrize("include", [True, False])
async def test_stop_string_ends_streamed_and_complete_answers(
    route: str, body: dict[str, Any], include: bool, pipeline_of: PipelineFactory
) -> None:
    # R11, R12, R24-R26
    service = OpenAIService(pipeline_of({"pieces": ["one f", "iv", "e six", " seven"]}))
    body = {**body, "stop": ["five"], "include_stop_str_in_output": include}
    expected = "one five" if include else "one "
    full = (await service.complete(service.parse_call(route, body)))["choices"][0]
    assert (full["text"] if "text" in full else full["message"]["content"]) == expected
    chunks = chunks_of(await blocks_of(service, route, body))
    assert "".join(map(text_of, chunks)) == expected
    for ending in (full, chunks[-1]["choices"][0]):
        assert (ending["finish_reason"], ending["stop_reason"]) == ("stop", "five")


async def test_role_is_sent_once(pipeline_of: PipelineFactory) -> None:
    # R36
    pieces = [{"text": text, "delay_ms": 10} for text in ("one", "two", "three")]
    service = OpenAIService(pipeline_of({"pieces": pieces}))
    chunks = chunks_of(await blocks_of(service, "/v1/chat/completions", {"messages": TURNS}))
    first, *others = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert first == {"role": "assistant", "content": ""}
    assert len(others) >= 3
    assert all("role" not in delta for delta in others)


@pytest.mark.parametrize(("route", "body"), CALLS)
async def test_empty_answer_is_a_complete_stream(
    route: str, body: dict[str, Any], pipeline_of: PipelineFactory
) -> None:
    service = OpenAIService(pipeline_of({"pieces": []}))
    chunks = chunks_of(await blocks_of(service, route, body))
    assert "".join(map(text_of, chunks)) == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert len(chunks) == (2 if "messages" in body else 1)


@pytest.mark.parametrize(("route", "body"), CALLS)
async def test_error_before_text_is_raised_before_the_stream(
    route: str, body: dict[str, Any], pipeline_of: PipelineFactory
) -> None:
    # R30
    service = OpenAIService(pipeline_of({"pieces": [{"error": "out of luck"}]}))
    with pytest.raises(BackendFailed):
        await service.open_stream(service.parse_call(route, {**body, "stream": True}))


@pytest.mark.parametrize(("route", "body"), CALLS)
async def test_error_after_text_is_an_event_and_then_the_end(
    route: str, body: dict[str, Any], pipeline_of: PipelineFactory
) -> None:
    # R30
    failing = {"pieces": ["one", {"error": "out of luck", "delay_ms": 20}]}
    service = OpenAIService(pipeline_of(failing))
    *chunks, last = chunks_of(await blocks_of(service, route, body))
    assert "".join(map(text_of, chunks)) == "one"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert last == {
        "error": {"message": "out of luck", "type": "engine_error", "param": None, "code": 500}
    }


@pytest.mark.parametrize(("route", "body"), CALLS)
async def test_slow_reader_gets_fewer_and_longer_events(
    route: str, body: dict[str, Any], pipeline_of: PipelineFactory
) -> None:
    # R29
    pieces = [f"{n} " for n in range(100)]
    service = OpenAIService(pipeline_of({"pieces": pieces, "delay_ms": 2}))
    chunks = chunks_of(await blocks_of(service, route, body, interval_s=0.1))
    assert "".join(map(text_of, chunks)) == "".join(pieces)
    assert 3 <= len(chunks) < 30


async def test_long_text_is_sent_in_bounded_events(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["\0" * 150_000]}))
    blocks = await blocks_of(service, "/v1/completions", {"prompt": "hi"})
    assert len(blocks) >= 3
    for block in blocks:
        assert limits.sdk_size_bytes({"output": block.decode()}) <= limits.STREAM_CHUNK_BYTES
    assert "".join(map(text_of, chunks_of(blocks))) == "\0" * 150_000


async def test_default_of_max_tokens(pipeline_of: PipelineFactory) -> None:
    # R8
    service = OpenAIService(
        pipeline_of({"pieces": ["x"], "repeat": 50}), CallDefaults(max_tokens=7)
    )
    full = await service.complete(service.parse_call("/v1/completions", {"prompt": "hi"}))
    assert full["usage"]["completion_tokens"] == 7
    assert full["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("route", ["", "/v1/responses", "v1/completions", "/v1/completions/"])
def test_unknown_route(route: str, pipeline_of: PipelineFactory) -> None:
    with pytest.raises(NotFound, match="there is no route"):
        OpenAIService(pipeline_of()).parse_call(route, {})


def test_long_route_is_shortened_in_the_error(pipeline_of: PipelineFactory) -> None:
    for route in ("x" * 100_000, "\ud800"):
        with pytest.raises(NotFound) as raised:
            OpenAIService(pipeline_of()).parse_call(route, {})
        assert len(raised.value.message.encode()) < 250


def test_route_reads_the_body_of_its_kind(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of())
    with pytest.raises(InvalidRequest, match="Invalid prompt format"):
        service.parse_call("/v1/completions", {"messages": TURNS})
    with pytest.raises(InvalidRequest, match="messages must be"):
        service.parse_call("/v1/chat/completions", {"prompt": "hi"})


async def test_internal_error_in_a_stream_is_sent_as_an_event(
    pipeline_of: PipelineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R30: a stream that just ends would pass for a complete answer.
    def fault(*args: object) -> bytes:
        raise RuntimeError("a secret")

    monkeypatch.setattr(OpenAICall, "encode_closing", fault)
    service = OpenAIService(pipeline_of({"pieces": ["a"]}))
    chunks = chunks_of(await blocks_of(service, "/v1/completions", {"prompt": "hi"}))
    assert [text_of(chunk) for chunk in chunks[:-1]] == ["a"]
    assert chunks[-1]["error"]["code"] == 500
    assert "secret" not in str(chunks[-1])
