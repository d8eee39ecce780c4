"""The best of several candidates: by the mean log-probability of their tokens (R15)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.json_object import JsonObject
from engine import FinishReason, TokenLogprob, Usage
from engine.output import Finish
from engine.reply.reply import Reply
from handler.apis.core.best_of import build_requests
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.completions import COMPLETIONS as SHAPE
from handler.apis.openai.service import OpenAIService
from handler.generation.completed_answer import CompletedAnswer
from tests.unit.handler.apis.openai.calls import COMPLETIONS, complete
from tests.unit.handler.conftest import ExclamationValidator, PipelineFactory, RecordingGenerate
from tests.usage import usage

# By mean: two, one, three. By sum: three, one, two.
ANSWERS: list[dict[str, Any]] = [
    {"when": "try 1$", "pieces": [{"text": text, "logprob": -1.0} for text in ("o", "ne")]},
    {"when": "try 2$", "pieces": [{"text": text, "logprob": -0.5} for text in (*"two!!", "!")]},
    {"when": "try 3$", "pieces": [{"text": "three", "logprob": -1.4}]},
]


def service_of(pipeline_of: PipelineFactory, *answers: dict[str, Any]) -> OpenAIService:
    pipeline = pipeline_of(*(answers or ANSWERS), validator=ExclamationValidator(), slots=1)
    pipeline.engine.generate = RecordingGenerate(pipeline.engine)  # type: ignore[method-assign]
    return OpenAIService(pipeline)


@pytest.mark.parametrize(
    ("penalty", "order"),
    [
        ({}, ["two!!!", "one", "three"]),
        ({"length_penalty": None}, ["two!!!", "one", "three"]),
        ({"length_penalty": 1.0}, ["two!!!", "one", "three"]),
        ({"length_penalty": 0}, ["three", "one", "two!!!"]),
        ({"length_penalty": 2.5}, ["two!!!", "one", "three"]),
        ({"length_penalty": -1.0}, ["three", "one", "two!!!"]),
        # No power of any length may end the call.
        ({"length_penalty": 1e308}, ["two!!!", "one", "three"]),
        ({"length_penalty": -1e308}, ["three", "one", "two!!!"]),
    ],
    ids=str,
)
async def test_select_best_returns_the_likeliest_first(
    pipeline_of: PipelineFactory, penalty: dict[str, Any], order: list[str]
) -> None:
    for n in (1, 2, 3):
        body = {"prompt": "hi", "n": n, "best_of": 3, **penalty}
        response = await complete(service_of(pipeline_of), COMPLETIONS, body)
        if n == 3:
            # There is nothing to choose from.
            assert [each.text for each in response.choices.values()] == ["one", "two!!!", "three"]
        else:
            assert [each.text for each in response.choices.values()] == order[:n]
        # R4, R5: the usage includes the candidates that were not selected.
        assert response.usage == usage(3, 9)
        # Logprobs were used for the ranking but not requested.
        assert all(each.logprobs is None for each in response.choices.values())
        assert response.warnings == []


async def test_logprobs_are_those_of_the_best_candidate(
    pipeline_of: PipelineFactory,
) -> None:
    body = {"prompt": "hi", "best_of": 3, "logprobs": 1}
    (choice,) = (await complete(service_of(pipeline_of), COMPLETIONS, body)).choices.values()
    assert choice.logprobs is not None
    assert choice.logprobs["tokens"] == [*"two!!", "!"]
    assert choice.logprobs["token_logprobs"] == [-0.5] * 6


async def test_best_candidate_is_selected_per_prompt(pipeline_of: PipelineFactory) -> None:
    answers = [
        {"when": f"try {number}$", "pieces": [{"text": f"{number}", "logprob": logprob}]}
        for number, logprob in enumerate([-2.0, -1.0, -0.5, -3.0, 0.0, -0.1], 1)
    ]
    body = {"prompt": ["a", "b"], "best_of": 3, "n": 2, "echo": True}
    response = await complete(service_of(pipeline_of, *answers), COMPLETIONS, body)
    assert [each.text for each in response.choices.values()] == ["a3", "a2", "b5", "b6"]
    assert response.usage == usage(6, 6)


async def test_verdict_is_that_of_the_best_candidate(pipeline_of: PipelineFactory) -> None:
    # R47
    service = service_of(pipeline_of)
    body = {"prompt": "hi", "best_of": 3, "enable_validation": True}
    full = await service.complete(service.parse_call(COMPLETIONS, body))
    assert full["choices"][0]["text"] == "two"
    assert full["validation"]["issues"] == ["somebody shouted"]
    several = await service_of(pipeline_of).complete(
        service.parse_call(COMPLETIONS, body | {"n": 2})
    )
    assert "validation" not in several
    assert [choice["validation"]["valid"] for choice in several["choices"]] == [False, True]


def answer(text: str, *logprobs: float, warnings: tuple[str, ...] = ()) -> CompletedAnswer:
    return CompletedAnswer(
        id="x",
        model="tiny",
        created=0,
        text=text,
        reply=Reply(text=text),
        deltas=(text,),
        finish=Finish(reason=FinishReason.STOP, usage=Usage(1, len(logprobs))),
        streaming=False,
        logprobs=tuple(TokenLogprob("x", logprob, offset=0) for logprob in logprobs),
        warnings=warnings,
    )


def best(*answers: CompletedAnswer, **body: Any) -> JsonObject:
    call = OpenAICall(SHAPE, {"prompt": "hi", "best_of": len(answers), **body}, "tiny")
    return call.encode_response(*answers)


def test_candidate_without_tokens_ranks_last_and_a_certain_one_first() -> None:
    response = best(answer(""), answer("likely", -0.001), answer("certain", 0.0, 0.0), n=2)
    assert [choice["text"] for choice in response["choices"]] == ["certain", "likely"]


async def test_engine_without_logprobs_causes_one_warning(
    pipeline_of: PipelineFactory, caplog: pytest.LogCaptureFixture
) -> None:
    # R16: the warning is about what was requested: the ranking, not logprobs.
    service = OpenAIService(pipeline_of({"pieces": ["x"]}, capabilities={"max_logprobs": 0}))
    ranked = "best_of was not ranked, because the engine returns no logprobs"
    response = await complete(service, COMPLETIONS, {"prompt": "hi", "best_of": 2})
    assert (response.choices[0].text, response.warnings) == ("x", [ranked])
    assert all(record.getMessage().endswith(ranked) for record in caplog.records)
    assert caplog.records

    both = await complete(service, COMPLETIONS, {"prompt": "hi", "best_of": 2, "logprobs": 1})
    unknown = "logprobs is not supported by the scripted engine and was ignored"
    assert both.warnings == [ranked, unknown]
    assert (await complete(service, COMPLETIONS, {"prompt": "hi", "n": 2})).warnings == []


def test_warnings_of_all_candidates_are_returned_once() -> None:
    # R16
    response = best(answer("a", warnings=("one",)), answer("b", warnings=("one", "two")))
    assert response["warnings"] == ["one", "two"]
    assert "warnings" not in best(answer("a"), answer("b"), n=2)


def test_redacted_candidate_is_ranked_by_its_hidden_logprobs() -> None:
    hidden = replace(answer("redacted"), hidden_logprobs=(-0.1, -0.1))
    response = best(answer("likely", -0.2), hidden, answer("unlikely", -3.0))
    assert response["choices"][0]["text"] == "redacted"


async def test_streamed_call_warns_about_best_of(pipeline_of: PipelineFactory) -> None:
    # R65
    service = service_of(pipeline_of)
    body = {"prompt": "hi", "best_of": 3, "n": 2, "stream": True}
    call = service.parse_call(COMPLETIONS, body)
    assert len(build_requests(call.parsed)) == 2
    assert "best_of was ignored, because the answer is streamed" in call.parsed.warnings
