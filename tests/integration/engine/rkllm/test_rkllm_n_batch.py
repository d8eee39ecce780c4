"""RKLLM_N_BATCH with both ABIs: requests that share a run, each with its own answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine import EMBED, Engine, FinishReason, Priority, TokenStream
from engine.backends.options import options_from_wire
from engine.backends.rkllm.abi.abi import Abi
from engine.backends.rkllm.batching import scheduler
from engine.doctor.examiner import FAILED, Doctor
from engine.errors import (
    BackendFailed,
    EngineCrashed,
    EngineError,
    EngineStalled,
    ModelLoadFailed,
    UnsupportedParameter,
)
from handler.apis.openai.service import OpenAIService
from handler.pipeline import Pipeline
from tests.fake_rkllm import Call, read_log
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, first_text, read, request
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.usefixtures("examined_once", "tokenizer")]
only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)

# Every token contains its prompt; the last number of a prompt is its number of tokens.
COUNT = 'answer\n  say "\\{i}/\\{prompt} " times=asked\n'
SLOW = 'answer\n  say "\\{i}/\\{prompt} " us=2000 times=asked\n'
# For answers that must be stopped by the test.
ENDLESS = 'answer\n  say "\\{i}/\\{prompt} " us=1000 times=1000000\n'


@pytest.fixture(autouse=True)
def tokenizer(tmp_path: Path) -> Path:
    """Write tokenizer files for every model of this test."""
    return write_tokenizer(tmp_path)


@pytest.fixture
def full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gather requests long enough for a busy machine."""
    monkeypatch.setattr(scheduler, "GATHER_WINDOW_S", 0.5 * PATIENCE)


def expected_text(prompt: tuple[int, ...], tokens: int) -> str:
    name = " ".join(map(str, prompt))
    return "".join(f"{i}/{name} " for i in range(tokens))


def calls(log: Path, name: str) -> list[Call]:
    return [call for call in read_log(log) if call.name == name]


def runs_of(log: Path) -> list[list[str]]:
    """Return the token ids of each sequence, run by run."""
    sequences: dict[str, list[str]] = {}
    for call in calls(log, "context"):
        run = sequences.setdefault(call.values["run"], [])
        assert int(call.values["place"]) == len(run)
        run.append(call.values["ids"])
    return list(sequences.values())


@only_threads
@pytest.mark.usefixtures("full_batches")
async def test_requests_share_one_run(rkllm_of: RkllmMaker, call_log: Path) -> None:
    engine = rkllm_of(COUNT, n_batch=4)
    assert (await engine.ready()).slots == 4
    prompts = [(7, 5), (8, 9, 1), (10, 30), (11, 11, 11, 2)]
    answers = await asyncio.gather(*(ask(engine, prompt) for prompt in prompts))
    for prompt, (text, finish) in zip(prompts, answers, strict=True):
        assert text == expected_text(prompt, prompt[-1])
        assert finish.reason is FinishReason.STOP
        assert finish.usage.prompt_tokens == len(prompt)
        assert finish.usage.completion_tokens == prompt[-1]
    assert calls(call_log, "rkllm_init")[0].values["n_batch"] == "4"
    assert [call.values["places"] for call in calls(call_log, "rkllm_run")] == ["4"]
    ids = [",".join(map(str, prompt)) for prompt in prompts]
    assert sorted(runs_of(call_log)[0]) == sorted(ids)
    # All had ended, so the run ended itself.
    assert not calls(call_log, "rkllm_abort")


