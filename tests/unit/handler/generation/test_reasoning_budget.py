"""The limit of a model's thinking: exact, on jobs and chats, streamed or not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from engine import Chat, ChatImage, Message
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.errors import InvalidRequest
from handler.generation.reasoning_budget import _continue_prompt
from handler.input.reasoning_budget import BUDGET_KEYS, read_reasoning_budget
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from tests.unit.handler.apis.openai import calls
from tests.unit.handler.conftest import PipelineFactory

THOUGHT = [f" w{number}" for number in range(50)]
MESSAGES = [{"role": "user", "content": "Where?"}]
# The second run continues after the closing mark.
ANSWERS: list[dict[str, Any]] = [
    {"when": r"</think>\s*$", "pieces": ["It", " is", " Oslo."]},
    {"pieces": ["<think>", *THOUGHT, "</think>", "\n\n", "Rome."], "delay_ms": 1},
]


@pytest.fixture
def thinker(pipeline_of: PipelineFactory) -> Pipeline:
    return pipeline_of(*ANSWERS)


async def run_job(pipeline: Pipeline, *, stream: bool = False, **params: Any) -> dict[str, Any]:
    job_input = {"messages": MESSAGES, "stream": stream, "enable_validation": False}
    job = {"id": "j", "input": {**job_input, "sampling_params": params}}
    output = await JobHandler(pipeline).run(job)
    assert "error" not in output, output
    assert isinstance(output, dict)
    return output


@pytest.mark.parametrize(
    ("params", "budget"),
    [
        ({}, None),
        ({"reasoning_budget": None}, None),
        ({"reasoning_budget": -1}, None),
        ({"thinking_token_budget": 7}, 7),
        ({"max_thinking_tokens": 7.0}, 7),
        ({"reasoning_budget": 0, "thinking_token_budget": 0}, 0),
    ],
)
def test_budget_is_read_by_every_name(params: dict[str, Any], budget: int | None) -> None:
    assert read_reasoning_budget(params) == budget


@pytest.mark.parametrize("name", sorted(BUDGET_KEYS))
@pytest.mark.parametrize("value", [-2, 1.5, "7", True, [], 2**31])
def test_budget_that_is_no_number_of_tokens_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_reasoning_budget({name: value}, "input.")
    assert raised.value.message.startswith(f"input.{name} must be a number of tokens, or -1")


def test_budgets_that_differ_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="thinking_token_budget must not come with reasoning"):
        read_reasoning_budget({"reasoning_budget": 1, "thinking_token_budget": 2})


@pytest.mark.parametrize("budget", [1, 2, 10, 51])
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_ends_at_its_budget(budget: int, stream: bool, thinker: Pipeline) -> None:
    output = await run_job(thinker, stream=stream, reasoning_budget=budget, max_tokens=500)
    [choice] = output["choices"]
    # The opening mark is one of the tokens.
    assert choice["reasoning"] if budget > 1 else "reasoning" not in choice
    assert choice.get("reasoning", "") == "".join(THOUGHT[: budget - 1]) + ("\n" * (budget > 1))
    assert choice["text"] == "It is Oslo."
    if stream:
        raw = "<think>" + "".join(THOUGHT[: budget - 1]) + "\n</think>\n\nIt is Oslo."
        assert "".join(choice["deltas"]) == raw
    assert choice["finish_reason"] == "stop"
    usage = output["usage"]
    assert usage["input"] == (await run_job(thinker, max_tokens=500))["usage"]["input"]
    assert usage["output"] >= 3 + budget
    assert usage["total"] == usage["input"] + usage["output"]


@pytest.mark.parametrize("budget", [52, 1000, -1, None])
async def test_shorter_reasoning_is_left_as_it_is(budget: int | None, thinker: Pipeline) -> None:
    output = await run_job(thinker, reasoning_budget=budget, max_tokens=500)
    assert output["choices"][0]["text"] == "Rome."
    assert output["choices"][0]["reasoning"] == "".join(THOUGHT)


async def test_answer_without_reasoning_is_left_as_it_is(pipeline_of: PipelineFactory) -> None:
    words = [f"w{number} " for number in range(40)]
    output = await run_job(pipeline_of({"pieces": words}), reasoning_budget=3, max_tokens=500)
    assert output["choices"][0]["text"] == "".join(words)


async def test_reasoning_that_the_prompt_opens_has_the_same_budget(
    pipeline_of: PipelineFactory,
) -> None:
    pieces = {"pieces": [*THOUGHT, "</think>", "Rome."], "delay_ms": 1}
    able = {"starts_in_reasoning": True}
    for budget, reasoning in ((0, ""), (3, "".join(THOUGHT[:3]) + "\n")):
        pipeline = pipeline_of(ANSWERS[0], pieces, capabilities=able)
        output = await run_job(pipeline, thinking_token_budget=budget, max_tokens=500)
        assert output["choices"][0].get("reasoning", "") == reasoning
        assert output["choices"][0]["text"] == "It is Oslo."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "switch",
    [
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"thinking": False}},
    ],
)
async def test_template_that_always_opens_the_reasoning_is_closed_where_it_is_off(
    pipeline_of: PipelineFactory, switch: dict[str, Any], stream: bool
) -> None:
    pieces = {"pieces": [*THOUGHT, "</think>", "Rome."], "delay_ms": 1}
    pipeline = pipeline_of(ANSWERS[0], pieces, capabilities={"starts_in_reasoning": True})
    for extra, content in ((switch, "It is Oslo."), ({}, "Rome.")):
        body = {"messages": MESSAGES, "stream": stream, **extra}
        complete = calls.complete_streamed if stream else calls.complete
        response = await complete(OpenAIService(pipeline), calls.CHAT, body)
        assert response.choices[0].text == content


async def test_limit_of_the_answer_includes_the_reasoning(thinker: Pipeline) -> None:
    output = await run_job(thinker, reasoning_budget=10, max_tokens=12)
    [choice] = output["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("It", "length")
    output = await run_job(thinker, reasoning_budget=10, max_tokens=11)
    [choice] = output["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")


async def test_budget_limits_streamed_and_complete_chats(thinker: Pipeline) -> None:
    service = OpenAIService(thinker)
    body = {"messages": MESSAGES, "thinking_token_budget": 5}
    full = await service.complete(service.parse_call("/v1/chat/completions", body))
    message = full["choices"][0]["message"]
    assert message["content"] == "It is Oslo."
    assert message["reasoning_content"] == "".join(THOUGHT[:4]) + "\n"
    call = service.parse_call("/v1/chat/completions", body | {"stream": True})
    async with await service.open_stream(call) as generation:
        blocks = b"".join([block async for block in stream_events(call, generation)])
    lines = [line.removeprefix(b"data: ") for line in blocks.split(b"\n\n") if line]
    deltas = [orjson.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is Oslo."
    assert (
        "".join(delta.get("reasoning_content", "") for delta in deltas)
        == (message["reasoning_content"])
    )


async def test_engine_without_a_tokenizer_warns(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of(*ANSWERS, capabilities={"tokenize": False})
    output = await run_job(pipeline, reasoning_budget=3, max_tokens=500)
    assert output["choices"][0]["text"] == "Rome."
    assert output["warnings"] == [
        "the budget of thinking tokens was ignored: it needs a text and a tokenizer"
    ]


async def test_answer_that_ends_with_its_reasoning_warns_without_a_tokenizer(
    pipeline_of: PipelineFactory,
) -> None:
    # RKLLM 1.3.0 swallows the closing mark.
    answer = {"pieces": ["<think>", *THOUGHT]}
    output = await run_job(pipeline_of(answer, capabilities={"tokenize": False}), max_tokens=500)
    assert output["choices"][0]["text"] == ""
    assert output["warnings"] == [
        "the answer ended with the model's reasoning, and the engine cannot continue it without a "
        "tokenizer beside the model"
    ]
    # One that a limit has cut is as it was asked for.
    output = await run_job(pipeline_of(answer, capabilities={"tokenize": False}), max_tokens=9)
    assert "warnings" not in output
    output = await run_job(pipeline_of(answer), max_tokens=500)
    assert "warnings" not in output


async def test_slots_are_free_after_the_second_run(thinker: Pipeline) -> None:
    for _ in range(5):
        await run_job(thinker, reasoning_budget=5, max_tokens=500)
    assert thinker.engine.running == 0


def test_output_of_a_chat_is_continued_as_a_chat() -> None:
    question = Message("user", "a", images=(ChatImage("A"),))
    chat = Chat((question,))
    assert _continue_prompt("text", " out") == "text out"
    assert _continue_prompt(chat, "out") == Chat(
        (question, Message("assistant", "out")), continues_last=True
    )
    continued = Chat((question, Message("assistant", "in ")), continues_last=True)
    assert _continue_prompt(continued, "out") == Chat(
        (question, Message("assistant", "in out")), continues_last=True
    )
