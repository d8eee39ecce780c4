"""A prompt before its answer (R14)."""

from __future__ import annotations

from typing import Any

import pytest

from engine import Priority, PromptToken
from engine.errors import UnsupportedParameter
from handler.apis.openai.service import OpenAIService
from tests.unit.handler.apis.openai.calls import COMPLETIONS, Complete, complete, complete_streamed
from tests.unit.handler.conftest import PipelineFactory
from tests.usage import usage

NO_PROMPT_LOGPROBS = (
    "the prompt's tokens have no log-probabilities, because the scripted engine returns none"
)
WAYS = [pytest.param(complete, id="whole"), pytest.param(complete_streamed, id="streamed")]


@pytest.mark.parametrize("complete_call", WAYS)
@pytest.mark.parametrize(
    ("prompt", "text"), [("😀 é\n", "😀 é\n"), ([5, 6], "5 6"), ([[5, 6]], "5 6")], ids=str
)
async def test_echo_precedes_the_answer(
    pipeline_of: PipelineFactory, complete_call: Complete, prompt: Any, text: str
) -> None:
    service = OpenAIService(pipeline_of({"pieces": [" said"]}))
    for echo, expected in ((True, f"{text} said"), (False, " said"), (None, " said")):
        response = await complete_call(service, COMPLETIONS, {"prompt": prompt, "echo": echo})
        assert response.choices[0].text == expected
        # R4: it was not generated.
        assert response.usage is not None
        assert response.usage["completion_tokens"] == 1


@pytest.mark.parametrize("complete_call", WAYS)
async def test_stop_string_in_the_echo_is_ignored(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["p one", " stop two"]}))
    body = {"prompt": "stop sto", "echo": True, "stop": ["stop"]}
    (choice,) = (await complete_call(service, COMPLETIONS, body)).choices.values()
    assert choice.text == "stop stop one "
    assert choice.stop_reason == "stop"


