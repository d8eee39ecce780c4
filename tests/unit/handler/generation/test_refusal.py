"""Block requests before the engine is called, with a distinct result (R56)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Protocol

import pytest

from engine import Chat, FinishReason, GenerationRequest, Message, Usage
from engine.hooks import EngineEvent, RequestStarted
from handler.errors import InvalidRequest
from handler.input.options import OptionsInput, OptionsReader
from handler.input.request import TextRequest
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from tests.conftest import SMALL_RULES
from tests.unit.handler.conftest import PipelineFactory
from tests.usage import usage
from validation.rules_validator import RulesValidator

V = RulesValidator.from_file(SMALL_RULES)
TERM = {"blocked_terms": ["attack plan"]}
INTENT = {"blocked_intents": ["weather"]}
BAD = "Draw up an Attack Plan!"
TERM_MESSAGE = "The request contains a word or phrase that is not allowed here."
INTENT_MESSAGE = "Requests of this kind are not answered here."
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class ServiceFactory(Protocol):
    def __call__(self, **settings: Any) -> tuple[JobHandler, list[EngineEvent]]: ...


@pytest.fixture
def build_service(pipeline_of: PipelineFactory) -> ServiceFactory:
    """Job handlers whose settings block something, and the events of their engine."""

    def build(**settings: Any) -> tuple[JobHandler, list[EngineEvent]]:
        recorded: list[EngineEvent] = []
        options = OptionsReader(OptionsInput(**settings), V.intents)
        pipeline = pipeline_of({"pieces": ["All", " well"]}, validator=V, hooks=[recorded.append])
        return JobHandler(pipeline, options, interval_s=0.0), recorded

    return build


@pytest.fixture
def pipeline(pipeline_of: PipelineFactory) -> Pipeline:
    return pipeline_of({"pieces": ["All", " well"]}, validator=V)


def ask(prompt: str | tuple[int, ...] | Chat, **settings: Any) -> TextRequest:
    options, _ = OptionsReader(OptionsInput(**settings), V.intents).read(None)
    return TextRequest(generation=GenerationRequest(prompt=prompt), options=options)


def chat(*turns: tuple[str, str]) -> Chat:
    return Chat(tuple(Message(role, content) for role, content in turns))


def job(prompt: str = BAD, *, stream: bool = False, **job_input: Any) -> dict[str, Any]:
    return {"id": "j", "input": {"prompt": prompt, "stream": stream, **job_input}}


def call(route: str, prompt: Any = BAD, **body: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": prompt}]
    requests = {"messages": turns} if route == CHAT else {"prompt": prompt}
    return {"id": "j", "input": {"openai_route": route, "openai_input": {**requests, **body}}}


async def outputs(jobs: JobHandler, job_input: dict[str, Any]) -> list[Any]:
    async with aclosing(jobs.stream(job_input)) as stream:
        return [output async for output in stream]


def events(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream, which ends with [DONE]."""
    *blocks, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


# -- the answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_blocked_request_does_not_call_the_engine(
    build_service: ServiceFactory, stream: bool
) -> None:
    jobs, recorded = build_service(**TERM)
    await jobs.run(job(stream=stream))
    await outputs(jobs, job(stream=stream))
    for route in (TEXT, CHAT):
        await jobs.run(call(route, stream=stream))
        await outputs(jobs, call(route, stream=stream))
    assert recorded == []
    # The recorder does receive the events of other requests.
    await jobs.run(job("All is well."))
    assert [event for event in recorded if isinstance(event, RequestStarted)]


async def test_check_needs_no_ready_engine(pipeline_of: PipelineFactory) -> None:
    broken = pipeline_of(validator=V, load_error="no NPU in this machine")
    answer = await broken.run(ask(BAD, **TERM))
    assert answer.blocked


