"""OpenAI's calls on the embedded model have the same text unstreamed, streamed and as a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine import BackendConfig, Engine, EngineConfig
from handler.apis.openai.service import OpenAIService
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from tests.unit.handler.apis.openai.calls import CHAT, COMPLETIONS, complete, complete_streamed
from tests.unit.handler.apis.openai.reading import Choice, ReadResponse

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
# The last brings characters of several tokens into the answer.
PROMPTS = ["The capital of France is", "Smileys: 😀 😃 😄 😁 😀 😃 😄"]
TURNS = [{"role": "user", "content": "What is the capital of France?"}]
# The requests, by route; a job has the same body.
REQUESTS = [
    *((COMPLETIONS, {"prompt": prompt}) for prompt in PROMPTS),
    (CHAT, {"messages": TURNS}),
]
JOB = {"top_p": 1, "top_k": -1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipeline(model_path: Path) -> AsyncIterator[Pipeline]:
    """One slot, one thread, no reuse of an earlier prompt: the same text for the same request."""
    options = {"model_path": str(model_path), "model_name": "tiny", "deterministic": True}
    config = EngineConfig(
        backend=BackendConfig.from_wire("llamacpp", {**options, "context_length": 512})
    )
    engine = Engine(config)
    await engine.ready()
    yield Pipeline(engine, "tiny")
    await engine.close()


async def complete_twice(pipeline: Pipeline, route: str, body: dict[str, Any]) -> ReadResponse:
    """Check that the streamed answer is the unstreamed one, and return it."""
    service = OpenAIService(pipeline)
    async with asyncio.timeout(50):
        complete_response = await complete(service, route, body)
        streamed_response = await complete_streamed(service, route, body)
    assert streamed_response.choices == complete_response.choices
    assert streamed_response.usage == complete_response.usage
    return complete_response


async def job(pipeline: Pipeline, body: dict[str, Any], **sampling: Any) -> str:
    """Return the text of the same request as a job."""
    params = {**GREEDY, **JOB, **sampling, "stream": True}
    job_input = {**body, "sampling_params": params, "enable_validation": False}
    job_input["apply_chat_template"] = False
    output = await JobHandler(pipeline).run({"id": "j", "input": job_input})
    assert isinstance(output, dict)
    (choice,) = output["choices"]
    assert "".join(choice["deltas"]) == choice["text"]
    return str(choice["text"])


@pytest.mark.long_except("/v1/chat/completions-body2")
@pytest.mark.parametrize(("route", "body"), REQUESTS)
async def test_text_is_the_same_unstreamed_streamed_and_as_a_job(
    pipeline: Pipeline, route: str, body: dict[str, Any]
) -> None:
    # R11, R24, R26, R45, R46: also with stop sequences at several positions.
    (choice,) = (await complete_twice(pipeline, route, body | GREEDY)).choices.values()
    text = choice.text
    assert text == await job(pipeline, body)
    for place in (1, len(text) // 2, len(text) - 4):
        stop = text[place : place + 3]
        before, _, _ = text.partition(stop)
        stops = {"stop": ["never said", stop]}
        (cut,) = (await complete_twice(pipeline, route, body | GREEDY | stops)).choices.values()
        assert (cut.text, cut.finish_reason, cut.stop_reason) == (before, "stop", stop)
        assert await job(pipeline, body, **stops) == before


@pytest.mark.long
@pytest.mark.parametrize(("route", "body"), REQUESTS)
async def test_two_choices_of_a_seed(pipeline: Pipeline, route: str, body: dict[str, Any]) -> None:
    # R10, R15, R24: the first is the one that n=1 has.
    sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}
    response = await complete_twice(pipeline, route, {**body, **sampling, "seed": 11, "n": 2})
    assert response.usage is not None
    assert response.usage["completion_tokens"] == 16
    texts = [choice.text for choice in response.choices.values()]
    assert texts[0] != texts[1]
    assert texts == [await job(pipeline, body, **sampling, seed=seed) for seed in (11, 12)]


def check_logprobs(choice: Choice, prompt: str) -> None:
    logprobs = choice.logprobs
    assert logprobs is not None
    assert len({len(each) for each in logprobs.values()}) == 1
    in_prompt = [offset < len(prompt) for offset in logprobs["text_offset"]]
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    for is_prompt, token, logprob, tops, offset in zip(
        in_prompt,
        logprobs["tokens"],
        logprobs["token_logprobs"],
        logprobs["top_logprobs"],
        logprobs["text_offset"],
        strict=True,
    ):
        if "\ufffd" not in token:
            assert choice.text[offset:].startswith(token)
        if is_prompt and offset == 0:
            assert (logprob, tops) == (None, None)
        elif is_prompt:
            # The likelier of two partial characters is kept.
            assert logprob <= tops[token] <= 0
        else:
            assert logprob <= 0
            # Greedy: the sampled one is the likeliest.
            assert max(tops.values()) == tops[token] == logprob


@pytest.mark.long_except("The capital of France is-False")
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("prompt", PROMPTS)
async def test_logprobs(pipeline: Pipeline, prompt: str, echo: bool) -> None:
    # R13, R14
    body = {"prompt": prompt, "echo": echo, "logprobs": 3, **GREEDY}
    response = await complete_twice(pipeline, COMPLETIONS, body)
    assert response.choices[0].text.startswith(prompt) or not echo
    check_logprobs(response.choices[0], prompt if echo else "")
    ids = await pipeline.engine.tokenize(prompt)
    of_ids = await complete_twice(pipeline, COMPLETIONS, body | {"prompt": ids})
    assert of_ids.choices == response.choices
    assert of_ids.usage == response.usage


async def test_logprobs_of_a_chat(pipeline: Pipeline) -> None:
    # R13
    body = {"messages": TURNS, "logprobs": True, "top_logprobs": 3, **GREEDY}
    (choice,) = (await complete_twice(pipeline, CHAT, body)).choices.values()
    assert choice.logprobs is not None
    content = choice.logprobs["content"]
    assert b"".join(bytes(each["bytes"]) for each in content).decode() == choice.text
    for each in content:
        assert each["logprob"] <= 0
        assert len(each["top_logprobs"]) == 3
        assert each["top_logprobs"][0]["token"] == each["token"]


@pytest.mark.long
async def test_several_prompts(pipeline: Pipeline) -> None:
    # R5, R18, R24
    body = {"prompt": PROMPTS, "echo": True, **GREEDY}
    response = await complete_twice(pipeline, COMPLETIONS, body)
    singles = [
        await complete_twice(pipeline, COMPLETIONS, body | {"prompt": prompt}) for prompt in PROMPTS
    ]
    assert list(response.choices.values()) == [each.choices[0] for each in singles]
    for key in ("prompt_tokens", "completion_tokens"):
        usages = [each.usage or {} for each in singles]
        assert response.usage is not None
        assert response.usage[key] == sum(usage[key] for usage in usages)