@only_processes
async def test_requests_waiting_for_a_run_share_the_next_one(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = rkllm_of(
        f'answer when="1 2 3"\n  say "x" us=1000 times=1000000\n  abort ms=300\n{COUNT}', n_batch=4
    )
    async with await engine.generate(request((1, 2, 3))) as first:
        await first_text(first)
        others = [asyncio.create_task(ask(engine, (n, 20))) for n in (50, 60, 70)]
        await wait_until(lambda: engine.running == 4)
    for number, task in zip((50, 60, 70), others, strict=True):
        assert (await task)[0] == expected_text((number, 20), 20)
    runs = runs_of(call_log)
    assert [len(run) for run in runs] == [4, 4]
    assert sorted(runs[1][:3]) == ["50,20", "60,20", "70,20"]


@only_threads
async def test_single_request_is_padded_with_minimal_prompts(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = rkllm_of(f'answer when="99 3"\n  say "\\{{i}} " times=3\n{ENDLESS}', n_batch=3)
    text, finish = await ask(engine, (99, 3))
    assert (text, finish.usage.completion_tokens) == ("0 1 2 ", 3)
    assert runs_of(call_log) == [["99,3", "99", "99"]]
    # The padding sequences belong to no request.
    assert calls(call_log, "rkllm_abort")
    assert (await ask(engine, (99, 3)))[0] == text


@only_threads
async def test_runs_have_one_input_without_n_batch(rkllm_of: RkllmMaker, call_log: Path) -> None:
    engine = rkllm_of(COUNT)
    assert (await engine.ready()).slots == 1
    answers = await asyncio.gather(*(ask(engine, (number, 3)) for number in (5, 6)))
    assert [text for text, _ in answers] == [expected_text((5, 3), 3), expected_text((6, 3), 3)]
    assert calls(call_log, "rkllm_init")[0].values["n_batch"] == "1"
    assert [len(run) for run in runs_of(call_log)] == [1, 1]


@only_threads
@pytest.mark.usefixtures("full_batches")
async def test_each_request_has_its_own_stop_string_and_limit(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = rkllm_of(COUNT, n_batch=3)
    stopped, cut, complete = await asyncio.gather(
        ask(engine, (5, 40), stop=("7/",)),
        ask(engine, (6, 40), max_tokens=9),
        ask(engine, (7, 40)),
    )
    assert stopped[0] == expected_text((5, 40), 7)
    assert (stopped[1].stop_reason, stopped[1].usage.completion_tokens) == ("7/", 8)
    assert cut[0] == expected_text((6, 40), 9)
    assert (cut[1].reason, cut[1].usage.completion_tokens) == (FinishReason.LENGTH, 9)
    assert (complete[0], complete[1].reason) == (expected_text((7, 40), 40), FinishReason.STOP)
    assert len(runs_of(call_log)) == 1


@only_threads
@pytest.mark.usefixtures("full_batches")
async def test_answer_ends_at_a_full_context(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(ENDLESS, n_batch=2, context_length=32)
    prompts = ((1, 2, 3), (4, 5, 6, 7, 8))
    for prompt, (text, finish) in zip(
        prompts, await asyncio.gather(*(ask(engine, each) for each in prompts)), strict=True
    ):
        assert text == expected_text(prompt, 32 - len(prompt))
        assert (finish.reason, finish.usage.total_tokens) == (FinishReason.LENGTH, 32)


async def wait_for_more(stream: TokenStream, prompt: tuple[int, ...], received: str) -> None:
    """Read 1,000 more characters of an endless answer."""
    assert stream.result is None
    target_chars = len(received) + 1000
    while len(received) < target_chars:
        received += await first_text(stream)
    assert expected_text(prompt, len(received)).startswith(received)


async def test_aborted_request_returns_immediately_and_the_others_continue(
    rkllm_of: RkllmMaker,
) -> None:
    engine = rkllm_of(ENDLESS, n_batch=2)
    await engine.ready()
    async with await engine.generate(request((5, 1))) as staying:
        received = await first_text(staying)
        # Its slot is free, whether it shares that run or waits for the next one.
        async with await engine.generate(request((6, 1))):
            assert engine.running == 2
        await wait_until(lambda: engine.running == 1)
        await wait_for_more(staying, (5, 1), received)


@pytest.mark.usefixtures("full_batches")
@only_threads
async def test_aborted_request_does_not_affect_the_others(
    rkllm_of: RkllmMaker, call_log: Path
) -> None:
    engine = rkllm_of(ENDLESS, n_batch=2)
    async with (
        await engine.generate(request((5, 1))) as staying,
        await engine.generate(request((6, 1))) as leaving,
    ):
        received = await first_text(staying)
        await first_text(leaving)
        leaving.abort()
        await wait_until(lambda: engine.running == 1)
        await wait_for_more(staying, (5, 1), received)
        assert not calls(call_log, "rkllm_abort")
    assert len(runs_of(call_log)) == 1


@pytest.mark.usefixtures("full_batches")
@only_threads
async def test_run_without_active_requests_is_aborted(rkllm_of: RkllmMaker, call_log: Path) -> None:
    engine = rkllm_of(f'answer when="7 7"\n  say "\\{{i}} " times=3\n{ENDLESS}', n_batch=2)
    async with (
        await engine.generate(request((5, 1))) as first_stream,
        await engine.generate(request((6, 1))) as other,
    ):
        await first_text(first_stream)
        await first_text(other)
    await wait_until(lambda: not engine.running)
    assert calls(call_log, "rkllm_abort")
    assert (await asyncio.gather(ask(engine, (7, 7)), ask(engine, (7, 7))))[1][0] == "0 1 2 "


@only_threads
@pytest.mark.usefixtures("full_batches")
async def test_different_sampling_shares_no_run_with_sampling_per_run(
    rkllm_of: RkllmMaker, abi: Abi, call_log: Path
) -> None:
    engine = rkllm_of('answer\n  say "\\{seen}"\n', n_batch=4)
    requested = [{"top_k": 3}, {"top_k": 4}, {"top_k": 3}, {"top_k": 4}]
    answers = await asyncio.gather(
        *(ask(engine, (index, 1), **sampling) for index, sampling in enumerate(requested))
    )
    top_k_values = [json.loads(text)["sampling"]["top_k"] for text, _ in answers]
    assert top_k_values == ([3, 4, 3, 4] if abi.sampling_per_run else [50] * 4)
    assert len(runs_of(call_log)) == (2 if abi.sampling_per_run else 1)


@only_threads
@pytest.mark.usefixtures("full_batches")
async def test_requests_of_a_run_share_load_time_parameters(
    rkllm_of: RkllmMaker, abi: Abi, call_log: Path
) -> None:
    engine = rkllm_of('answer\n  say "\\{seen}"\n', n_batch=4, sampling="reload")
    usual: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 50}
    other = usual | ({"ignore_eos": True} if abi.sampling_per_run else {"top_k": 3})
    answers = await asyncio.gather(
        *(ask(engine, (index, 1), **sampling) for index, sampling in enumerate([usual, other] * 2))
    )
    reload_times_ms = [finish.timings.reload_ms for _, finish in answers]
    assert reload_times_ms[0] == reload_times_ms[2]
    assert reload_times_ms[1] == reload_times_ms[3] > 0
    names = [call.name for call in read_log(call_log)]
    assert names.count("rkllm_run") == 2
    # The order of arrival depends on the threads.
    assert names.count("rkllm_init") == 2 + (reload_times_ms[0] > 0)


@only_threads
@pytest.mark.usefixtures("full_batches")
async def test_adapters_share_no_run(rkllm_of: RkllmMaker, tmp_path: Path, call_log: Path) -> None:
    path = tmp_path / "one.lora"
    path.write_text("weights")
    engine = rkllm_of('answer\n  say "\\{seen}"\n', n_batch=4, lora=f"french={path}")
    adapters = ["french", None, "french", None]
    answers = await asyncio.gather(
        *(ask(engine, (index, 1), lora=lora) for index, lora in enumerate(adapters))
    )
    assert [json.loads(text)["lora"] for text, _ in answers] == adapters
    assert len(runs_of(call_log)) == 2


@only_threads
@pytest.mark.usefixtures("full_batches")
async def test_failure_ends_all_active_requests(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(
        f'answer when="66 2"\n  say "\\{{i}}/\\{{prompt}} " times=asked\n'
        f'answer when="66"\n  say "x" times=20\n  error null\n{SLOW}',
        n_batch=3,
    )
    complete, failed, other_failed = await asyncio.gather(
        ask(engine, (66, 2)), ask(engine, (66, 1)), ask(engine, (5, 200)), return_exceptions=True
    )
    assert not isinstance(complete, BaseException)
    assert complete[0] == expected_text((66, 2), 2)
    for error in (failed, other_failed):
        assert isinstance(error, BackendFailed)
        assert "failed and gave no reason (rkllm_run answered -1)" in error.message
    both = await asyncio.gather(ask(engine, (5, 4)), ask(engine, (6, 4)))
    assert [text for text, _ in both] == [expected_text((5, 4), 4), expected_text((6, 4), 4)]


@only_processes
async def test_crash_affects_only_its_batch(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(
        f'answer when="66"\n  say "x" us=1000 times=300\n  crash "E RKNN: no more"\n{COUNT}',
        n_batch=2,
    )
    lost = await asyncio.gather(
        *(ask(engine, (66, number)) for number in (1, 2)), return_exceptions=True
    )
    assert [type(each) for each in lost] == [EngineCrashed] * 2
    answers = await asyncio.gather(*(ask(engine, (number, 9)) for number in (5, 6)))
    assert [text for text, _ in answers] == [expected_text((5, 9), 9), expected_text((6, 9), 9)]


@only_processes
async def test_runtime_that_ignores_an_abort_is_detected(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(
        f'answer when="66"\n  say "x"\n  hang\n  abort ignored\n{COUNT}',
        n_batch=2,
        stall_timeout_s=0.3 * PATIENCE,
        abort_grace_s=0.3 * PATIENCE,
        neighbour_grace_s=0.5 * PATIENCE,
    )
    lost = await asyncio.gather(
        *(ask(engine, (66, number)) for number in (1, 2)), return_exceptions=True
    )
    # A request that came too late for the first run fails with the process.
    assert any(isinstance(each, EngineStalled) for each in lost)
    assert all(isinstance(each, EngineStalled | EngineCrashed) for each in lost)
    await wait_until(lambda: engine.restarts == 1)
    assert (await ask(engine, (5, 9)))[0] == expected_text((5, 9), 9)


@only_processes
async def test_request_waiting_for_a_run_that_hangs_fails_after_the_drain(
    rkllm_of: RkllmMaker,
) -> None:
    engine = rkllm_of(
        f'answer when="66"\n  say "x"\n  hang\n  abort ignored\n{COUNT}',
        n_batch=2,
        stall_timeout_s=0.3 * PATIENCE,
        abort_grace_s=0.3 * PATIENCE,
        neighbour_grace_s=0.5 * PATIENCE,
    )
    async with await engine.generate(request((66, 1))) as first:
        await first_text(first)
        with pytest.raises(EngineCrashed):
            await ask(engine, (5, 9))
        with pytest.raises(EngineStalled):
            await read(first)
    assert (await ask(engine, (5, 9)))[0] == expected_text((5, 9), 9)


@only_threads
@pytest.mark.usefixtures("full_batches")
async def test_incomplete_character_of_one_does_not_delay_the_others(rkllm_of: RkllmMaker) -> None:
    engine = rkllm_of(
        'answer when="5 1"\n  waiting "\\xe2" "\\xe2\\x82" times=20\n  say "\\xe2\\x82\\xac"\n'
        + COUNT,
        n_batch=2,
    )
    euro, other = await asyncio.gather(ask(engine, (5, 1)), ask(engine, (6, 60)))
    assert (euro[0], euro[1].usage.completion_tokens) == ("€", 41)
    assert other[0] == expected_text((6, 60), 60)


@only_threads
async def test_embeddings_run_between_batches(rkllm_of: RkllmMaker, call_log: Path) -> None:
    engine = rkllm_of(SLOW, n_batch=3)
    await engine.ready()

    async def vector(text: tuple[int, ...]) -> int:
        (embedding,) = await engine.compute(EMBED, [text], Priority.INTERACTIVE)
        assert embedding.tokens == len(text)
        return round(embedding.vector[0] / (embedding.vector[1] - embedding.vector[0]) / 100)

    for _ in range(5):
        rows, text, longer, (other, _) = await asyncio.gather(
            vector((5, 6, 7)), ask(engine, (8, 9)), vector((1,) * 9), ask(engine, (9, 8))
        )
        # The fake library's rows contain their numbers.
        assert (rows, longer) == (2, 8)
        assert (text[0], other) == (expected_text((8, 9), 9), expected_text((9, 8), 8))


@only_threads
async def test_unsupported_batch_settings_are_refused_at_load(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadFailed, match="RKLLM_N_BATCH must be 1 if RKLLM_MODE is logits"):
        await rkllm_of(COUNT, n_batch=2, mode="logits").ready()
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadFailed, match="RKLLM_N_BATCH above 1 needs the tokenizer files"):
        await rkllm_of(COUNT, n_batch=2).ready()


@only_threads
async def test_messages_need_a_template(rkllm_of: RkllmMaker, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, template=None)
    engine = rkllm_of(COUNT, n_batch=2)
    service = OpenAIService(Pipeline(engine, "fake"))
    with pytest.raises(UnsupportedParameter, match="no chat template"):
        await service.complete(
            service.parse_call(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}
            )
        )


@only_threads
@pytest.mark.usefixtures("full_batches")
@pytest.mark.parametrize(
    "body",
    [{"prompt": [[5, 9], [6, 9], [7, 9], [8, 9]]}, {"prompt": [5, 9], "n": 4}],
    ids=["array", "n"],
)
async def test_arrays_of_prompts_are_packed(
    rkllm_of: RkllmMaker, call_log: Path, body: dict[str, Any]
) -> None:
    service = OpenAIService(Pipeline(rkllm_of(COUNT, n_batch=4), "fake"))
    answer = await service.complete(service.parse_call("/v1/completions", body))
    prompts = body["prompt"] if "n" not in body else [body["prompt"]] * 4
    assert [choice["text"] for choice in answer["choices"]] == [
        expected_text(tuple(prompt), 9) for prompt in prompts
    ]
    assert answer["usage"]["completion_tokens"] == 36
    assert [len(run) for run in runs_of(call_log)] == [4]


COUNTING = 'answer\n  spell "one two three " us=200 times=10000\n'


@pytest.mark.parametrize("template", [True, False], ids=["template", "none"])
def test_doctor_uses_the_batch_settings(
    library: Path, model: Callable[[str], Path], tmp_path: Path, template: bool
) -> None:
    if not template:
        write_tokenizer(tmp_path, None)
    options = options_from_wire(
        "rkllm",
        {
            "model_path": str(model(f"vocabulary 260\nchatter none\n{COUNTING}")),
            "model_name": "fake",
            "context_length": 16384,
            "lib_path": str(library),
            "n_batch": 3,
        },
    )
    doctor = Doctor(options)
    values = {(step, name): value for step, name, value in doctor.examine()}
    assert not [each for each in values.items() if each[0][1] == FAILED]
    assert values["loading", "slots"] == 3
    # The threads of requests never call the library.
    assert values["first run", "callbacks on the calling thread"] is None
    assert values["limit of 5 tokens", "text"] == "one t"
    assert values["next turn", "tokens reused"] == 0
    assert values["vector", "tokens"] > 0


@dataclass(frozen=True, slots=True)
class ExpectedRequest:
    """One of many requests: its limit, and after how many tokens it is cancelled, if at all."""

    prompt: tuple[int, ...]
    sampling: dict[str, Any]
    abort_after: int | None

    @classmethod
    def create_random(cls, rng: random.Random, number: int) -> ExpectedRequest:
        tokens = rng.choice([0, 1, 2, rng.randrange(60), rng.randrange(250)])
        sampling: dict[str, Any] = {}
        if rng.random() < 0.4:
            sampling["max_tokens"] = rng.randint(1, 80)
        if rng.random() < 0.3:
            sampling["stop"] = (f"{rng.randrange(60)}/",)
        if rng.random() < 0.2:
            sampling["top_k"] = 9
        words = tuple(rng.randrange(256) for _ in range(rng.randrange(5)))
        abort_after = rng.randrange(tokens + 1) if rng.random() < 0.3 else None
        return cls((*words, number % 256, number // 256, tokens), sampling, abort_after)

    @property
    def expected_result(self) -> tuple[str, FinishReason, int]:
        tokens = self.prompt[-1]
        limit = self.sampling.get("max_tokens", 10_000)
        (stop,) = self.sampling.get("stop", ("10000/",))
        stop_index = int(stop[:-1])
        # A longer number with the same ending occurs later.
        if stop_index < min(tokens, limit):
            return expected_text(self.prompt, stop_index), FinishReason.STOP, stop_index + 1
        if limit <= tokens:
            return expected_text(self.prompt, limit), FinishReason.LENGTH, limit
        return expected_text(self.prompt, tokens), FinishReason.STOP, tokens


async def check_request(engine: Engine, expected: ExpectedRequest) -> None:
    text, reason, tokens = expected.expected_result
    received: list[str] = []
    async with await engine.generate(request(expected.prompt, **expected.sampling)) as stream:
        async for batch in stream:
            received += [delta.text for delta in batch]
            if expected.abort_after is not None and len(received) >= expected.abort_after:
                break
    if expected.abort_after is not None and stream.result is None:
        assert text.startswith("".join(received))
        return
    assert stream.result is not None
    usage = stream.result.usage
    assert ("".join(received), stream.result.reason) == (text, reason)
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(expected.prompt), tokens)


async def test_concurrent_clients_get_their_own_answers(rkllm_of: RkllmMaker, scale: int) -> None:
    engine = rkllm_of(COUNT, n_batch=4)
    rng = random.Random(11)
    pending = [ExpectedRequest.create_random(rng, number) for number in range(200 * scale)][::-1]

    async def client() -> None:
        while pending:
            expected = pending.pop()
            try:
                await check_request(engine, expected)
            except (AssertionError, EngineError) as error:
                error.add_note(str(expected))
                raise

    async with asyncio.timeout(120 * PATIENCE):
        await asyncio.gather(*(client() for _ in range(6)))
    await wait_until(lambda: not engine.running)
    assert engine.restarts == 0