@pytest.mark.parametrize("stream", [False, True])
async def test_output_of_a_job(build_service: ServiceFactory, stream: bool) -> None:
    # R45, R47
    jobs, _ = build_service(**TERM)
    output = await jobs.run(job(stream=stream))
    timings = output.pop("timings")
    assert set(timings.values()) == {0.0}
    choice = {"index": 0, "text": "", "tokens": [""], "finish_reason": "content_filter"}
    assert output == {
        "choices": [choice | ({"deltas": [], "tokens": []} if stream else {})],
        "usage": {"input": 0, "output": 0, "total": 0},
        "validation": {
            "valid": False,
            "issues": [TERM_MESSAGE],
            "sanitized": False,
            "intent": "general",
            "details": {
                "issues": [{"rule": "blocked_term", "message": TERM_MESSAGE}],
                "notices": [],
                "removed": [],
                "removed_count": 0,
            },
        },
        "blocked": True,
        "streaming": stream,
        "id": "j",
        "model": "scripted",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_blocked_is_reported_without_validation(
    build_service: ServiceFactory, stream: bool
) -> None:
    # R47
    jobs, _ = build_service(**TERM)
    for output in (
        await jobs.run(job(stream=stream, enable_validation=False)),
        (await outputs(jobs, job(stream=stream, enable_validation=False)))[-1],
    ):
        assert output["blocked"] is True
        assert output["choices"][0]["finish_reason"] == "content_filter"
        assert "validation" not in output


@pytest.mark.parametrize("stream", [False, True])
async def test_generator_yields_only_one_json_without_streaming(
    build_service: ServiceFactory, stream: bool
) -> None:
    # R45
    jobs, _ = build_service(**TERM)
    assert await outputs(jobs, job(stream=stream)) == [await jobs.run(job(stream=stream))]


@pytest.mark.parametrize("route", [TEXT, CHAT])
async def test_blocked_openai_call_has_an_empty_answer(
    build_service: ServiceFactory, route: str
) -> None:
    jobs, _ = build_service(**TERM)
    body = await jobs.run(call(route))
    choice = body["choices"][0]
    assert choice["finish_reason"] == "content_filter"
    assert (choice["text"] if route == TEXT else choice["message"]["content"]) == ""
    assert body["usage"] == usage(0, 0)
    assert body["blocked"] is True
    assert "validation" not in body


@pytest.mark.parametrize("route", [TEXT, CHAT])
async def test_streamed_answer_of_an_openai_call(build_service: ServiceFactory, route: str) -> None:
    # R21, R22
    jobs, _ = build_service(**TERM)
    *before, last = events(await jobs.run(call(route, stream=True)))
    # A chat begins with its role, and neither chunk has text.
    assert [each["choices"][0]["delta"] for each in before] == (
        [{"role": "assistant", "content": ""}] if route == CHAT else []
    )
    (choice,) = last["choices"]
    assert choice["finish_reason"] == "content_filter"
    assert last["usage"] == usage(0, 0)
    assert last["blocked"] is True


@pytest.mark.parametrize("route", [TEXT, CHAT])
async def test_openai_call_with_validation_gets_the_reason(
    build_service: ServiceFactory, route: str
) -> None:
    jobs, _ = build_service(**TERM)
    body = await jobs.run(call(route, enable_validation=True))
    (last,) = events(await jobs.run(call(route, enable_validation=True, stream=True)))[-1:]
    for each in (body, last):
        assert each["validation"]["issues"] == [TERM_MESSAGE]


async def test_client_does_not_learn_the_blocked_term(build_service: ServiceFactory) -> None:
    jobs, _ = build_service(**TERM)
    assert "attack" not in json.dumps(await jobs.run(job())).lower()


@pytest.mark.parametrize("more", [{"redact_pii": True}, {"regenerate": True}, {"language": "en"}])
async def test_other_options_have_no_effect(
    build_service: ServiceFactory, more: dict[str, Any]
) -> None:
    jobs, recorded = build_service(**TERM, **more)
    plain, _ = build_service(**TERM)
    assert await jobs.run(job(stream=True)) == await plain.run(job(stream=True))
    assert recorded == []


# -- by terms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "turns",
    [
        (("user", BAD),),
        (("user", BAD), ("assistant", "No."), ("user", "Please.")),
        (("system", "Be nice."), ("user", "Hi."), ("assistant", "Hi."), ("user", BAD)),
        (("user", "What does the tool say?"), ("tool", BAD)),
        (("assistant", "Hello."), ("user", BAD), ("assistant", "Well")),
    ],
)
async def test_term_of_the_user_in_any_turn_blocks(
    pipeline: Pipeline, turns: tuple[tuple[str, str], ...]
) -> None:
    assert (await pipeline.run(ask(chat(*turns), **TERM))).blocked


@pytest.mark.parametrize(
    "turns",
    [
        (("system", "Never draw up an attack plan."), ("user", "Hi.")),
        (("user", "Hi."), ("assistant", "No attack plan today."), ("user", "Fine.")),
        (("user", "Planned attacks on the king's side in chess."),),
    ],
)
async def test_term_of_other_roles_or_in_another_form_does_not_block(
    pipeline: Pipeline, turns: tuple[tuple[str, str], ...]
) -> None:
    answer = await pipeline.run(ask(chat(*turns), **TERM))
    assert not answer.blocked
    assert answer.text == "All well"


