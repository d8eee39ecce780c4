"""Redact personal data in every kind of output, however the deltas are cut."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

import pytest

from engine import Chat, GenerationRequest, Message, SamplingParams
from engine.errors import BackendFailed
from handler.apis.core.call_runner import CallDefaults
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.input.options import OptionsInput, OptionsReader
from handler.input.request import TextRequest
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from tests.conftest import SMALL_RULES
from tests.unit.handler.apis.openai.calls import complete, complete_streamed
from tests.unit.handler.conftest import ExclamationValidator, PipelineFactory, RunRecorder
from validation import Subject, Validator
from validation.rules_validator import RulesValidator

# Cut where tokens of a model would cut, with a pause before some, so that they come one by one.
PIECES: list[Any] = [
    "Write to b",
    "ob",
    "@exam",
    {"text": "ple", "delay_ms": 40},
    ".com, pay by ",
    "4111 11",
    {"text": "11 1111", "delay_ms": 5},
    " 1111",
    " or ca",
    "ll +49 30",
    {"text": " 123456", "delay_ms": 5},
    ", dear",
    " bob@example.com",
    ".",
]
PERSONAL = ("bob@example.com", "4111 1111 1111 1111", "+49 30 123456", "@exam", "1111")
TEXT = "Write to [email], pay by [card] or call [phone], dear [email]."
DELTAS = [
    "Write to [email]",
    ", pay by ",
    "[card]",
    " or ca",
    "ll [phone]",
    ", dear",
    " [email]",
    ".",
]
COUNTS = {"email": 2, "card": 1, "phone": 1}
ROUTES = ["/v1/completions", "/v1/chat/completions"]


class JobsFactory(Protocol):
    def __call__(
        self, *pieces: Any, validator: Validator | None = None, **settings: Any
    ) -> JobHandler: ...


@pytest.fixture
def jobs_of(pipeline_of: PipelineFactory) -> JobsFactory:
    """Builds job handlers from the pieces of their one answer and from settings."""

    def build(*pieces: Any, validator: Validator | None = None, **settings: Any) -> JobHandler:
        pipeline = pipeline_of(
            {"pieces": list(pieces)}, validator=validator or ExclamationValidator()
        )
        return JobHandler(pipeline, OptionsReader(OptionsInput(**settings)), interval_s=0.0)

    return build


def openai(pipeline: Pipeline) -> OpenAIService:
    return OpenAIService(pipeline, CallDefaults(options=OptionsReader(OptionsInput())))


def job(*, stream: bool = False, **job_input: Any) -> dict[str, Any]:
    return {"id": "j", "input": {"prompt": "hi", "stream": stream, **job_input}}


def call(route: str, **body: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "hi"}]
    requests = {"prompt": "hi"} if route == ROUTES[0] else {"messages": turns}
    return {"id": "j", "input": {"openai_route": route, "openai_input": {**requests, **body}}}


def ask(prompt: str | Chat = "hi", **fields: Any) -> TextRequest:
    options, _ = OptionsReader(OptionsInput(redact_pii=True)).read(None)
    generation = GenerationRequest(prompt=prompt, **fields)
    return TextRequest(generation=generation, validation=True, options=options)


async def outputs(jobs: JobHandler, job_input: dict[str, Any]) -> list[Any]:
    async with aclosing(jobs.stream(job_input)) as stream:
        return [output async for output in stream]


def check_clean(*sent: Any) -> None:
    """Check that no sent output, nor all of them joined, contains personal data."""
    for each in (*sent, "".join(map(str, sent))):
        # Random ids have any digits.
        expected = re.sub(r"[0-9a-f]{24,}", "", json.dumps(each, ensure_ascii=False))
        assert not [datum for datum in PERSONAL if datum in expected]


def chunks(text: str) -> list[dict[str, Any]]:
    *blocks, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def chunk_text(chunk: dict[str, Any]) -> str:
    choice = chunk["choices"][0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content", ""))


# -- jobs -----------------------------------------------------------------------------------------


async def test_complete_answer_contains_no_personal_data(jobs_of: JobsFactory) -> None:
    # R46
    output = await jobs_of(*PIECES, redact_pii=True).run(job())
    check_clean(output)
    assert output["choices"][0]["text"] == TEXT
    assert output["choices"][0]["tokens"] == [TEXT]
    assert output["redacted"] == COUNTS


async def test_deltas_are_cut_where_the_models_were(jobs_of: JobsFactory) -> None:
    # R46
    output = await jobs_of(*PIECES, redact_pii=True).run(job(stream=True))
    check_clean(output)
    choice = output["choices"][0]
    assert choice["deltas"] == choice["tokens"] == DELTAS
    assert choice["text"] == "".join(DELTAS) == TEXT


async def test_redaction_is_no_sanitising(jobs_of: JobsFactory) -> None:
    # R47: the text is the joined deltas.
    output = await jobs_of(*PIECES, redact_pii=True).run(job(stream=True))
    assert output["validation"]["sanitized"] is False
    assert output["validation"]["valid"] is True


async def test_tokens_are_counted_as_the_model_made_them(jobs_of: JobsFactory) -> None:
    # R4
    output = await jobs_of(*PIECES, redact_pii=True).run(job(stream=True))
    assert output["usage"]["output"] == len(PIECES)


async def test_request_may_ask_for_it(jobs_of: JobsFactory) -> None:
    output = await jobs_of(*PIECES).run(job(validation={"redact_pii": ["card", "phone"]}))
    assert output["redacted"] == {"card": 1, "phone": 1}
    assert "bob@example.com" in output["choices"][0]["text"]


async def test_request_cannot_lift_it(jobs_of: JobsFactory) -> None:
    output = await jobs_of(*PIECES, redact_pii=True).run(job(validation={"redact_pii": False}))
    check_clean(output)
    assert output["redacted"] == COUNTS


@pytest.mark.parametrize("stream", [False, True])
async def test_redaction_runs_without_validation(jobs_of: JobsFactory, stream: bool) -> None:
    jobs = jobs_of(*PIECES, redact_pii=True)
    job_input = job(stream=stream, enable_validation=False)
    sent = [await jobs.run(job_input), *await outputs(jobs, job_input)]
    check_clean(*sent)
    assert sent[-1]["redacted"] == COUNTS
    assert "validation" not in sent[-1]


async def test_answer_without_personal_data_is_unchanged(jobs_of: JobsFactory) -> None:
    output = await jobs_of("All", " well", redact_pii=True).run(job(stream=True))
    assert output["choices"][0]["deltas"] == ["All", " well"]
    assert "redacted" not in output


async def test_answer_that_is_only_personal_data(jobs_of: JobsFactory) -> None:
    output = await jobs_of("bob@", "example.com", redact_pii=True).run(job(stream=True))
    assert output["choices"][0]["deltas"] == ["[email]"]


async def test_answer_without_a_word(jobs_of: JobsFactory) -> None:
    (output,) = await outputs(jobs_of(redact_pii=True), job(stream=True))
    assert output["choices"][0]["deltas"] == []


async def test_data_next_to_a_stop_string(jobs_of: JobsFactory) -> None:
    # R11, R26
    jobs = jobs_of("call +49 30 ", "123456", " ST", "OP +49 30 123456", redact_pii=True)
    output = await jobs.run(job(stream=True, sampling_params={"stop": " STOP"}))
    assert output["choices"][0]["deltas"] == ["call [phone]"]


# -- streams --------------------------------------------------------------------------------------


async def test_generator_yields_no_datum(jobs_of: JobsFactory) -> None:
    # R45, R46
    *partials, final = await outputs(jobs_of(*PIECES, redact_pii=True), job(stream=True))
    check_clean(*partials, final)
    texts = [partial["choices"][0]["text"] for partial in partials]
    check_clean(*texts)
    assert "".join(texts) == final["choices"][0]["text"] == TEXT
    assert [token for each in partials for token in each["choices"][0]["tokens"]] == DELTAS


async def test_both_modes_end_with_the_same_json(jobs_of: JobsFactory) -> None:
    # R45
    jobs = jobs_of(*PIECES, redact_pii=True)
    for stream in (False, True):
        output = await jobs.run(job(stream=stream))
        final = (await outputs(jobs, job(stream=stream)))[-1]
        assert {**output, "timings": 0} == {**final, "timings": 0}


@pytest.mark.parametrize("route", ROUTES)
async def test_openai_stream_contains_no_personal_data(jobs_of: JobsFactory, route: str) -> None:
    # R24
    jobs = jobs_of(*PIECES, redact_pii=True)
    job_input = call(route, stream=True)
    blocks = await outputs(jobs, job_input)
    output = await jobs.run(job_input)
    check_clean(*blocks, output)
    for text in ("".join(blocks), output):
        result = chunks(text)
        check_clean(*map(chunk_text, result))
        assert "".join(map(chunk_text, result)) == TEXT
        assert result[-1]["redacted"] == COUNTS


@pytest.mark.parametrize("route", ROUTES)
async def test_openai_call_contains_no_personal_data(jobs_of: JobsFactory, route: str) -> None:
    body = await jobs_of(*PIECES, redact_pii=True).run(call(route))
    check_clean(body)
    choice = body["choices"][0]
    assert (choice["text"] if route == ROUTES[0] else choice["message"]["content"]) == TEXT
    assert body["redacted"] == COUNTS


async def test_redacted_stream_is_one_piece_at_the_end(pipeline_of: PipelineFactory) -> None:
    # Half a datum cannot be redacted, so no delta is sent before the end.
    ended = RunRecorder()
    pieces = ["one ", {"text": "two ", "delay_ms": 20}, {"text": "three", "delay_ms": 20}]
    pipeline = pipeline_of({"pieces": pieces}, hooks=[ended])
    async with await pipeline.open(ask()) as running:
        batches = [[delta.text for delta in batch] async for batch in running.batches()]
        assert ended.events
    assert batches == [["one ", "two ", "three"]]


async def test_stream_where_nothing_is_redacted_stays_live(jobs_of: JobsFactory) -> None:
    # R29
    partials = await outputs(jobs_of(*PIECES, redact_pii=False), job(stream=True))
    assert len(partials) > 2


@pytest.mark.parametrize("route", ROUTES)
async def test_error_in_mid_stream_lets_no_half_datum_out(
    pipeline_of: PipelineFactory, route: str
) -> None:
    # R30
    pieces = ["Write to bob@example", {"error": "out of luck", "delay_ms": 20}]
    options = OptionsReader(OptionsInput(redact_pii=True))
    service = OpenAIService(pipeline_of({"pieces": pieces}), CallDefaults(options=options))
    parsed = service.parse_call(route, call(route, stream=True)["input"]["openai_input"])
    async with await service.open_stream(parsed) as running:
        sent = b"".join([block async for block in stream_events(parsed, running)]).decode()
    assert chunks(sent)[-1]["error"]["message"] == "out of luck"
    assert "bob" not in sent


async def test_error_in_mid_answer_is_raised(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of({"pieces": ["bob", {"error": "out of luck", "delay_ms": 20}]})
    with pytest.raises(BackendFailed, match="out of luck"):
        await pipeline.run(ask())


async def test_leaving_before_the_end_stops_the_generation(pipeline_of: PipelineFactory) -> None:
    # R31
    ended = RunRecorder()
    pipeline = pipeline_of({"pieces": ["again "], "repeat": -1, "delay_ms": 1}, hooks=[ended])

    async def read() -> None:
        async with await pipeline.open(ask()) as running:
            batches: AsyncIterator[object] = running.batches()
            await anext(batches)

    task = asyncio.create_task(read())
    async with asyncio.timeout(30):
        await ended.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await ended.wait_for_end()).aborted


# -- other fields that could reveal it ------------------------------------------------------------


async def test_log_probabilities_do_not_spell_it_out(pipeline_of: PipelineFactory) -> None:
    sampling = SamplingParams(logprobs=0)
    answer = await pipeline_of({"pieces": PIECES}).run(ask(sampling=sampling))
    assert answer.logprobs == ()
    harmless = await pipeline_of({"pieces": ["All", " well"]}).run(ask(sampling=sampling))
    assert [each.token for each in harmless.logprobs] == ["All", " well"]


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_log_probabilities_without_personal_data_are_returned(
    streaming: bool, pipeline_of: PipelineFactory
) -> None:
    # R24: a stream that is sent at its end has its tokens, as a complete body does.
    collect = complete_streamed if streaming else complete
    body = {"prompt": "hi", "logprobs": 1, "validation": {"redact_pii": True}}
    answer = await collect(openai(pipeline_of({"pieces": ["All", " well"]})), ROUTES[0], body)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs["tokens"] == ["All", " well"]
    assert answer.warnings == []


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_log_probabilities_that_are_left_out_are_warned_of(
    streaming: bool, pipeline_of: PipelineFactory, caplog: pytest.LogCaptureFixture
) -> None:
    # R16, R55
    collect = complete_streamed if streaming else complete
    body = {"prompt": "hi", "logprobs": 1, "validation": {"redact_pii": True}}
    answer = await collect(openai(pipeline_of({"pieces": PIECES})), ROUTES[0], body)
    assert (answer.choices[0].text, answer.choices[0].logprobs) == (TEXT, None)
    warning = "logprobs were left out, because they would reveal redacted text"
    assert answer.warnings == [warning]
    (record,) = caplog.records
    assert record.getMessage().endswith(warning)


async def test_unrequested_log_probabilities_cause_no_warning(
    pipeline_of: PipelineFactory,
) -> None:
    # R15: they are the candidates' rank.
    body = {"prompt": "hi", "best_of": 2, "validation": {"redact_pii": True}}
    answer = await complete(openai(pipeline_of({"pieces": PIECES})), ROUTES[0], body)
    assert (answer.choices[0].text, answer.warnings) == (TEXT, [])


async def test_validator_receives_only_redacted_texts(pipeline_of: PipelineFactory) -> None:
    # Otherwise it could not recognize an echo, and might quote personal data.
    validator = ExclamationValidator()
    turns = (Message("system", "You are bob@example.com."), Message("user", "Call +49 30 123456"))
    await pipeline_of({"pieces": PIECES}, validator=validator).run(ask(Chat(turns)))
    assert validator.subjects == [
        Subject(prompt="Call [phone]", text=TEXT, finish_reason="stop", system="You are [email].")
    ]


async def test_prompts_are_not_redacted(pipeline_of: PipelineFactory) -> None:
    # Answers are redacted; prompts are the client's own.
    pipeline = pipeline_of({"when": "bob@example.com$", "pieces": ["yes"]}, {"pieces": ["no"]})
    assert (await pipeline.run(ask("Is it bob@example.com"))).text == "yes"


JOINED = [
    ("bob@exam<|im_end|>ple.com wrote it", "[email] wrote it", {"email": 1}),
    ("card 4111 1111 <|im_end|>1111 1111 it is", "card [card] it is", {"card": 1}),
]


@pytest.mark.parametrize(("raw", "text", "counts"), JOINED)
@pytest.mark.parametrize("stream", [False, True])
async def test_datum_that_the_sanitiser_would_put_together(
    jobs_of: JobsFactory, raw: str, text: str, counts: dict[str, int], stream: bool
) -> None:
    jobs = jobs_of(raw, validator=RulesValidator.from_file(SMALL_RULES), redact_pii=True)
    output = await jobs.run(job(stream=stream))
    assert output["choices"][0]["text"] == text
    assert output["redacted"] == counts
    assert output["validation"]["sanitized"] is True


async def test_spans_of_what_was_sanitised_count_redacted_text(
    pipeline_of: PipelineFactory,
) -> None:
    # R46: they are spans of the joined deltas.
    pipeline: Pipeline = pipeline_of(
        {"pieces": ["bob@example.com", " wrote.", "<|im_end|>"]},
        validator=RulesValidator.from_file(SMALL_RULES),
    )
    answer = await pipeline.run(ask())
    assert answer.text == "[email] wrote."
    assert answer.verdict is not None
    (removal,) = answer.verdict.removals
    assert answer.output[removal.start : removal.end] == "<|im_end|>"
