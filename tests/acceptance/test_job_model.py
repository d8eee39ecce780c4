"""Jobs on a model: each form of a job has the same text, and so has its repetition."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai._streaming import SSEDecoder
from openai.types.chat import ChatCompletionChunk

from engine import BackendConfig, Chat, Engine, EngineConfig, Message
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline

pytestmark = pytest.mark.asyncio(loop_scope="module")

RAW = {"prompt": "Count: one two three four", "apply_chat_template": False}
QUESTION = "What is the capital of France?"
CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20, "temperature": 0}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_path: Path) -> AsyncIterator[Engine]:
    """One slot, one thread, no reuse of an earlier prompt: the same text for the same request."""
    options = {"model_path": str(model_path), "model_name": "tiny", "deterministic": True}
    config = EngineConfig(
        backend=BackendConfig.from_wire("llamacpp", {**options, "context_length": 512})
    )
    engine = Engine(config)
    await engine.ready()
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def jobs(engine: Engine) -> JobHandler:
    return JobHandler(Pipeline(engine, "tiny"), interval_s=0.0)


async def run(jobs: JobHandler, *, stream: bool = False, **sampling: Any) -> dict[str, Any]:
    return await run_input(jobs, RAW, stream=stream, **sampling)


async def run_input(
    jobs: JobHandler, job_input: dict[str, Any], *, stream: bool = False, **sampling: Any
) -> dict[str, Any]:
    params = {"max_tokens": 24, "temperature": 0, "stream": stream, **sampling}
    async with asyncio.timeout(50):
        output = await jobs.run({"id": "j", "input": {**job_input, "sampling_params": params}})
    assert isinstance(output, dict)
    assert "error" not in output, output
    return output


async def text(jobs: JobHandler, **sampling: Any) -> str:
    return str((await run(jobs, **sampling))["choices"][0]["text"])


@pytest.mark.long
async def test_text_is_the_same_with_and_without_streaming(jobs: JobHandler) -> None:
    # R24, R46
    unstreamed, streamed = await run(jobs, stream=False), await run(jobs, stream=True)
    choice = streamed["choices"][0]
    assert choice["text"]
    assert choice["text"] == "".join(choice["deltas"]) == unstreamed["choices"][0]["text"]
    assert streamed["usage"] == unstreamed["usage"]
    # One delta a token, but for an end-of-sequence token that has no text.
    assert streamed["usage"]["output"] - len(choice["deltas"]) in (0, 1)


async def test_temperature_zero_is_repeatable(jobs: JobHandler) -> None:
    # R9
    assert await text(jobs) == await text(jobs)


@pytest.mark.long
async def test_seed_is_repeatable_and_matters(jobs: JobHandler) -> None:
    # R10
    first = [await text(jobs, temperature=1, seed=seed, ignore_eos=True) for seed in range(5)]
    repeated = [await text(jobs, temperature=1, seed=seed, ignore_eos=True) for seed in range(5)]
    assert first == repeated
    assert len(set(first)) > 1


async def test_stop_cuts_the_same_text_short(jobs: JobHandler) -> None:
    # R11, R26
    full_text = await text(jobs)
    # It begins and ends within tokens.
    within = re.search(r"\w\w \w", full_text[len(full_text) // 2 :])
    assert within is not None
    stop = within[0][1:]
    stopped = (await run(jobs, stream=True, stop=["zzz", stop]))["choices"][0]
    assert stopped["text"] == full_text[: full_text.index(stop)]
    assert "".join(stopped["deltas"]) == stopped["text"]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)
    kept = await text(jobs, stop=stop, include_stop_str_in_output=True)
    assert kept == stopped["text"] + stop


async def test_max_tokens_is_exact(jobs: JobHandler) -> None:
    # R4, R8
    output = await run(jobs, max_tokens=5, stream=True)
    assert output["usage"]["output"] == 5
    assert output["choices"][0]["finish_reason"] == "length"


async def test_generator_yields_the_same_text(jobs: JobHandler) -> None:
    # R45
    params = {"max_tokens": 24, "temperature": 0, "stream": True}
    job = {"id": "j", "input": {**RAW, "sampling_params": params}}
    async with asyncio.timeout(50):
        *partials, final = [output async for output in jobs.stream(job)]
    joined = "".join(partial["choices"][0]["text"] for partial in partials)
    assert joined == final["choices"][0]["text"] == await text(jobs)


async def test_chat_is_the_same_with_and_without_streaming(jobs: JobHandler) -> None:
    # R24, R35, R36, R38
    call = {"openai_route": "/v1/chat/completions", "openai_input": CHAT}
    streamed = {**call, "openai_input": {**CHAT, "stream": True}}
    async with asyncio.timeout(50):
        body = await jobs.run({"id": "j", "input": call})
        posts = [post async for post in jobs.stream({"id": "j", "input": streamed})]
    events = SSEDecoder().iter_bytes(iter(["".join(posts).encode()]))
    *chunks, done = [event.data for event in events]
    assert done == "[DONE]"
    parsed = [ChatCompletionChunk.model_validate_json(chunk) for chunk in chunks]
    content = "".join(chunk.choices[0].delta.content or "" for chunk in parsed)
    assert content == body["choices"][0]["message"]["content"]
    assert content.strip()
    # Rendered by the model's own template, whose turns are tokens of their own.
    assert body["usage"]["prompt_tokens"] > 10


async def test_prompt_longer_than_the_context_names_both_lengths(jobs: JobHandler) -> None:
    # R54
    async with asyncio.timeout(50):
        output = await jobs.run({"id": "j", "input": {"prompt": "word " * 1000}})
    assert output["error"].startswith("prompt: 1")
    assert output["error"].endswith(" tokens do not fit the context of 512 tokens")
    assert await text(jobs)


async def test_prompt_is_one_user_turn_of_the_chat_template(jobs: JobHandler) -> None:
    # R58
    chat = await run_input(jobs, {"messages": [{"role": "user", "content": QUESTION}]})
    prompt = await run_input(jobs, {"prompt": QUESTION})
    assert prompt["choices"] == chat["choices"]
    assert prompt["usage"] == chat["usage"]
    raw = await run_input(jobs, {"prompt": QUESTION, "apply_chat_template": False})
    assert raw["usage"]["input"] < prompt["usage"]["input"]


async def test_prompt_that_is_rendered_already_stays_as_it_is(
    jobs: JobHandler, engine: Engine
) -> None:
    # R58
    rendered = await engine.render(Chat((Message("user", QUESTION),)))
    of_rendered = await run_input(jobs, {"prompt": rendered})
    of_text = await run_input(jobs, {"prompt": QUESTION})
    assert of_rendered["choices"] == of_text["choices"]
    assert of_rendered["usage"] == of_text["usage"]


async def test_completions_of_a_job_stay_raw(jobs: JobHandler) -> None:
    # R58
    body = {"prompt": QUESTION, "max_tokens": 24, "temperature": 0}
    call = {"openai_route": "/v1/completions", "openai_input": body}
    output = await jobs.run({"id": "j", "input": call})
    raw = await run_input(
        jobs, {"prompt": QUESTION, "apply_chat_template": False}, top_p=1, top_k=-1
    )
    assert output["choices"][0]["text"] == raw["choices"][0]["text"]
    assert output["usage"]["prompt_tokens"] == raw["usage"]["input"]


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_ends_at_its_budget(jobs: JobHandler, engine: Engine, stream: bool) -> None:
    # The raw prompt opens the reasoning, because this model does not reason.
    job_input = {"prompt": f"{QUESTION}\n<think>\n", "apply_chat_template": False}
    output = await run_input(jobs, job_input, stream=stream, reasoning_budget=6)
    [choice] = output["choices"]
    thought = await engine.tokenize(choice["reasoning"])
    assert 4 <= len(thought) <= 8
    # The small model may repeat the mark in its answer.
    assert choice["text"]
    prompt = len(await engine.tokenize(str(job_input["prompt"])))
    usage = output["usage"]
    assert usage["input"] == prompt
    # The closing mark is among the tokens of the answer.
    mark = len(await engine.tokenize("</think>\n\n"))
    assert len(thought) + 4 < usage["output"] <= 24 + mark
    if stream:
        raw = "".join(choice["deltas"])
        assert raw.lstrip("\n").startswith(choice["reasoning"])
        assert raw.endswith(choice["text"])
        assert "</think>\n\n" in raw