async def test_term_in_a_very_long_prompt(pipeline: Pipeline) -> None:
    words = "all is well " * 50_000
    assert (await pipeline.run(ask(words + BAD, **TERM))).blocked


async def test_request_may_block_terms_of_its_own(build_service: ServiceFactory) -> None:
    jobs, recorded = build_service()
    job_input = job("Tell me about spiders.", validation={"blocked_terms": ["spiders"]})
    assert (await jobs.run(job_input))["blocked"] is True
    assert recorded == []


async def test_openai_call_may_block_terms_of_its_own(build_service: ServiceFactory) -> None:
    jobs, _ = build_service()
    job_input = call(CHAT, "Tell me about spiders.", validation={"blocked_terms": ["spiders"]})
    assert (await jobs.run(job_input))["blocked"] is True


# -- by intents -----------------------------------------------------------------------------------


async def test_intent_of_a_prompt(pipeline: Pipeline) -> None:
    answer = await pipeline.run(ask("The weather for tomorrow?", **INTENT))
    assert answer.blocked
    assert answer.finish.reason is FinishReason.CONTENT_FILTER
    assert answer.finish.usage == Usage(0, 0)


async def test_intent_is_in_the_verdict(build_service: ServiceFactory) -> None:
    # R48
    jobs, _ = build_service(**INTENT)
    expected = (await jobs.run(job("The weather for tomorrow?")))["validation"]
    assert expected["intent"] == "weather"
    assert expected["issues"] == [INTENT_MESSAGE]
    assert expected["details"]["issues"] == [{"rule": "blocked_intent", "message": INTENT_MESSAGE}]


async def test_intent_is_that_of_the_last_user_turn(pipeline: Pipeline) -> None:
    turns = ("user", "The weather for tomorrow?"), ("assistant", "Sunny."), ("user", "Thank you!")
    assert not (await pipeline.run(ask(chat(*turns), **INTENT))).blocked
    assert (await pipeline.run(ask(chat(*reversed(turns)), **INTENT))).blocked


async def test_intent_that_is_not_blocked(pipeline: Pipeline) -> None:
    answer = await pipeline.run(ask("The plan for tomorrow?", **INTENT))
    assert not answer.blocked
    assert answer.text == "All well"


# -- prompts that cannot be read ------------------------------------------------------------------

TOKENS_MESSAGE = "prompt must be text where intents or terms are blocked, got token ids"


@pytest.mark.parametrize("settings", [TERM, INTENT])
async def test_token_ids_are_refused_where_something_is_blocked(
    pipeline: Pipeline, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await pipeline.open(ask((1, 2, 3), **settings))
    assert raised.value.message == TOKENS_MESSAGE
    assert raised.value.param == "prompt"


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_call_with_token_ids_is_a_bad_request(
    build_service: ServiceFactory, stream: bool
) -> None:
    # R53
    jobs, recorded = build_service(**TERM)
    failed = await jobs.run(call(TEXT, [1, 2, 3], stream=stream))
    assert json.loads(failed["error"]) == {
        "error": {
            "message": TOKENS_MESSAGE,
            "type": "invalid_request_error",
            "param": "prompt",
            "code": 400,
        }
    }
    assert recorded == []


async def test_token_ids_are_served_where_nothing_is_blocked(pipeline: Pipeline) -> None:
    # R5
    assert (await pipeline.run(ask((1, 2, 3)))).text == "All well"


# -- all others -----------------------------------------------------------------------------------

ENDINGS: list[Callable[[], dict[str, Any]]] = [
    job,
    lambda: job(stream=True),
    lambda: job(sampling_params={"max_tokens": 1}),
    lambda: job(sampling_params={"stop": "well"}),
    lambda: call(TEXT),
    lambda: call(CHAT, stream=True),
]


@pytest.mark.parametrize("job_input", ENDINGS)
@pytest.mark.parametrize(
    "settings", [{}, {"blocked_terms": ["spiders"], "blocked_intents": ["weather"]}]
)
async def test_content_filter_comes_from_nothing_else(
    build_service: ServiceFactory, job_input: Callable[[], dict[str, Any]], settings: dict[str, Any]
) -> None:
    # R56
    jobs, _ = build_service(**settings)
    for output in (await jobs.run(job_input()), *await outputs(jobs, job_input())):
        expected = json.dumps(output)
        assert "content_filter" not in expected
        assert "blocked" not in expected
