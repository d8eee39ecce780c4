"""RKLLM_MODE=logits with schemas and grammars, with both ABIs.

The fake model samples from random logits, so only the constraint makes an answer match.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tokenizers import AddedToken, Tokenizer

from engine import Engine, FinishReason
from engine.errors import RequestRejected
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.pipeline import Pipeline
from tests.fake_rkllm import Call, read_log
from tests.fake_rkllm.tokenizer import id_of, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, first_text, read, request
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("examined_once")
only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)

ROUTE = "/v1/chat/completions"
MODEL = "vocabulary 260\nanswer\n"
COLOUR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "note": {"type": "string", "maxLength": 8},
    },
    "required": ["colour", "count", "note"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> Path:
    """Write tokenizer files for every model of this test, with one token per byte."""
    return write_tokenizer(tmp_path)


@pytest.fixture
def engine(rkllm_of: RkllmMaker, files: Path) -> Engine:
    return rkllm_of(MODEL, mode="logits")


@pytest.fixture
def service(engine: Engine) -> OpenAIService:
    return OpenAIService(Pipeline(engine, "fake"))


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Which?"}], "max_tokens": 400, **fields}


def runs(log: Path) -> list[Call]:
    return [call for call in read_log(log) if call.name == "rkllm_run"]


@only_threads
async def test_answer_fits_the_schema(engine: Engine) -> None:
    # R39
    for seed in range(5):
        text, finish = await ask(engine, json_schema=COLOUR, seed=seed)
        jsonschema_rs.validate(COLOUR, json.loads(text))
        # One token per byte: forced tokens, which were not sampled, count too.
        assert finish.usage.completion_tokens == len(text.encode())
        assert finish.reason is FinishReason.STOP


@only_threads
async def test_answer_is_of_the_grammar(engine: Engine) -> None:
    for seed in range(5):
        text, _ = await ask(engine, grammar='root ::= ("yes" | "no") "!"{1,3}', seed=seed)
        assert text.rstrip("!") in ("yes", "no")
        assert 1 <= text.count("!") <= 3


@only_processes
async def test_clients_answers_match_their_schemas(service: OpenAIService) -> None:
    # R39: complete and streamed, without a later validation.
    completion = await service.complete(
        service.parse_call(ROUTE, chat(response_format=FORMAT, seed=1))
    )
    assert "warnings" not in completion
    content = completion["choices"][0]["message"]["content"]
    jsonschema_rs.validate(COLOUR, json.loads(content))

    call = service.parse_call(ROUTE, chat(response_format=FORMAT, seed=1, stream=True))
    streamed = ""
    async with await service.open_stream(call) as running:
        async for block in stream_events(call, running):
            for line in block.decode().splitlines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        streamed += choice["delta"].get("content") or ""
    assert streamed == content


@only_processes
async def test_function_is_called_with_arguments_that_parse(service: OpenAIService) -> None:
    # R39
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        body = chat(tools=[WEATHER], tool_choice=choice)
        answer = await service.complete(service.parse_call(ROUTE, body))
        assert "warnings" not in answer
        [answer_choice] = answer["choices"]
        assert answer_choice["finish_reason"] == "tool_calls"
        calls = answer_choice["message"]["tool_calls"]
        assert len(calls) == 1
        for call in calls:
            assert call["function"]["name"] == "weather"
            assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Lima")


@only_threads
async def test_forced_tokens_cost_no_run(engine: Engine, call_log: Path) -> None:
    text, finish = await ask(engine, json_schema=COLOUR, seed=1)
    fed = [int(call.values["tokens"]) for call in runs(call_log)]
    # The prompt, then each generated token once, except for the last ones.
    answer_tokens = finish.usage.completion_tokens
    assert answer_tokens - len('x"}') <= sum(fed[1:]) < answer_tokens
    assert len(fed) < len(text) / 2
    # With log-probabilities every token was computed.
    async with await engine.generate(
        request(json_schema=COLOUR, seed=1, logprobs=1, max_tokens=300)
    ) as stream:
        deltas = await read(stream)
    jsonschema_rs.validate(COLOUR, json.loads("".join(delta.text for delta in deltas)))
    assert stream.result is not None
    assert len(runs(call_log)) - len(fed) == stream.result.usage.completion_tokens
    assert all(delta.logprob is not None for delta in deltas if delta.text)


@only_threads
async def test_limits_and_stops_are_exact(engine: Engine, call_log: Path) -> None:
    # R8, R11: also within forced tokens.
    text, finish = await ask(engine, json_schema=COLOUR, seed=1, max_tokens=5)
    assert (text, finish.reason) == ('{"col', FinishReason.LENGTH)
    assert finish.usage.completion_tokens == 5
    text, finish = await ask(engine, json_schema=COLOUR, seed=1, stop=("our",))
    assert (text, finish.stop_reason) == ('{"col', "our")
    assert finish.usage.completion_tokens == len('{"colour')
    assert len(runs(call_log)) == 2


@only_threads
async def test_context_is_not_overrun(rkllm_of: RkllmMaker) -> None:
    # R8
    engine = rkllm_of(MODEL, mode="logits", context_length=64)
    text, finish = await ask(engine, "x" * 50, json_schema=COLOUR, seed=1)
    assert (finish.reason, finish.usage.completion_tokens) == (FinishReason.LENGTH, 13)
    assert text.startswith('{"colour": "')


@only_threads
async def test_ignored_end_tokens_are_not_generated(engine: Engine) -> None:
    # R10
    _, finish = await ask(engine, grammar='root ::= "a"+', ignore_eos=True, max_tokens=20)
    assert (finish.reason, finish.usage.completion_tokens) == (FinishReason.LENGTH, 20)
    text, finish = await ask(engine, json_schema={"const": 1}, ignore_eos=True)
    assert (text, finish.reason) == ("1", FinishReason.STOP)
    bias = {id_of("</s>"): 100.0}
    assert (await ask(engine, grammar='root ::= "a"+', logit_bias=bias))[0] == "a"


@only_processes
async def test_constraint_does_not_affect_the_next_answer(
    engine: Engine, service: OpenAIService
) -> None:
    free, _ = await ask(engine, seed=4, max_tokens=30)
    async with await engine.generate(request(grammar='root ::= "a"+', ignore_eos=True)) as stream:
        await first_text(stream)
    await wait_until(lambda: not engine.running)
    with pytest.raises(
        RequestRejected, match=r"json_schema: answers cannot be held to it: .*null_"
    ):
        await ask(engine, json_schema={"type": "null_"})
    assert (await ask(engine, seed=4, max_tokens=30))[0] == free
    constrained = (ask(engine, json_schema=COLOUR, seed=seed) for seed in range(4))
    for text, _ in await asyncio.gather(*constrained):
        jsonschema_rs.validate(COLOUR, json.loads(text))


@only_threads
async def test_unsupported_keyword_is_validated_afterwards(service: OpenAIService) -> None:
    # R16, R39
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
    response_format = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = chat(response_format=response_format, max_tokens=3)
    answer = await service.complete(service.parse_call(ROUTE, body))
    assert any("cannot hold answers to uniqueItems" in each for each in answer["warnings"])


THINKS = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n"


@only_threads
async def test_schema_applies_after_the_reasoning(rkllm_of: RkllmMaker, files: Path) -> None:
    write_tokenizer(files, THINKS)
    # A separate token, as in reasoning models.
    saved_tokenizer: Any = Tokenizer.from_file(str(files / "tokenizer.json"))
    saved_tokenizer.add_tokens([AddedToken("</think>", special=False)])
    saved_tokenizer.save(str(files / "tokenizer.json"))
    engine = rkllm_of(MODEL.replace("260", "261"), mode="logits")
    service = OpenAIService(Pipeline(engine, "fake"))
    body = chat(response_format=FORMAT, seed=2, logit_bias={"260": 3.0})
    [choice] = (await service.complete(service.parse_call(ROUTE, body)))["choices"]
    assert choice["finish_reason"] == "stop"
    assert len(choice["message"]["reasoning_content"]) > 5
    jsonschema_rs.validate(COLOUR, json.loads(choice["message"]["content"]))
