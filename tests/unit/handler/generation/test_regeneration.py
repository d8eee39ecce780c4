"""Regenerate an answer if its verdict recommends it: when, how often, and which is returned."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from engine.backends import scripted
from engine.backends.base import RunResult
from engine.reply.reply_format import ReplyFormat
from handler.input.constraints import Constraint
from handler.input.options import OptionsInput, OptionsReader
from handler.input.request import TextRequest, parse_job
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from tests.unit.handler.conftest import ExclamationValidator, PipelineFactory, RecordingGenerate
from validation import NO_OPTIONS, Issue, Options, Subject, Validator, Verdict
from validation.rules import DEFAULT_RULES, load_rules
from validation.rules_validator import RulesValidator

LOUD, QUIET = ["He", "llo!"], ["He", "llo"]
SHOUTED = {"rule": "shouting", "message": "somebody shouted"}


class RegenerationFactory(Protocol):
    def __call__(
        self, *recorder: list[Any], validator: Validator | None = None, **config: Any
    ) -> tuple[Pipeline, RecordingGenerate]: ...


@pytest.fixture
def bench(pipeline_of: PipelineFactory, monkeypatch: pytest.MonkeyPatch) -> RegenerationFactory:
    """Builds a pipeline from the pieces of each attempt, and a recorder of its requests."""

    def build(
        *attempts: list[Any], validator: Validator | None = None, **config: Any
    ) -> tuple[Pipeline, RecordingGenerate]:
        answers = [
            {"when": f"try {number}$", "pieces": pieces}
            for number, pieces in enumerate(attempts, start=1)
        ]
        pipeline = pipeline_of(*answers, validator=validator or ExclamationValidator(), **config)
        recorder = RecordingGenerate(pipeline.engine)
        monkeypatch.setattr(pipeline.engine, "generate", recorder)
        return pipeline, recorder

    return build


def job(*, regenerate: bool | None = True, **job_input: Any) -> dict[str, Any]:
    return {
        "id": "j",
        "input": {"prompt": "greet me", "validation": {"regenerate": regenerate}, **job_input},
    }


def request(*, timeout_s: float | None = None, **sampling: Any) -> TextRequest:
    """Return a job that may be regenerated, with its own timeout."""
    parsed = parse_job(job(sampling_params=sampling))
    assert isinstance(parsed, TextRequest)
    generation = replace(parsed.generation, timeout_s=timeout_s)
    return replace(parsed, generation=generation)


async def outputs(jobs: JobHandler, job_input: dict[str, Any]) -> list[Any]:
    async with aclosing(jobs.stream(job_input)) as stream:
        return [output async for output in stream]


class CountingValidator(ExclamationValidator):
    """Finds as many things wrong as there are exclamation marks; all of them ask for a retry."""

    def validate(self, subject: Subject, options: Options) -> Verdict:
        issues = (Issue("shouting", "somebody shouted"),) * subject.text.count("!")
        return Verdict(text=subject.text, intent="general", issues=issues, retry=bool(issues))


# -- whether --------------------------------------------------------------------------------------


async def test_answer_with_a_recommended_retry_is_regenerated(bench: RegenerationFactory) -> None:
    pipeline, recorder = bench(LOUD, QUIET)
    answer = await pipeline.run(request())
    assert len(recorder.requests) == 2
    assert answer.text == "Hello"
    assert answer.verdict is not None
    assert answer.verdict.valid


async def test_answer_that_is_good_is_not(bench: RegenerationFactory) -> None:
    pipeline, recorder = bench(QUIET, LOUD)
    answer = await pipeline.run(request())
    assert len(recorder.requests) == 1
    assert answer.discarded is None


async def test_answer_whose_verdict_does_not_ask_is_not(bench: RegenerationFactory) -> None:
    class Resigned(ExclamationValidator):
        def validate(self, subject: Subject, options: Options) -> Verdict:
            issues = (Issue("too_long", "the answer is too long"),)
            return Verdict(text=subject.text, intent="general", issues=issues)

    pipeline, recorder = bench(LOUD, QUIET, validator=Resigned())
    await pipeline.run(request())
    assert len(recorder.requests) == 1


@pytest.mark.parametrize("regenerate", [False, None])
async def test_regeneration_is_off_by_default(
    bench: RegenerationFactory, regenerate: bool | None
) -> None:
    pipeline, recorder = bench(LOUD, QUIET)
    output = await JobHandler(pipeline).run(job(regenerate=regenerate))
    assert len(recorder.requests) == 1
    assert "regenerated" not in output


@pytest.mark.parametrize(("regenerate", "count"), [(None, 2), (True, 2), (False, 1)])
async def test_setting_applies_without_a_request_option(
    bench: RegenerationFactory, regenerate: bool | None, count: int
) -> None:
    pipeline, recorder = bench(LOUD, QUIET)
    options = OptionsReader(OptionsInput(regenerate=True))
    await JobHandler(pipeline, options).run(job(regenerate=regenerate))
    assert len(recorder.requests) == count


async def test_answer_that_has_left_its_grammar_is_regenerated(
    bench: RegenerationFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted, "RunResult", partial(RunResult, grammar_break=2))
    pipeline, recorder = bench(
        ["no"], ['{"a": 1}'], validator=RulesValidator.from_file(DEFAULT_RULES)
    )
    constraint = Constraint(param="json_schema", json_schema={"type": "object"})
    answer = await pipeline.run(
        replace(request(), options=NO_OPTIONS, held_constraint=constraint, validation=False)
    )
    assert len(recorder.requests) == 2
    assert answer.text == '{"a": 1}'
    [warning] = answer.warnings
    assert "(its library could not follow the grammar after 2 characters)" in warning


async def test_grammar_that_cannot_be_checked_is_a_warning(
    bench: RegenerationFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted, "RunResult", partial(RunResult, grammar_break=2))
    pipeline, recorder = bench(QUIET, LOUD)
    constraint = Constraint(param="grammar", grammar="start: /a+/")
    answer = await pipeline.run(replace(request(), held_constraint=constraint))
    assert len(recorder.requests) == 1
    [warning] = answer.warnings
    assert "after 2 characters" in warning
    assert warning.endswith("cannot be checked against it")


async def test_strict_call_that_does_not_fit_is_a_warning(bench: RegenerationFactory) -> None:
    text = '<tool_response>\n{"name": "f", "arguments": {"a": "b"}}'
    pipeline, _ = bench([text], validator=RulesValidator.from_file(DEFAULT_RULES))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    answer = await pipeline.run(
        replace(
            request(),
            options=NO_OPTIONS,
            held_constraint=Constraint(param="tools", calls={"f": schema}),
            reply_format=ReplyFormat(functions={"f": schema}),
            validation=False,
        )
    )
    [warning] = answer.warnings
    assert "(the answer has one that does not fit)" in warning
    assert answer.verdict is not None
    assert [issue.rule for issue in answer.verdict.issues] == ["schema_mismatch"]


async def test_no_regeneration_without_validation(bench: RegenerationFactory) -> None:
    pipeline, recorder = bench(LOUD, QUIET)
    await JobHandler(pipeline).run(job(enable_validation=False))
    assert len(recorder.requests) == 1


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"top_p": 0}, {"top_k": 1}])
async def test_greedy_answer_is_not_regenerated(
    bench: RegenerationFactory, greedy: dict[str, Any]
) -> None:
    pipeline, recorder = bench(LOUD, QUIET)
    answer = await pipeline.run(request(**greedy))
    assert len(recorder.requests) == 1
    assert answer.discarded is None
    assert answer.warnings == ()


async def test_redaction_runs_once(bench: RegenerationFactory) -> None:
    pipeline, recorder = bench(["a!!!"], ["b!!"], ["c!"], ["d"], validator=CountingValidator())
    answer = await pipeline.run(request())
    assert len(recorder.requests) == 2
    assert answer.text == "b!!"


# -- which ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("a!!", "b!", "b!"),
        ("a!!", "b", "b"),
        # The second answer is not better, so the first one is kept.
        ("a!!", "b!!", "a!!"),
        ("a!", "b!!", "a!"),
    ],
)
async def test_answer_with_fewer_issues_is_returned(
    bench: RegenerationFactory, first: str, second: str, kept: str
) -> None:
    pipeline, _ = bench([first], [second], validator=CountingValidator())
    answer = await pipeline.run(request())
    assert answer.text == answer.output == kept
    assert answer.discarded is not None
    assert {answer.text, answer.discarded.text} == {first, second}


@pytest.mark.parametrize("stream", [False, True])
async def test_output_is_that_of_the_returned_answer(
    bench: RegenerationFactory, stream: bool
) -> None:
    # R45, R46
    pipeline, _ = bench(["Hello", " to", " you!"], ["He", "llo"])
    output = await JobHandler(pipeline).run(job(stream=stream))
    choice = output["choices"][0]
    assert choice["text"] == "".join(choice["tokens"]) == "Hello"
    assert choice.get("deltas") == (["He", "llo"] if stream else None)
    assert output["usage"] == {"input": 4, "output": 2, "total": 6}
    assert output["validation"]["valid"] is True
    assert output["regenerated"] == {
        "discarded_issues": ["somebody shouted"],
        "discarded_usage": {"input": 4, "output": 3},
    }


async def test_output_where_the_second_was_no_better(bench: RegenerationFactory) -> None:
    pipeline, _ = bench(["Hello!"], ["Oh", " no", "!"])
    output = await JobHandler(pipeline).run(job())
    assert output["choices"][0]["text"] == "Hello"
    assert output["usage"] == {"input": 4, "output": 1, "total": 5}
    assert output["validation"]["details"]["issues"] == [SHOUTED]
    assert output["regenerated"] == {
        "discarded_issues": ["somebody shouted"],
        "discarded_usage": {"input": 4, "output": 3},
    }


async def test_all_issues_of_the_discarded_answer_are_reported(bench: RegenerationFactory) -> None:
    pipeline, _ = bench(["a!!"], ["b!"], validator=CountingValidator())
    output = await JobHandler(pipeline).run(job())
    assert output["regenerated"]["discarded_issues"] == ["somebody shouted"] * 2


# -- how ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "second"), [(0, 1), (41, 42), (-1, 0), (2**63 - 1, 0), (None, None)]
)
async def test_second_try_has_the_next_seed(
    bench: RegenerationFactory, seed: int | None, second: int | None
) -> None:
    # R10: the same one would give the same text, and a repeated request must give both again.
    pipeline, recorder = bench(LOUD, QUIET)
    await pipeline.run(request(seed=seed))
    assert [submitted.sampling.seed for submitted in recorder.requests] == [seed, second]


async def test_second_try_is_the_same_request_otherwise(bench: RegenerationFactory) -> None:
    pipeline, recorder = bench(LOUD, QUIET)
    await pipeline.run(request(timeout_s=60, seed=1, max_tokens=9, stop=["x"]))
    first, second = recorder.requests
    sampling = replace(second.sampling, seed=1)
    assert replace(second, sampling=sampling, timeout_s=60) == first


async def test_warnings_are_not_repeated(bench: RegenerationFactory) -> None:
    # R16
    pipeline, _ = bench(LOUD, QUIET, capabilities={"seed": False})
    output = await JobHandler(pipeline).run(job(sampling_params={"seed": 1, "best_of": 2}))
    assert output["warnings"] == [
        "input.sampling_params.best_of is not supported and was ignored",
        "seed is not supported by the scripted engine and was ignored",
    ]


async def test_redactions_are_counted_for_the_returned_answer(bench: RegenerationFactory) -> None:
    pipeline, _ = bench(["bob@example.com!"], ["no address"])
    jobs = JobHandler(pipeline, OptionsReader(OptionsInput(redact_pii=True)))
    output = await jobs.run(job())
    assert output["choices"][0]["text"] == "no address"
    assert "redacted" not in output
    assert "bob@example.com" not in json.dumps(output)


# -- its time -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job_input", "config"), [({"timeout_s": 30}, {}), ({}, {"request_timeout_s": 30.0})]
)
async def test_regeneration_has_the_remaining_time(
    bench: RegenerationFactory, job_input: dict[str, Any], config: dict[str, Any]
) -> None:
    slow = [{"text": "Hello!", "delay_ms": 100}]
    pipeline, recorder = bench(slow, QUIET, **config)
    await pipeline.run(request(**job_input))
    left_s = recorder.requests[1].timeout_s
    assert left_s is not None
    assert 0 < left_s < 30 - 0.09


async def test_where_no_time_is_left_there_is_no_second_try(
    bench: RegenerationFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 30.0])
    clock = SimpleNamespace(monotonic=lambda: next(times), time=lambda: 0.0)
    monkeypatch.setattr("handler.pipeline.time", clock)
    pipeline, recorder = bench(LOUD, QUIET)
    answer = await pipeline.run(request(timeout_s=30))
    assert len(recorder.requests) == 1
    assert answer.discarded is None


async def test_regeneration_beyond_the_time_limit_is_stopped(bench: RegenerationFactory) -> None:
    pipeline, recorder = bench(LOUD, ["He", {"hang_s": 3600}])
    await pipeline.engine.ready()
    answer = await pipeline.run(request(timeout_s=1))
    assert len(recorder.requests) == 2
    assert answer.text == "Hello"
    (warning,) = answer.warnings
    assert warning.startswith("the answer was not generated again: the request took longer than 0.")
    assert pipeline.engine.waiting == 0


# -- a second try that fails ----------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [[{"error": "out of luck"}], ["He", {"error": "out of luck"}]])
async def test_failed_regeneration_is_a_warning(
    bench: RegenerationFactory, pieces: list[Any]
) -> None:
    # R50
    pipeline, _ = bench(LOUD, pieces)
    output = await JobHandler(pipeline).run(job())
    assert output["choices"][0]["text"] == "Hello"
    assert output["validation"]["valid"] is False
    assert output["warnings"] == ["the answer was not generated again: out of luck"]
    assert "regenerated" not in output


async def test_failed_first_generation_fails_the_job(bench: RegenerationFactory) -> None:
    # R50
    pipeline, recorder = bench(["He", {"error": "out of luck"}], QUIET)
    assert await JobHandler(pipeline).run(job()) == {"error": "out of luck"}
    assert len(recorder.requests) == 1


# -- which ways there are -------------------------------------------------------------------------


async def test_job_with_a_live_stream_is_not_regenerated(bench: RegenerationFactory) -> None:
    # Sent text cannot be withdrawn.
    pipeline, recorder = bench(LOUD, QUIET)
    *partials, final = await outputs(JobHandler(pipeline), job(stream=True))
    assert len(recorder.requests) == 1
    assert "".join(each["choices"][0]["text"] for each in partials) == "Hello!"
    assert "regenerated" not in final


async def test_job_without_stream_is_regenerated_in_generator_mode(
    bench: RegenerationFactory,
) -> None:
    # R45
    pipeline, recorder = bench(LOUD, QUIET)
    (final,) = await outputs(JobHandler(pipeline), job(stream=False))
    assert len(recorder.requests) == 2
    assert final["choices"][0]["text"] == "Hello"
    assert final["regenerated"]["discarded_issues"] == ["somebody shouted"]


def call(**body: Any) -> dict[str, Any]:
    defaults = {"prompt": "greet me", "validation": {"regenerate": True}, "enable_validation": True}
    return {
        "id": "j",
        "input": {"openai_route": "/v1/completions", "openai_input": {**defaults, **body}},
    }


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_openai_stream_is_not_regenerated(bench: RegenerationFactory, mode: str) -> None:
    pipeline, recorder = bench(LOUD, QUIET)
    jobs, job_input = JobHandler(pipeline), call(stream=True)
    text = (
        await jobs.run(job_input)
        if mode == "aggregate"
        else "".join(await outputs(jobs, job_input))
    )
    assert len(recorder.requests) == 1
    assert '"valid":false' in text
    assert "regenerated" not in text


@pytest.mark.parametrize("mode", ["aggregate", "generator"])
async def test_openai_call_is_regenerated_on_request(bench: RegenerationFactory, mode: str) -> None:
    pipeline, recorder = bench(LOUD, QUIET)
    jobs, job_input = JobHandler(pipeline), call()
    body = await jobs.run(job_input) if mode == "aggregate" else (await outputs(jobs, job_input))[0]
    assert len(recorder.requests) == 2
    assert body["choices"][0]["text"] == "Hello"
    assert body["regenerated"]["discarded_issues"] == ["somebody shouted"]


# -- the prompt of the second attempt -------------------------------------------------------------

CITY = {"type": "object", "required": ["city"]}
CORRECTED: list[dict[str, Any]] = [
    {"when": "Answer again, with nothing but", "pieces": ['{"city": "Oslo"}']},
    {"pieces": ["<think>hm</think>", '{"town": "Oslo"}']},
]
CITIES = [
    {"role": "system", "content": "You know cities."},
    {"role": "user", "content": "Which city is it?"},
]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("is_job", [True, False])
async def test_model_receives_the_issues_of_its_form(
    temperature: float, is_job: bool, pipeline_of: PipelineFactory
) -> None:  # R61
    recorder = SubjectRecorder()
    pipeline = pipeline_of(*CORRECTED, validator=recorder)
    validation = {"json_schema": CITY, "regenerate": True}
    job_input: dict[str, Any] = {"messages": CITIES, "validation": validation}
    if is_job:
        job_input["sampling_params"] = {"temperature": temperature}
    else:
        body = {**job_input, "temperature": temperature, "enable_validation": True}
        job_input = {"openai_route": "/v1/chat/completions", "openai_input": body}
    output = await JobHandler(pipeline).run({"input": job_input})
    [choice] = output["choices"]
    assert (choice["text"] if is_job else choice["message"]["content"]) == '{"city": "Oslo"}'
    assert output["validation"]["valid"]
    [problem] = output["regenerated"]["discarded_issues"]
    assert "city is missing" in problem
    # The second answer is one to the same question.
    assert [subject.prompt for subject in recorder.subjects] == ["Which city is it?"] * 2
    assert {subject.system for subject in recorder.subjects} == {"You know cities."}


async def test_model_receives_its_own_text_without_the_reasoning(
    pipeline_of: PipelineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_of(*CORRECTED, validator=SubjectRecorder())
    recorded: list[Any] = []
    generate = pipeline.engine.generate

    async def record(submitted: Any, *arguments: Any, **options: Any) -> Any:
        recorded.append(submitted.prompt)
        return await generate(submitted, *arguments, **options)

    monkeypatch.setattr(pipeline.engine, "generate", record)
    validation = {"json_schema": CITY, "regenerate": True}
    await JobHandler(pipeline).run({"input": {"messages": CITIES, "validation": validation}})
    first, second = recorded
    assert second.messages[:2] == first.messages
    assistant, user = second.messages[2:]
    assert (assistant.role, assistant.content) == ("assistant", '{"town": "Oslo"}')
    assert user.role == "user"
    assert "city is missing" in user.content


class SubjectRecorder(RulesValidator):
    """The real rules, with a record of their subjects."""

    def __init__(self) -> None:
        super().__init__(load_rules(DEFAULT_RULES))
        self.subjects: list[Subject] = []

    def validate(self, subject: Subject, options: Options) -> Verdict:
        self.subjects.append(subject)
        return super().validate(subject, options)
