"""One engine with both kinds of host: answers, limits, order and aborts."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

import engine.runs.stream
from engine import Chat, Engine, EngineState, FinishReason, Message, TokenLogprob, Usage
from engine.errors import (
    BackendFailed,
    ConsumerTooSlow,
    EngineClosed,
    EngineError,
    GenerationCancelled,
    PromptTooLong,
    QueueFull,
    RequestRejected,
    UnsupportedParameter,
)
from engine.hooks import (
    EngineEvent,
    FirstToken,
    HostLoaded,
    HostLost,
    RequestEnded,
    RequestQueued,
    RequestStarted,
)
from engine.request import Priority
from tests.integration.engine.conftest import EngineMaker
from tests.integration.engine.support import ask, first_text, read, read_into, request
from tests.waiting import wait_until

FOREVER = {"when": "forever", "pieces": ["on ", "and "], "repeat": -1, "delay_ms": 1}
SILENT = {"when": "silent", "pieces": ["never"], "prefill_ms": 60_000}
ECHO: dict[str, Any] = {}


async def test_answer_is_complete_and_counted(engine_of: EngineMaker) -> None:
    # R4
    engine = engine_of(ECHO)
    text, finish = await ask(engine, "one two three")
    assert text == "one two three"
    assert finish.reason is FinishReason.STOP
    assert finish.usage == Usage(prompt_tokens=3, completion_tokens=3)
    assert engine.state is EngineState.READY
    assert (engine.running, engine.waiting, engine.restarts) == (0, 0, 0)


async def test_limits_and_stops_work_through_the_host(engine_of: EngineMaker) -> None:
    # R8, R11
    engine = engine_of(ECHO)
    text, finish = await ask(engine, "one two three four", max_tokens=2)
    assert (text, finish.reason) == ("one two", FinishReason.LENGTH)
    assert finish.usage.completion_tokens == 2
    text, finish = await ask(engine, "one two three four", stop=("two th",))
    assert (text, finish.stop_reason) == ("one ", "two th")
    text, finish = await ask(engine, "one two three", stop_token_ids=(3,))
    assert (text, finish.stop_reason) == ("one two", 3)


async def test_split_characters_arrive_complete(engine_of: EngineMaker) -> None:
    # R27
    pieces = [{"hex": f"{byte:02x}"} for byte in "你😀e\u0301好".encode()]
    engine = engine_of({"pieces": pieces})
    async with await engine.generate(request()) as stream:
        deltas = await read(stream)
    assert [delta.text for delta in deltas] == ["你", "😀", "e", "\u0301", "好"]


async def test_logprobs_arrive_unchanged(engine_of: EngineMaker) -> None:
    # R13
    pieces = ["a", {"text": "b", "logprob": -0.123456789012345}, {"text": "😀", "logprob": -20}]
    engine = engine_of({"pieces": pieces})
    async with await engine.generate(request(logprobs=1)) as stream:
        deltas = await read(stream)
    assert [delta.logprob for delta in deltas] == [
        TokenLogprob("a", -1.0, (("a", -1.0),), b"a", 0),
        TokenLogprob("b", -0.123456789012345, (("b", -0.123456789012345),), b"b", 1),
        TokenLogprob("😀", -20, (("😀", -20),), "😀".encode(), 2),
    ]


async def test_logprob_of_a_token_without_text_arrives_with_it(engine_of: EngineMaker) -> None:
    engine = engine_of({"pieces": [{"hex": "f09f", "logprob": -2}, {"hex": "9880", "logprob": -3}]})
    async with await engine.generate(request(logprobs=1)) as stream:
        deltas = await read(stream)
    assert [(delta.text, delta.logprob and delta.logprob.logprob) for delta in deltas] == [
        ("", -2),
        ("😀", -3),
    ]


@pytest.mark.long_except("process")
async def test_long_burst_arrives_complete_and_in_order(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO, context_length=200_000)
    prompt = " ".join(map(str, range(60_000)))
    text, finish = await ask(engine, prompt)
    assert text == prompt
    assert finish.usage.completion_tokens == 60_000


async def test_concurrent_streams_do_not_mix(engine_of: EngineMaker) -> None:
    # R31
    engine = engine_of(ECHO, slots=4)
    prompts = [" ".join([letter * 3] * 500) for letter in "abcd"]
    answers = await asyncio.gather(*(ask(engine, prompt) for prompt in prompts))
    assert [text for text, _ in answers] == prompts


async def test_abort_in_the_middle_frees_the_slot_and_leaves_no_trace(
    engine_of: EngineMaker,
) -> None:
    # R31
    engine = engine_of(FOREVER, ECHO, slots=1)
    for _ in range(5):
        async with await engine.generate(request("forever")) as stream:
            assert await first_text(stream)
            stream.abort()
            with pytest.raises(GenerationCancelled):
                await anext(stream)
        text, _ = await ask(engine, "clean and new")
        assert text == "clean and new"
        assert (engine.running, stream.result) == (0, None)


async def test_abort_in_prefill_frees_the_slot(engine_of: EngineMaker) -> None:
    # R31
    engine = engine_of(SILENT, ECHO, slots=1)
    async with await engine.generate(request("silent")) as stream:
        pass
    async with asyncio.timeout(30):
        await stream.wait_ended()
        assert (await ask(engine, "next"))[0] == "next"


@pytest.mark.long_except("process")
async def test_abort_before_the_run_has_started_stops_it(engine_of: EngineMaker) -> None:
    # R31: a client may leave while its prompt is still on the way to the backend.
    engine = engine_of(SILENT, ECHO, slots=2)
    await engine.ready()
    for _ in range(100):
        (await engine.generate(request("silent"))).abort()
        (await engine.generate(request("silent"))).abort()
        async with asyncio.timeout(30):
            await wait_until(lambda: engine.running == 0)


async def test_cancelled_consumer_frees_the_slot(engine_of: EngineMaker) -> None:
    # R31
    engine = engine_of(FOREVER, ECHO, slots=1)
    started = asyncio.Event()

    async def consume() -> None:
        async with await engine.generate(request("forever")) as stream:
            async for _ in stream:
                started.set()

    task = asyncio.create_task(consume())
    async with asyncio.timeout(30):
        await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await ask(engine, "next"))[0] == "next"


async def test_cancelled_while_waiting_leaks_no_slot(engine_of: EngineMaker) -> None:
    engine = engine_of(FOREVER, ECHO, slots=1)
    async with await engine.generate(request("forever")) as stream:
        await first_text(stream)
        tasks = [asyncio.create_task(engine.generate(request("x"))) for _ in range(5)]
        await wait_until(lambda: engine.waiting == 5)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        assert engine.waiting == 1
        # The last one is cancelled in the same loop iteration in which it would get the slot.
        stream.abort()
        await stream.wait_ended()
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
    if not tasks[0].cancelled():
        (await tasks[0]).abort()
    await wait_until(lambda: engine.running == 0)
    assert (await ask(engine, "next"))[0] == "next"


async def test_cancelled_while_loading_leaks_no_slot(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO, slots=1, load_ms=100)
    task = asyncio.create_task(engine.generate(request()))
    await asyncio.sleep(0.01)
    assert engine.state is EngineState.LOADING
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await ask(engine, "next"))[0] == "next"
    assert engine.running == 0


async def test_interactive_requests_are_served_first(engine_of: EngineMaker) -> None:
    engine = engine_of(FOREVER, ECHO, slots=1)
    order: list[str] = []

    async def visit(name: str, priority: Priority) -> None:
        await ask(engine, name, priority=priority)
        order.append(name)

    async with await engine.generate(request("forever")) as stream:
        await first_text(stream)
        tasks = []
        for name, priority in [
            ("batch", Priority.BATCH),
            ("job", Priority.JOB),
            ("chat", Priority.INTERACTIVE),
        ]:
            tasks.append(asyncio.create_task(visit(name, priority)))
            await wait_until(lambda: engine.waiting == len(tasks))
    await asyncio.gather(*tasks)
    assert order == ["chat", "job", "batch"]


async def test_full_queue_refuses_and_the_rest_is_served(engine_of: EngineMaker) -> None:
    # R54
    engine = engine_of(FOREVER, ECHO, slots=1, max_queue=2)
    async with await engine.generate(request("forever")) as stream:
        await first_text(stream)
        waiting = [
            asyncio.create_task(ask(engine, "patience", priority=Priority.INTERACTIVE))
            for _ in range(2)
        ]
        await wait_until(lambda: engine.waiting == 2)
        with pytest.raises(QueueFull) as caught:
            await engine.generate(request(priority=Priority.INTERACTIVE))
        assert caught.value.details["retry_after_s"] == 1
    assert [text for text, _ in await asyncio.gather(*waiting)] == ["patience"] * 2


async def test_requests_wait_until_the_model_is_loaded(
    engine_of: EngineMaker,
) -> None:
    engine = engine_of(ECHO, slots=4, load_ms=100)
    assert engine.state is EngineState.LOADING
    assert engine.capabilities is None
    answers = await asyncio.gather(*(ask(engine, str(number)) for number in range(8)))
    assert [text for text, _ in answers] == [str(number) for number in range(8)]
    assert engine.slots == 4
    assert engine.capabilities is not None


async def test_error_of_the_backend_fails_only_its_request(engine_of: EngineMaker) -> None:
    # R30
    engine = engine_of({"when": "bad", "pieces": ["some ", {"error": "out of ink"}]}, ECHO)
    async with await engine.generate(request("bad")) as stream:
        texts: list[str] = []
        with pytest.raises(BackendFailed, match="out of ink"):
            await read_into(stream, texts)
    assert texts == ["some "]
    assert (await ask(engine, "good"))[0] == "good"
    assert engine.restarts == 0


async def test_prompt_longer_than_the_context_names_both_lengths(engine_of: EngineMaker) -> None:
    # R54
    engine = engine_of(ECHO, context_length=10)
    with pytest.raises(PromptTooLong, match=r"12 .* 10") as caught:
        await ask(engine, "word " * 11 + "end")
    assert caught.value.details == {"prompt_tokens": 12, "context_length": 10}
    assert engine.running == 0


async def test_refused_parameter_gives_its_slot_back(engine_of: EngineMaker) -> None:
    # R16
    engine = engine_of(ECHO, slots=1)
    for _ in range(3):
        with pytest.raises(UnsupportedParameter):
            await engine.generate(request(lora="missing"))
    assert engine.running == 0
    assert (await ask(engine, "next"))[0] == "next"


async def test_stream_has_warnings_about_ignored_parameters(engine_of: EngineMaker) -> None:
    # R16
    engine = engine_of(ECHO, capabilities={"seed": False})
    async with await engine.generate(request(seed=1)) as stream:
        assert stream.warnings == ("seed is not supported by the scripted engine and was ignored",)


@pytest.mark.parametrize(
    "bad",
    [{"prompt": "half a pair: \ud83d"}, {"seed": 2**70}, {"stop": ("",)}],
    ids=["surrogate", "seed", "stop"],
)
async def test_value_that_cannot_be_sent_fails_only_its_request(
    engine_of: EngineMaker, bad: dict[str, Any]
) -> None:
    engine = engine_of({"when": "half", "pieces": [{"error": "it came through"}]}, ECHO, slots=1)
    async with await engine.generate(request("neighbour")) as stream:
        await read(stream)
    try:
        await ask(engine, **bad)
    except (RequestRejected, BackendFailed):
        pass
    else:
        # In a thread nothing has to be sent, and this backend does not use the value.
        assert engine._host.threaded
        assert "seed" in bad
    assert engine.running == 0
    assert (await ask(engine, "next"))[0] == "next"
    assert engine.restarts == 0


async def test_render_and_tokenize(engine_of: EngineMaker) -> None:
    # R38
    engine = engine_of(ECHO)
    chat = Chat((Message("user", "Hi 😀"),))
    assert await engine.render(chat) == "user: Hi 😀\nassistant:"
    text, _ = await ask(engine, chat)
    assert text == "user: Hi 😀\nassistant:"
    tokens = await engine.tokenize("one two one")
    assert len(tokens) == 3


async def test_side_calls_fail_as_engine_errors(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO)
    await engine.ready()
    with pytest.raises(EngineError):
        await engine.tokenize("\ud800")
    assert await engine.tokenize("fine")


async def test_side_calls_do_not_wait_for_a_slot(engine_of: EngineMaker) -> None:
    engine = engine_of(FOREVER, slots=1)
    async with await engine.generate(request("forever")) as stream:
        await first_text(stream)
        async with asyncio.timeout(30):
            assert len(await engine.tokenize("a b")) == 2


async def test_slow_reader_does_not_affect_other_requests(
    engine_of: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.runs.stream, "MAX_PENDING_CHARS", 2000)
    talker = {"when": "talk", "pieces": ["x" * 100], "repeat": -1, "delay_ms": 0.1}
    subject = engine_of(talker, FOREVER, ECHO, slots=2)
    async with await subject.generate(request("talk")) as lazy:
        async with await subject.generate(request("forever")) as neighbour:
            await first_text(neighbour)
            async with asyncio.timeout(30):
                await lazy.wait_ended()
            assert await first_text(neighbour)
        with pytest.raises(ConsumerTooSlow):
            await read(lazy)
    assert (await ask(subject, "next"))[0] == "next"


async def test_exception_of_a_hook_fails_no_request(engine_of: EngineMaker) -> None:
    def broken(event: EngineEvent) -> None:
        raise RuntimeError("broken")

    assert (await ask(engine_of(ECHO, hooks=[broken]), "fine"))[0] == "fine"


async def test_events_of_a_request_are_in_order_with_its_figures(engine_of: EngineMaker) -> None:
    events: list[EngineEvent] = []
    engine = engine_of({"pieces": ["a", "b"], "prefill_ms": 30}, slots=1, hooks=[events.append])
    await engine.ready()
    first, second = request(), request(priority=Priority.INTERACTIVE)

    async def serve(number: int) -> None:
        async with await engine.generate((first, second)[number]) as stream:
            await read(stream)

    await asyncio.gather(serve(0), serve(1))
    assert isinstance(events.pop(0), HostLoaded)
    assert [
        (type(event), event.request_id == second.request_id)
        for event in events
        if not isinstance(event, HostLoaded | HostLost)
    ] == [
        (RequestStarted, False),
        (RequestQueued, True),
        (FirstToken, False),
        (RequestEnded, False),
        (RequestStarted, True),
        (FirstToken, True),
        (RequestEnded, True),
    ]
    started, queued, token, ended, started_2, _, _ = events
    assert isinstance(started, RequestStarted)
    assert started.queue_s < 0.5
    assert isinstance(queued, RequestQueued)
    assert (queued.waiting, queued.priority) == (1, Priority.INTERACTIVE)
    assert isinstance(token, FirstToken)
    assert token.after_s >= 0.03
    assert isinstance(ended, RequestEnded)
    assert ended.duration_s >= token.after_s
    assert ended.finish is not None
    assert ended.finish.usage.completion_tokens == 2
    assert isinstance(started_2, RequestStarted)
    assert started_2.queue_s >= 0.02


async def test_close_ends_running_and_waiting_requests(engine_of: EngineMaker) -> None:
    engine = engine_of(FOREVER, SILENT, slots=2)
    speaking = await engine.generate(request("forever"))
    silent = await engine.generate(request("silent"))
    await first_text(speaking)
    waiting = asyncio.create_task(engine.generate(request()))
    await wait_until(lambda: engine.waiting == 1)
    async with asyncio.timeout(30):
        await engine.close()
        with pytest.raises(EngineClosed):
            await waiting
        for stream in (speaking, silent):
            with pytest.raises(EngineClosed):
                await anext(stream)
            await stream.wait_ended()
    assert engine.running == 0
    assert engine.state is EngineState.DEAD
    with pytest.raises(EngineClosed):
        await engine.generate(request())
    with pytest.raises(EngineClosed):
        await engine.ready()
    with pytest.raises(EngineClosed):
        await engine.tokenize("x")


async def test_close_of_an_unused_engine(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO)
    async with asyncio.timeout(30):
        await engine.close()
        await engine.close()
    with pytest.raises(EngineClosed):
        await engine.generate(request())


async def test_errors_of_a_dead_engine_do_not_grow_with_every_request(
    engine_of: EngineMaker,
) -> None:
    engine = engine_of(ECHO)
    await engine.close()
    for refused in (lambda: engine.generate(request()), engine.ready):
        for _ in range(50):
            with pytest.raises(EngineClosed) as caught:
                await refused()
        assert len(traceback.extract_tb(caught.value.__traceback__)) < 20


def test_spawn_needs_no_loop(engine_of: EngineMaker) -> None:
    engine = engine_of(ECHO)
    engine.spawn()
    engine.spawn()

    async def use(engine: Engine) -> str:
        text, _ = await ask(engine, "from the start")
        await engine.close()
        return text

    assert asyncio.run(use(engine)) == "from the start"
