"""`/v1/embeddings`: every form of input, both encodings, and all that is refused."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse

from common.json_object import JsonObject
from engine import Priority, Slot
from engine.errors import (
    EngineError,
    GenerationTimeout,
    QueueFull,
)
from handler.apis.openai.dialect import OVMS
from handler.apis.openai.embeddings import MAX_INPUTS
from handler.apis.openai.service import EMBEDDINGS, OpenAIService
from handler.errors import HandlerError, InvalidRequest, NotFound, error_info
from tests.unit.handler.conftest import JobHandlerFactory, PipelineFactory
from tests.waiting import wait_until

INPUT = (
    "input must be a non-empty string, an array of up to 2048 of them, an array of token ids or "
    "an array of up to 2048 such arrays"
)
SIZE = 32


async def create_embeddings(service: OpenAIService, inputs: Any, **body: Any) -> JsonObject:
    answer = await service.create_embeddings({"input": inputs, **body})
    CreateEmbeddingResponse.model_validate(answer, strict=True)
    return answer


def vectors(answer: JsonObject) -> list[list[float]]:
    return [each["embedding"] for each in answer["data"]]


@pytest.mark.parametrize(
    ("inputs", "tokens"),
    [
        ("one two", [2]),
        (["one two", "three"], [2, 1]),
        ([5, 7, 9], [3]),
        ([[5, 7, 9], [1]], [3, 1]),
    ],
    ids=["text", "texts", "tokens", "arrays of tokens"],
)
async def test_each_input_form_is_answered_in_order_and_counted(
    pipeline_of: PipelineFactory, inputs: Any, tokens: list[int]
) -> None:
    # R4
    answer = await create_embeddings(OpenAIService(pipeline_of()), inputs)
    assert list(answer) == ["object", "data", "model", "usage"]
    assert (answer["object"], answer["model"]) == ("list", "scripted")
    assert answer["usage"] == {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)}
    assert [each["index"] for each in answer["data"]] == list(range(len(tokens)))
    for each in answer["data"]:
        assert each["object"] == "embedding"
        assert len(each["embedding"]) == SIZE
        assert math.isclose(math.hypot(*each["embedding"]), 1)


async def test_vector_does_not_depend_on_the_other_inputs(
    pipeline_of: PipelineFactory,
) -> None:
    service = OpenAIService(pipeline_of())
    [single] = vectors(await create_embeddings(service, "a red cat"))
    among = vectors(await create_embeddings(service, ["so far away", "a red cat", "a red cat"]))
    assert among[1] == among[2] == single
    assert among[0] != single


async def test_base64_is_the_same_numbers_in_32_bits(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of())
    [plain] = vectors(await create_embeddings(service, "a red cat", encoding_format="float"))
    answer = await service.create_embeddings({"input": "a red cat", "encoding_format": "base64"})
    raw = base64.b64decode(answer["data"][0]["embedding"], validate=True)
    assert list(struct.unpack(f"<{SIZE}f", raw)) == pytest.approx(plain, abs=1e-7)


async def test_allowed_parameters(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of())
    body = {"model": "scripted", "user": "me", "dimensions": SIZE, "encoding_format": None}
    assert (
        len(vectors(await create_embeddings(service, ["a"] * MAX_INPUTS, **body, what=5)))
        == MAX_INPUTS
    )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, f"{INPUT}, got null"),
    ({"input": None}, f"{INPUT}, got null"),
    ({"input": 5}, f"{INPUT}, got 5"),
    ({"input": True}, f"{INPUT}, got true"),
    ({"input": {"a": 1}}, f'{INPUT}, got {{"a":1}}'),
    ({"input": []}, f"{INPUT}, got []"),
    ({"input": ""}, f'{INPUT}, got ""'),
    ({"input": ["a", ""]}, f'{INPUT}, got "" at input[1]'),
    ({"input": ["a", None]}, f"{INPUT}, got null at input[1]"),
    ({"input": [1, "a"]}, f"{INPUT}, got 1 at input[0]"),
    ({"input": [[]]}, f"{INPUT}, got [] at input[0]"),
    ({"input": [1, -1]}, f"{INPUT}, got 1 at input[0]"),
    ({"input": [[1, True]]}, f"{INPUT}, got [1,true] at input[0]"),
    ({"input": [[2**31]]}, f"{INPUT}, got [2147483648] at input[0]"),
    ({"input": ["a"] * 2049}, f"{INPUT}, got 2049"),
    ({"input": "a", "encoding_format": "int8"}, 'encoding_format must be float or base64, got "in'),
    ({"input": "a", "dimensions": 0}, "dimensions must be a whole number from 1 to 4294967295, g"),
    ({"input": "a", "dimensions": "8"}, "dimensions must be a whole number from 1 to 4294967295,"),
    ({"input": "a", "dimensions": 8}, "dimensions must be 32, the length of scripted's vectors, "),
    ({"input": "a", "user": 5}, "user must be a string, got 5"),
    ({"input": "a", "model": 5}, "model must be a string, got 5"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED)
async def test_invalid_body_is_refused(
    pipeline_of: PipelineFactory, body: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await OpenAIService(pipeline_of()).create_embeddings(body)
    error = error_info(raised.value).openai_error()["error"]
    assert error["message"].startswith(message)
    assert (error["code"], error["param"]) == (400, message.split(" ")[0])


async def test_invalid_unicode_error_names_the_input(pipeline_of: PipelineFactory) -> None:
    with pytest.raises(InvalidRequest, match=r"^input\[1\] must be Unicode text"):
        await OpenAIService(pipeline_of()).create_embeddings({"input": ["a", "\ud800"]})


async def test_embeddings_check_the_model_name(pipeline_of: PipelineFactory) -> None:
    # R7
    service = OpenAIService(pipeline_of())
    with pytest.raises(NotFound, match="there is: scripted"):
        await service.create_embeddings({"input": "a", "model": "text-embedding-3-small"})
    with pytest.raises(InvalidRequest, match="model must be given"):
        await service.create_embeddings({"input": "a"}, OVMS)


async def refusal(service: OpenAIService, inputs: Any) -> dict[str, Any]:
    with pytest.raises((EngineError, HandlerError)) as raised:
        await service.create_embeddings({"input": inputs})
    error: dict[str, Any] = error_info(raised.value).openai_error()["error"]
    return error


async def test_long_text_is_refused_by_name(pipeline_of: PipelineFactory) -> None:
    # R54
    error = await refusal(OpenAIService(pipeline_of(context_length=3)), ["one", "one two three"])
    # R64
    assert error["message"].endswith(
        "context length is 3 tokens. However, your input resulted in 3 tokens. "
        "Please reduce the length of the input. (context_length_exceeded)"
    )
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")


async def test_model_without_embeddings_is_refused(pipeline_of: PipelineFactory) -> None:
    error = await refusal(OpenAIService(pipeline_of(capabilities={"embeddings": False})), "a")
    assert error["message"] == "input: the scripted engine has no embeddings"
    assert (error["code"], error["param"]) == (400, "input")


async def test_engine_that_failed_to_load_is_unavailable(pipeline_of: PipelineFactory) -> None:
    # R54
    error = await refusal(OpenAIService(pipeline_of(load_error="no memory")), "a")
    assert error["code"] == 503


BUSY = {"pieces": ["x"], "repeat": -1, "delay_ms": 1}


async def test_embeddings_wait_for_a_slot_and_release_it(
    pipeline_of: PipelineFactory,
) -> None:
    # R54
    pipeline = pipeline_of(BUSY, slots=1, max_queue=1)
    engine, service = pipeline.engine, OpenAIService(pipeline)
    running = await service.open_stream(
        service.parse_call("/v1/completions", {"prompt": "a", "stream": True})
    )
    waiting = asyncio.create_task(create_embeddings(service, "a"))
    await wait_until(lambda: engine.waiting == 1)
    with pytest.raises(QueueFull):
        await service.create_embeddings({"input": "b"})
    running.abort()
    async with asyncio.timeout(30):
        assert len(vectors(await waiting)) == 1
    assert (engine.running, engine.waiting) == (0, 0)


async def test_cancelled_call_leaves_the_queue(pipeline_of: PipelineFactory) -> None:
    # R31
    pipeline = pipeline_of(BUSY, slots=1)
    engine, service = pipeline.engine, OpenAIService(pipeline)
    running = await service.open_stream(
        service.parse_call("/v1/completions", {"prompt": "a", "stream": True})
    )
    waiting = asyncio.create_task(create_embeddings(service, "a"))
    await wait_until(lambda: engine.waiting == 1)
    waiting.cancel()
    await wait_until(lambda: engine.waiting == 0)
    running.abort()
    await wait_until(lambda: engine.running == 0)
    assert len(vectors(await create_embeddings(service, "a"))) == 1


async def test_request_timeout_applies_to_embeddings(pipeline_of: PipelineFactory) -> None:
    # R30
    pipeline = pipeline_of(BUSY, slots=1, request_timeout_s=0.2)
    service = OpenAIService(pipeline)
    await pipeline.engine.ready()
    held = await pipeline.engine.reserve(Priority.JOB)
    with pytest.raises(GenerationTimeout, match="REQUEST_TIMEOUT_S"):
        await service.create_embeddings({"input": "a"})
    held.release()


async def test_reserved_slot_is_used(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of(slots=1)
    slot: Slot = await pipeline.engine.reserve(Priority.JOB)
    async with asyncio.timeout(30):
        answer = await OpenAIService(pipeline).answer_without_generation(
            EMBEDDINGS, {"input": "a"}, slot=slot
        )
    assert answer["data"]
    assert not slot.take()
    assert pipeline.engine.running == 0


@pytest.mark.parametrize("streamed", [True, False])
async def test_job_output_is_the_embeddings_response(
    job_handler_of: JobHandlerFactory, streamed: bool
) -> None:
    # R44
    jobs = job_handler_of()
    job = {"id": "1", "input": {"openai_route": EMBEDDINGS, "openai_input": {"input": ["a", "b"]}}}
    jobs.check(job)
    if streamed:
        [output] = [each async for each in jobs.stream(job)]
    else:
        output = await jobs.run(job)
    assert len(vectors(output)) == 2


async def test_invalid_job_is_refused_before_it_runs(job_handler_of: JobHandlerFactory) -> None:
    # R50
    jobs = job_handler_of()
    job = {"id": "1", "input": {"openai_route": EMBEDDINGS, "openai_input": {}}}
    with pytest.raises(InvalidRequest, match="input must be a non-empty string"):
        jobs.check(job)
    assert "input must be a non-empty string" in (await jobs.run(job))["error"]


async def test_adapters_are_listed_with_the_model_they_are_for(
    pipeline_of: PipelineFactory,
) -> None:
    # R7
    pipeline = pipeline_of()
    pipeline.adapters = ("french",)
    service = OpenAIService(pipeline)
    base, adapter = (await service.list_models())["data"]
    assert (adapter["id"], adapter["parent"]) == ("french", base["id"])
    assert "parent" not in base
    assert await service.get_model("french") == adapter