@pytest.mark.parametrize("complete_call", WAYS)
async def test_empty_answer_is_only_the_prompt(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    service = OpenAIService(pipeline_of({"pieces": []}))
    body = {"prompt": "é b", "echo": True, "logprobs": 1}
    (choice,) = (await complete_call(service, COMPLETIONS, body)).choices.values()
    assert (choice.text, choice.finish_reason) == ("é b", "stop")
    assert choice.logprobs == {
        "tokens": ["é", " b"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {" b": -1.0}],
        "text_offset": [0, 1],
    }


@pytest.mark.parametrize("complete_call", WAYS)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("logprobs", [None, 1])
async def test_max_tokens_0_returns_only_the_prompt(
    pipeline_of: PipelineFactory, complete_call: Complete, n: int, logprobs: int | None
) -> None:
    # R8: no token is generated, and the call waits for no slot.
    # Log-probabilities of a prompt would need a slot.
    pipeline = pipeline_of(
        {"pieces": [{"error": "was asked"}]}, slots=1, capabilities={"prompt_logprobs": False}
    )
    service = OpenAIService(pipeline)
    slot = await pipeline.engine.reserve(Priority.JOB)
    # A stream has one prompt.
    prompts = ["one two", "é three 😀"] if complete_call is complete else ["é three 😀"]
    body = {"prompt": prompts, "echo": True, "max_tokens": 0, "n": n, "logprobs": logprobs}
    body |= {"suffix": "x"}
    response = await complete_call(service, COMPLETIONS, body)
    slot.release()
    assert [choice.text for choice in response.choices.values()] == [
        prompt for prompt in prompts for _ in range(n)
    ]
    assert {choice.finish_reason for choice in response.choices.values()} == {"length"}
    assert response.usage == usage(sum(len(prompt.split()) for prompt in prompts), 0)
    assert response.warnings == [
        *([NO_PROMPT_LOGPROBS] if logprobs is not None else []),
        "suffix is not supported by scripted and was ignored",
    ]
    for choice in response.choices.values():
        assert (choice.logprobs is None) is (logprobs is None)
        if choice.logprobs is not None:
            assert "".join(choice.logprobs["tokens"]) == choice.text


async def test_max_tokens_0_returns_the_prompts_tokens(pipeline_of: PipelineFactory) -> None:
    # R5, R8
    service = OpenAIService(pipeline_of())
    response = await complete(
        service, COMPLETIONS, {"prompt": [7, 8, 9], "echo": True, "max_tokens": 0}
    )
    assert response.choices[0].text == "7 8 9"
    assert response.usage == usage(3, 0)


async def test_inexact_token_texts_are_replaced_by_the_prompt(
    pipeline_of: PipelineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Halves of characters, or a mark that the engine puts first: offsets would be wrong.
    pipeline = pipeline_of({"pieces": ["x"]}, capabilities={"prompt_logprobs": False})

    async def pieces(text: str) -> list[str]:
        return ["<s>", text]

    monkeypatch.setattr(pipeline.engine, "pieces", pieces)
    body = {"prompt": "é b", "echo": True, "logprobs": 0}
    response = await complete(OpenAIService(pipeline), COMPLETIONS, body)
    assert response.choices[0].logprobs is not None
    assert response.choices[0].logprobs["tokens"] == ["é b", "x"]
    assert response.choices[0].logprobs["text_offset"] == [0, 3]


@pytest.mark.parametrize("complete_call", WAYS)
async def test_echo_has_the_log_probabilities_of_the_prompt(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    # R65
    service = OpenAIService(pipeline_of({"pieces": [" x"]}))
    body = {"prompt": "one two three", "echo": True, "logprobs": 2}
    response = await complete_call(service, COMPLETIONS, body)
    assert response.choices[0].logprobs == {
        "tokens": ["one", " two", " three", " x"],
        "token_logprobs": [None, -1.0, -0.5, -1.0],
        "top_logprobs": [None, {" two": -1.0}, {" three": -0.5}, {" x": -1.0}],
        "text_offset": [0, 3, 7, 13],
    }
    assert not response.warnings


@pytest.mark.parametrize("complete_call", WAYS)
async def test_engine_without_prompt_log_probabilities_warns(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    # R65
    pipeline = pipeline_of({"pieces": [" x"]}, capabilities={"prompt_logprobs": False})
    body = {"prompt": "one two", "echo": True, "logprobs": 2}
    response = await complete_call(OpenAIService(pipeline), COMPLETIONS, body)
    assert response.choices[0].logprobs is not None
    assert response.choices[0].logprobs["token_logprobs"] == [None, None, -1.0]
    assert response.warnings == [NO_PROMPT_LOGPROBS]


@pytest.mark.parametrize("complete_call", WAYS)
async def test_engine_that_fails_to_compute_log_probabilities_warns(
    pipeline_of: PipelineFactory, complete_call: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R65
    pipeline = pipeline_of({"pieces": [" x"]})

    async def compute(*args: object) -> list[list[PromptToken]]:
        raise UnsupportedParameter("echo: there is no memory", param="echo")

    monkeypatch.setattr(pipeline.engine, "compute", compute)
    body = {"prompt": "one two", "echo": True, "logprobs": 2}
    echoed = await complete_call(OpenAIService(pipeline), COMPLETIONS, body)
    assert echoed.choices[0].logprobs is not None
    assert echoed.choices[0].logprobs["tokens"] == ["one", " two", " x"]
    assert echoed.choices[0].logprobs["token_logprobs"] == [None, None, -1.0]
    assert echoed.warnings == ["the prompt's tokens have no log-probabilities: there is no memory"]
    service = OpenAIService(pipeline)
    response = await complete(service, COMPLETIONS, {"prompt": "one two", "prompt_logprobs": 1})
    assert response.warnings == ["prompt_logprobs was ignored: there is no memory"]
