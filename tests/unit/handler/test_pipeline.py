"""Run requests through the pipeline: early errors, complete answers, no leaked generation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import (
    BackendConfig,
    Engine,
    EngineConfig,
    Finish,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    Usage,
)
from engine.errors import BackendFailed, PromptTooLong
from engine.reply.reply import Reply
from handler.generation.active_generation import ActiveGeneration
from handler.generation.completed_answer import CompletedAnswer
from handler.input.request import TextRequest
from handler.pipeline import Pipeline
from tests.unit.handler.conftest import ExclamationValidator, PipelineFactory, RunRecorder
from validation import Issue, Subject

ENDLESS = {"when": "endless", "pieces": ["again "], "repeat": -1, "delay_ms": 1}
ECHO = {"when": "."}


def ask(prompt: str, **fields: object) -> TextRequest:
    sampling = SamplingParams(stop=("STOP",))
    return TextRequest(
        generation=GenerationRequest(prompt=prompt, sampling=sampling, request_id="r-1"),
        **fields,  # type: ignore[arg-type]
    )


async def drain(running: ActiveGeneration, interval_s: float = 0.0) -> list[list[str]]:
    return [[delta.text for delta in batch] async for batch in running.batches(interval_s)]


async def test_run_returns_the_complete_answer(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of({"pieces": ["Hello", " wor", "ld"]})
    answer = await pipeline.run(ask("hi"))
    assert answer.text == answer.output == "Hello world"
    assert answer.deltas == ("Hello", " wor", "ld")
    assert answer.finish.reason is FinishReason.STOP
    assert answer.finish.usage.completion_tokens == 3
    assert answer.id == "r-1"
    assert answer.model == "scripted"
    assert answer.verdict is None
    assert not answer.sanitized
    assert not answer.streaming


async def test_answer_without_a_word(pipeline_of: PipelineFactory) -> None:
    answer = await pipeline_of({"pieces": []}).run(ask("hi"))
    assert (answer.text, answer.deltas) == ("", ())


@pytest.mark.parametrize(
    "answer",
    [
        {"pieces": [{"error": "out of luck"}]},
        {"pieces": [{"text": "", "delay_ms": 1}, {"error": "out of luck"}]},
        # Held back as a possible stop string: no text could be sent yet.
        {"pieces": ["ST", {"error": "out of luck"}]},
    ],
)
async def test_error_before_any_text_is_raised_by_open(
    answer: dict[str, object], pipeline_of: PipelineFactory
) -> None:
    # R30
    ended = RunRecorder()
    pipeline = pipeline_of(answer, hooks=[ended])
    with pytest.raises(BackendFailed, match="out of luck"):
        await pipeline.open(ask("hi"))
    await ended.wait_for_end()
    assert pipeline.engine.running == 0


async def test_prompt_too_long_is_raised_by_open(pipeline_of: PipelineFactory) -> None:
    # R54
    pipeline = pipeline_of(ECHO, context_length=3)
    with pytest.raises(PromptTooLong, match="5 tokens do not fit the context of 3 tokens"):
        await pipeline.open(ask("one two three four five"))


async def test_error_after_text_comes_after_the_text(pipeline_of: PipelineFactory) -> None:
    # R30
    pipeline = pipeline_of({"pieces": ["one", {"error": "out of luck", "delay_ms": 20}]})
    texts = []
    async with await pipeline.open(ask("hi")) as running:
        batches = running.batches()
        texts += [delta.text for delta in await anext(batches)]
        with pytest.raises(BackendFailed, match="out of luck"):
            await anext(batches)
        with pytest.raises(RuntimeError):
            await running.build_answer()
    assert texts == ["one"]


async def test_leaving_stops_the_generation(pipeline_of: PipelineFactory) -> None:
    # R31
    ended = RunRecorder()
    pipeline = pipeline_of(ENDLESS, hooks=[ended])
    async with await pipeline.open(ask("endless")) as running:
        assert pipeline.engine.running == 1
        with pytest.raises(RuntimeError, match="not finished"):
            await running.build_answer()
    assert (await ended.wait_for_end()).aborted
    assert pipeline.engine.running == 0


async def test_leaving_by_an_error_stops_the_generation(pipeline_of: PipelineFactory) -> None:
    # R31
    ended = RunRecorder()
    pipeline = pipeline_of(ENDLESS, hooks=[ended])

    async def read() -> None:
        async with await pipeline.open(ask("endless")) as running:
            async for _ in running.batches():
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()
    assert (await ended.wait_for_end()).aborted


@pytest.mark.parametrize("interval_s", [0.0, 30.0])
async def test_cancelling_frees_the_slot_and_the_next_answer_is_clean(
    interval_s: float, pipeline_of: PipelineFactory
) -> None:
    # R31
    ended = RunRecorder()
    pipeline = pipeline_of(ENDLESS, ECHO, slots=1, hooks=[ended])
    first = asyncio.Event()

    async def consume() -> None:
        async with await pipeline.open(ask("endless")) as running:
            async for _ in running.batches(interval_s):
                first.set()

    task = asyncio.create_task(consume())
    async with asyncio.timeout(30):
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await pipeline.run(ask("one two"))
    assert answer.text == "one two"
    assert ended.events[0].aborted


async def test_cancelling_before_the_first_text_frees_the_slot(
    pipeline_of: PipelineFactory,
) -> None:
    # R31
    ended = RunRecorder()
    silent = {"when": "silent", "pieces": ["late"], "prefill_ms": 60_000}
    pipeline = pipeline_of(silent, ECHO, slots=1, hooks=[ended])
    task = asyncio.create_task(pipeline.open(ask("silent")))
    async with asyncio.timeout(30):
        await ended.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await pipeline.run(ask("one two"))
    assert answer.text == "one two"
    assert ended.events[0].aborted


async def test_interval_coalesces_without_a_loss(pipeline_of: PipelineFactory) -> None:
    # R29
    pieces = [f"{n} " for n in range(150)]
    pipeline = pipeline_of({"pieces": pieces, "delay_ms": 2})
    interval_s = 0.1
    loop = asyncio.get_running_loop()
    times, batches = [], []
    async with await pipeline.open(ask("hi")) as running:
        opened = loop.time()
        async for batch in running.batches(interval_s):
            times.append(loop.time())
            batches.append([delta.text for delta in batch])
        answer = await running.build_answer()
    assert [text for batch in batches for text in batch] == pieces
    assert answer.deltas == tuple(pieces)
    # The first at once, every later one no sooner than the interval allows, so that it is longer.
    assert times[0] - opened < interval_s
    assert all(b - a > interval_s * 0.9 for a, b in itertools.pairwise(times))
    assert 1 < len(batches) < 50


async def test_slow_reader_finds_longer_batches(pipeline_of: PipelineFactory) -> None:
    # R29
    ended = RunRecorder()
    pieces = [f"{n} " for n in range(50)]
    pipeline = pipeline_of(
        {"pieces": ["first ", {"text": "", "delay_ms": 20}, *pieces]}, hooks=[ended]
    )
    batches = []
    async with await pipeline.open(ask("hi")) as running:
        async for batch in running.batches():
            batches.append([delta.text for delta in batch])
            await ended.wait_for_end()
    assert batches == [["first "], pieces]


async def test_verdict_is_of_the_complete_raw_text(pipeline_of: PipelineFactory) -> None:
    # R46, R47
    validator = ExclamationValidator()
    pipeline = pipeline_of({"pieces": ["He", "llo!"]}, validator=validator)
    answer = await pipeline.run(ask("greet me", validation=True, streaming=True))
    assert validator.subjects == [Subject(prompt="greet me", text="Hello!", finish_reason="stop")]
    assert answer.text == "Hello"
    assert answer.deltas == ("He", "llo!")
    assert answer.output == "Hello!"
    assert answer.sanitized
    assert answer.streaming
    assert answer.verdict is not None
    assert answer.verdict.issues == (Issue("shouting", "somebody shouted"),)


async def test_verdict_that_changes_nothing(pipeline_of: PipelineFactory) -> None:
    # R47
    pipeline = pipeline_of({"pieces": ["Hello"]}, validator=ExclamationValidator())
    answer = await pipeline.run(ask("hi", validation=True))
    assert answer.verdict is not None
    assert answer.verdict.valid
    assert not answer.sanitized


async def test_no_verdict_without_validation(pipeline_of: PipelineFactory) -> None:
    # R47
    validator = ExclamationValidator()
    pipeline = pipeline_of({"pieces": ["Hello!"]}, validator=validator)
    answer = await pipeline.run(ask("hi", validation=False))
    assert answer.verdict is None
    assert answer.text == "Hello!"
    assert validator.subjects == []


async def test_warnings_of_request_and_engine_are_joined(pipeline_of: PipelineFactory) -> None:
    # R16
    pipeline = pipeline_of({"pieces": ["x"]}, capabilities={"seed": False})
    request = TextRequest(
        generation=GenerationRequest(prompt="hi", sampling=SamplingParams(seed=1)),
        warnings=("echo was ignored",),
    )
    answer = await pipeline.run(request)
    assert answer.warnings == (
        "echo was ignored",
        "seed is not supported by the scripted engine and was ignored",
    )


async def test_logprobs_are_kept_with_empty_deltas_too(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of({"pieces": [{"hex": "c3"}, {"hex": "a9"}, "x"]})
    request = TextRequest(
        generation=GenerationRequest(prompt="hi", sampling=SamplingParams(logprobs=0))
    )
    answer = await pipeline.run(request)
    assert answer.deltas == ("é", "x")
    assert len(answer.logprobs) == 3


Pipelines = tuple[asyncio.Runner, Pipeline]


@pytest.fixture
def script_of_prompts() -> Iterator[Pipelines]:
    """Echoes every prompt, on a loop that can run several times in one test."""
    with asyncio.Runner() as runner:
        config = EngineConfig(backend=BackendConfig.from_wire("scripted"), isolation="thread")

        async def build() -> Engine:
            return Engine(config)

        engine = runner.run(build())
        yield runner, Pipeline(engine, "scripted")
        runner.run(engine.close())


def test_deltas_join_to_the_raw_text_however_it_was_cut(script_of_prompts: Pipelines) -> None:
    # R26, R27, R46
    runner, pipeline = script_of_prompts

    @given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1))
    def check(words: list[str]) -> None:
        prompt = " ".join(words)
        answer = runner.run(pipeline.run(ask(prompt)))
        assert answer.output == answer.text == prompt.split("STOP")[0]
        assert all(answer.deltas)

    check()


def test_answer_knows_whether_it_was_sanitized() -> None:
    # R47
    finish = Finish(reason=FinishReason.STOP, usage=Usage(1, 1))
    fields: dict[str, Any] = {
        **{"id": "x", "model": "m", "created": 1, "finish": finish, "streaming": False},
        **{"reply": Reply(text="ab"), "deltas": ("a", "b")},
    }
    assert not CompletedAnswer(text="ab", **fields).sanitized
    assert CompletedAnswer(text="a", **fields).sanitized


async def test_what_is_ignored_is_logged(
    pipeline_of: PipelineFactory, caplog: pytest.LogCaptureFixture
) -> None:
    # R16, R55
    await pipeline_of().run(ask("hi", warnings=("top_logprobs was ignored",)))
    (record,) = [
        each for each in caplog.records if each.name == "handler.generation.active_generation"
    ]
    assert record.levelname == "WARNING"
    assert record.getMessage() == "request r-1: top_logprobs was ignored"
