"""Background responses over HTTP: jobs that are polled, streamed, resumed and cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import Serve
from tests.integration.emulator.serving import Server
from tests.waiting import poll_until

ADD: Any = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
TERMINAL = {f"response.{end}" for end in ("completed", "incomplete", "failed", "cancelled")}
FINAL = {"completed", "incomplete", "failed", "cancelled"}


@pytest.fixture
def model(script: ScriptFactory) -> Any:
    return script(
        {"when": "call it", "pieces": [CALL[start : start + 7] for start in range(0, 70, 7)]},
        {"when": "think", "pieces": ["<think>", "two", " and two", "</think>", "four"]},
        {"when": "fail", "pieces": ["so far", {"error": "out of memory", "delay_ms": 20}]},
        {"when": "hang", "pieces": ["a", {"hang_s": 3600}]},
        {"when": "crash", "pieces": ["a", " b", {"signal": "SIGSEGV", "delay_ms": 100}]},
        {"when": "slow", "pieces": [{"text": f" {n}", "delay_ms": 10} for n in range(20)]},
        {"when": "first(.|\n)*Good day(.|\n)*second", "pieces": ["I remember"]},
        {"pieces": ["Good", " day"]},
    )


@pytest.fixture
async def server(serve: Serve, model: Any) -> Server:
    return await serve(model, model_name="little")


# The client of openai; its unions of thirty types would need a cast at each item and event.
@pytest.fixture
async def client(server: Server) -> AsyncIterator[Any]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1/", api_key="any", max_retries=0) as client:
        yield client


async def wait_for_end(client: Any, response: Any) -> Any:
    async def check() -> Any:
        current = await client.responses.retrieve(response.id)
        return current if current.status in FINAL else None

    return await poll_until(check)


async def read(stream: Any) -> list[Any]:
    return [event async for event in stream]


async def test_response_is_queued_and_completed_later(client: Any) -> None:
    queued = await client.responses.create(
        input="hi", background=True, metadata={"k": "v"}, instructions="be brief"
    )
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    ended = await wait_for_end(client, queued)
    assert (ended.status, ended.output_text) == ("completed", "Good day")
    assert (ended.id, ended.created_at) == (queued.id, queued.created_at)
    assert (ended.background, ended.metadata) == (True, {"k": "v"})
    assert ended.instructions == "be brief"
    assert ended.usage.output_tokens == 2
    assert ended.model_extra.get("warnings") is None
    items = await client.responses.input_items.list(queued.id)
    assert [item.content for item in items.data] == ["hi"]


async def test_stream_has_all_events_and_is_resumed_after_each(client: Any) -> None:
    for question, tools in (("hi", []), ("think", []), ("call it", [ADD])):
        events = await read(
            await client.responses.create(input=question, background=True, stream=True, tools=tools)
        )
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type for event in events]
        assert kinds[:4] == [
            "response.created",
            "response.queued",
            "response.in_progress",
            "response.output_item.added",
        ]
        assert [kind for kind in kinds if kind in TERMINAL] == [kinds[-1]] == ["response.completed"]
        response_id = events[0].response.id
        ended = await client.responses.retrieve(response_id)
        assert events[-1].response.to_dict() == ended.to_dict()
        for number in range(-1, len(events)):
            after = {} if number < 0 else {"starting_after": number}
            rest = await read(await client.responses.retrieve(response_id, stream=True, **after))
            assert [e.to_dict() for e in rest] == [e.to_dict() for e in events[number + 1 :]]


async def test_reader_that_disconnects_does_not_stop_the_response(client: Any) -> None:
    stream = await client.responses.create(input="slow", background=True, stream=True)
    first = []
    async for event in stream:
        first.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    rest = await read(
        await client.responses.retrieve(
            first[0].response.id, stream=True, starting_after=first[-1].sequence_number
        )
    )
    numbers = [event.sequence_number for event in (*first, *rest)]
    assert numbers == list(range(len(numbers)))
    text = "".join(e.delta for e in (*first, *rest) if e.type == "response.output_text.delta")
    assert text == rest[-1].response.output_text == "".join(f" {n}" for n in range(20))


async def test_interrupted_response_is_run_again_and_its_stream_goes_on(
    serve: Serve, model: Any
) -> None:
    """The engine dies at the same place in each attempt, so the last one fails for good."""
    server = await serve(model, model_name="little", engine_isolation="process")
    async with AsyncOpenAI(base_url=f"{server.url}/v1/", api_key="any", max_retries=0) as typed:
        client: Any = typed
        stream = await client.responses.create(input="crash", background=True, stream=True)
        events = await read(stream)
        ended = await client.responses.retrieve(events[0].response.id)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [e.delta for e in events if e.type == "response.output_text.delta"] == ["a", " b"]
    assert events[-1].type == "response.failed"
    assert ended.status == "failed"
    assert "lost 3 times" in ended.error.message


async def test_failed_response_has_its_error(client: Any) -> None:
    queued = await client.responses.create(input="fail", background=True)
    ended = await wait_for_end(client, queued)
    assert ended.status == "failed"
    assert "out of memory" in ended.error.message
    assert ended.created_at == queued.created_at
    events = await read(await client.responses.retrieve(queued.id, stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == ended.error.message


async def test_running_response_is_cancelled(client: Any) -> None:
    stream = await client.responses.create(input="hang", background=True, stream=True)
    events = []
    async for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta":
            cancelled = await client.responses.cancel(events[0].response.id)
            assert cancelled.status == "cancelled"
    assert events[-1].type == "response.cancelled"
    assert (await client.responses.retrieve(events[0].response.id)).status == "cancelled"
    # It is cancelled once more without an error, and the slot is free.
    await client.responses.cancel(events[0].response.id)
    assert (await client.responses.create(input="hi")).output_text == "Good day"


async def test_deleted_response_is_stopped_and_gone(client: Any) -> None:
    queued = await client.responses.create(input="hang", background=True)
    await client.responses.delete(queued.id)
    for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            await call(queued.id)
    assert (await client.responses.create(input="hi")).output_text == "Good day"


async def test_conversation_goes_on_in_both_directions(client: Any) -> None:
    first = await client.responses.create(input="first", background=True)
    await wait_for_end(client, first)
    second = await client.responses.create(input="second", previous_response_id=first.id)
    assert second.output_text == "I remember"
    third = await client.responses.create(
        input="second", previous_response_id=second.id, background=True
    )
    ended = await wait_for_end(client, third)
    assert (ended.output_text, ended.previous_response_id) == ("I remember", second.id)
    items = await client.responses.input_items.list(third.id)
    assert len(items.data) == 1


async def test_response_that_has_not_ended_cannot_be_continued(client: Any) -> None:
    first = await client.responses.create(input="hang", background=True)
    with pytest.raises(openai.BadRequestError, match="has not ended yet"):
        await client.responses.create(input="x", previous_response_id=first.id)
    await client.responses.cancel(first.id)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "background": "yes"}, "background"),
        ({"input": "x", "background": True, "temperature": 9}, "temperature"),
        ({"input": 3, "background": True}, "input"),
        ({"input": "x", "background": True, "previous_response_id": "no"}, "previous_response_id"),
    ],
)
async def test_wrong_request_is_refused_before_it_is_queued(
    client: Any, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client.responses.create(**body)
    assert raised.value.param == param


@pytest.mark.parametrize("number", ["x", "-1", "1" * 10, "²"])
async def test_wrong_number_to_resume_after_is_an_error(
    client: Any, server: Server, number: str
) -> None:
    queued = await client.responses.create(input="hi", background=True)
    async with server.client() as http:
        path = f"/v1/responses/{queued.id}?stream=true&starting_after={number}"
        response = await http.get(path)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "starting_after"


async def test_only_background_responses_are_streamed_again_or_cancelled(client: Any) -> None:
    response = await client.responses.create(input="hi")
    with pytest.raises(openai.NotFoundError, match="background"):
        await client.responses.retrieve(response.id, stream=True)
    with pytest.raises(openai.NotFoundError, match="background"):
        await client.responses.cancel(response.id)


@pytest.mark.parametrize("stream_mode", ["aggregate", "generator"])
async def test_job_of_run_is_a_background_response_too(
    serve: Serve, model: Any, stream_mode: str
) -> None:
    server = await serve(model, model_name="little", stream_mode=stream_mode)
    work = {"input": "hi", "background": True, "stream": True}
    async with server.client() as http:
        job_input = {"openai_route": "/v1/responses", "openai_input": work}
        job = (await http.post("/run", json={"input": job_input})).json()
        response_id = f"resp_{job['id']}"

        async def check() -> Any:
            response = (await http.get(f"/v1/responses/{response_id}")).json()
            return response if response["status"] in FINAL else None

        ended = await poll_until(check)
    assert ended["id"] == response_id
    assert ended["output"][0]["content"][0]["text"] == "Good day"
