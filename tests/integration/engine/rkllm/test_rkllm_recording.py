"""Record runs of one build of the fake library, and replay them on another with the same faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from engine import EMBED, Engine
from engine.backends.rkllm.abi.abi import ABI_12, Abi
from engine.backends.rkllm.batching import scheduler
from engine.errors import BackendFailed, EngineCrashed, EngineStalled, ModelLoadFailed
from engine.request import Priority
from tests.fake_rkllm.replay import (
    FINISH,
    NORMAL,
    RecordedRun,
    Recording,
    build_script,
    placeholder,
    read_recording,
    read_recordings,
)
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, first_text, request
from tests.waiting import WAIT_S, wait_until

only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)
RECORDED_ABIS = pytest.mark.parametrize("recorded_abi", ["1.2", "1.3.1"])

SCRIPT = r"""
    answer when="alpha"
      prefill_ms 60
      thread alternate
      say "It " "rains" null us=20000
      waiting "\xe2" us=20000
      say "." us=20000 id=7
      perf prefill_tokens=12 generate_tokens=99 memory_usage_mb=512.5
    answer when="bravo"
      prefill_ms 40
      say "a" us=20000 times=3
      error "out of memory"
    answer when="charlie"
      thread foreign
      say "b" us=20000 times=4
      finish none
    answer when="delta"
      thread caller
      say "c" us=20000 times=4
      returns -3
    answer when="echo"
      thread caller
      abort ms=100 finish
      say "d" us=20000 times=1000
    answer when="foxtrot"
      thread foreign
      say "e" us=20000 times=3
      finish none
      late 3 ms=60 finish
    answer when="golf"
      say "f" us=20000 times=5
"""
FAULTS = {
    "bravo": "rkllm_run answered -1",
    "charlie": "without saying that it was done",
    "delta": "rkllm_run answered -3",
    "foxtrot": "without saying that it was done",
}


async def send_requests(engine: Engine) -> dict[str, str]:
    """Send a request for each answer of the script; return the messages of the failed ones."""
    errors = {}
    for prompt in ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf"):
        try:
            if prompt == "echo":
                async with await engine.generate(request(prompt)) as stream:
                    await first_text(stream)
                await wait_until(lambda: engine.running == 0)
            else:
                await ask(engine, prompt)
        except BackendFailed as error:
            errors[prompt] = error.message
    return errors


async def record(engine: Engine, path: Path) -> tuple[dict[str, str], Recording]:
    errors = await send_requests(engine)
    await engine.close()
    return errors, read_recording(path)


def callbacks(run: RecordedRun) -> list[tuple[Any, ...]]:
    """Return a run's callbacks without their times."""
    return [
        (result.state, result.is_caller_thread, result.tokens)
        for result in (*run.results, *run.late_results)
    ]


def statistics_of(run: RecordedRun) -> dict[str, Any]:
    """Return the numbers at FINISH, or those of the rows."""
    return run.results[-1].details if run.results else {}


def durations_ms(recording: Recording) -> list[float]:
    """Return the duration of each run."""
    return [(run.return_us - run.time_us) / 1000 for run in recording.runs if run.return_us]


def gaps_ms(recording: Recording) -> list[float]:
    """Return the times between callbacks."""
    return [
        (later.time_us - earlier.time_us) / 1000
        for run in recording.runs
        for earlier, later in zip(run.results, run.results[1:], strict=False)
        if later.state == NORMAL
    ]


@RECORDED_ABIS
async def test_recording_replays_with_the_same_callbacks_times_and_faults(
    rkllm_of: RkllmMaker,
    model: Callable[[str], Path],
    fake_library: Callable[[str], Path],
    tmp_path: Path,
    recorded_abi: str,
) -> None:
    original = rkllm_of(
        SCRIPT, record=str(tmp_path / "board.jsonl"), lib_path=str(fake_library(recorded_abi))
    )
    errors, recorded = await record(original, tmp_path / "board.jsonl")
    assert errors.keys() == FAULTS.keys()
    assert all(FAULTS[prompt] in message for prompt, message in errors.items())

    replay = rkllm_of(model(build_script([recorded])), record=str(tmp_path / "replay.jsonl"))
    replay_errors, replayed = await record(replay, tmp_path / "replay.jsonl")
    assert replay_errors == errors
    assert [*map(callbacks, replayed.runs)] == [*map(callbacks, recorded.runs)]
    assert [*map(statistics_of, replayed.runs)] == [*map(statistics_of, recorded.runs)]
    assert [run.code for run in replayed.runs] == [run.code for run in recorded.runs]
    # A busy machine delays a replay, and the recording too; it shortens neither.
    total = sum(durations_ms(replayed)) / sum(durations_ms(recorded))
    gap = median(gaps_ms(replayed)) / median(gaps_ms(recorded))
    assert 0.75 <= total <= 1.5
    assert 0.75 <= gap <= 1.5


@only_threads
async def test_recording_with_texts_replays_the_texts(
    rkllm_of: RkllmMaker, model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "board.jsonl"
    original = rkllm_of(
        'answer\n  say "Grü" "\\xe2\\x82" "\\xac" "\\"quoted\\"\\n"\n',
        record=str(path),
        record_text=True,
    )
    text = (await ask(original, "the prompt"))[0]
    await original.close()
    assert text == 'Grü€"quoted"\n'
    assert '"the prompt"' in path.read_text()
    replay = rkllm_of(model(build_script([read_recording(path)])))
    assert (await ask(replay, "another prompt"))[0] == text


@only_threads
async def test_long_answer_is_recorded_in_60_kb_without_its_text(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    path = tmp_path / "board.jsonl"
    engine = rkllm_of('answer\n  say "confidential-\\{i} " times=1000\n', record=str(path))
    text, finish = await ask(engine, "restricted prompt")
    await engine.close()
    assert finish.usage.completion_tokens == 1000
    content = path.read_text()
    assert len(content) < 60_000
    assert text.startswith("confidential-0 confidential-1 ")
    for secret in ("confidential", "restricted", str(tmp_path)):
        assert secret not in content
    recording = read_recording(path)
    tokens = [result.tokens[0] for result in recording.runs[0].results if result.state < FINISH]
    assert tokens == [[None, len(f"confidential-{i} ")] for i in range(1000)]


@only_threads
async def test_batch_replays(
    rkllm_of: RkllmMaker,
    model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each pair shares a run, however long the machine takes to send the second request.
    monkeypatch.setattr(scheduler, "GATHER_WINDOW_S", WAIT_S)
    write_tokenizer(tmp_path / "tokenizer")
    options = {"n_batch": 2, "tokenizer": str(tmp_path / "tokenizer")}
    engine = rkllm_of(
        'answer when="1 1"\n  say "one " us=20000 times=3\nanswer\n  say "two " us=20000 times=5\n',
        record=str(tmp_path / "board.jsonl"),
        **options,
    )
    await asyncio.gather(ask(engine, (1, 1)), ask(engine, (2, 2)))
    await engine.close()
    recorded = read_recording(tmp_path / "board.jsonl")
    replay = rkllm_of(
        model(build_script([recorded])), record=str(tmp_path / "replay.jsonl"), **options
    )
    await asyncio.gather(ask(replay, (1, 1)), ask(replay, (2, 2)))
    await replay.close()
    replayed = read_recording(tmp_path / "replay.jsonl")
    assert [*map(callbacks, replayed.runs)] == [*map(callbacks, recorded.runs)]
    assert [len(run.results[0].tokens) for run in recorded.runs] == [2]


@only_threads
async def test_embedding_replays_with_its_rows(
    rkllm_of: RkllmMaker, model: Callable[[str], Path], tmp_path: Path
) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    options = {"tokenizer": str(tmp_path / "tokenizer")}
    engine = rkllm_of("answer", record=str(tmp_path / "board.jsonl"), **options)
    [embedding] = await engine.compute(EMBED, ("four!",), Priority.JOB)
    await engine.close()
    recorded = read_recording(tmp_path / "board.jsonl")
    assert recorded.runs[0].results[0].details == {"hidden_states": [6, len(embedding.vector)]}
    replay = rkllm_of(model(build_script([recorded])), **options)
    [replayed] = await replay.compute(EMBED, ("other",), Priority.JOB)
    assert (len(replayed.vector), replayed.tokens) == (len(embedding.vector), 6)


@only_threads
async def test_reloads_replay_with_the_runs_of_each_load(
    rkllm_of: RkllmMaker, model: Callable[[str], Path], tmp_path: Path, abi: Abi
) -> None:
    path, options = tmp_path / "board.jsonl", {"sampling": "reload"}
    script = 'answer when="one"\n  say "1" times=2\nanswer\n  say "2" times=3\n'
    usual: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 50}
    other = {**usual, **({"temperature": 1.5} if abi is ABI_12 else {"ignore_eos": True})}
    original = rkllm_of(script, record=str(path), **options)
    for prompt, sampling in (("one", usual), ("two", other), ("one", other)):
        await ask(original, prompt, **sampling)
    await original.close()
    recording = read_recording(path)
    assert [len(load.runs) for load in recording.loads] == [1, 2]
    replay = rkllm_of(model(build_script([recording])), **options)
    texts = [(await ask(replay, "any", **sampling))[0] for sampling in (usual, other, other)]
    assert texts == ["ab", "abc", "ab"]


@only_threads
async def test_cache_sizes_replay(
    rkllm_of: RkllmMaker, model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "board.jsonl"
    script = 'answer\n  cache less\n  abort ms=0 finish\n  say "a" us=2000 times=40\n'
    original = rkllm_of(script, record=str(path), record_text=True)

    async def continue_chat(engine: Engine) -> list[int]:
        """Return how many tokens of each turn were reused."""
        answer = tuple(range(1000, 1005))
        turns = [(1, 2, 3), (1, 2, 3, *answer, 4), (1, 2, 3, *answer, 4, *answer, 5)]
        return [(await ask(engine, turn, max_tokens=5))[1].usage.cached_tokens for turn in turns]

    reused = await continue_chat(original)
    await original.close()
    assert reused[1] > 0
    replay = rkllm_of(model(build_script([read_recording(path)])))
    assert await continue_chat(replay) == reused


# ---- crashes, hangs and failed loads ----


@pytest.mark.long
@only_processes
@RECORDED_ABIS
async def test_crash_replays_and_the_next_process_answers(
    rkllm_of: RkllmMaker,
    model: Callable[[str], Path],
    fake_library: Callable[[str], Path],
    tmp_path: Path,
    recorded_abi: str,
) -> None:
    path = tmp_path / "board.jsonl"
    script = 'answer when="go"\n  say "a" us=20000 times=3\n  crash\nanswer\n  say "b" times=4\n'
    original = rkllm_of(script, record=str(path), lib_path=str(fake_library(recorded_abi)))
    with pytest.raises(EngineCrashed, match="SIGSEGV"):
        await ask(original, "go")
    assert (await ask(original, "next"))[0] == "bbbb"
    await original.close()
    recordings = read_recordings(path)
    assert [[run.crashed for run in each.runs] for each in recordings] == [[True], [False]]
    replay = rkllm_of(model(build_script(recordings)), record=str(tmp_path / "replay.jsonl"))
    with pytest.raises(EngineCrashed, match="SIGSEGV"):
        await ask(replay, "go")
    assert (await ask(replay, "next"))[0] == "abcd"
    assert replay.restarts == 1
    await replay.close()
    replayed = read_recordings(tmp_path / "replay.jsonl")
    for again, recorded in zip(replayed, recordings, strict=True):
        assert [*map(callbacks, again.runs)] == [*map(callbacks, recorded.runs)]


@only_processes
async def test_hang_replays(
    rkllm_of: RkllmMaker, model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "board.jsonl"
    timeouts = {"stall_timeout_s": 0.5, "abort_grace_s": 0.5}
    script = 'answer\n  say "a" us=20000 times=3\n  hang\n  abort ignored\n'
    original = rkllm_of(script, record=str(path), **timeouts)
    with pytest.raises(EngineStalled, match="STALL_TIMEOUT_S"):
        await ask(original)
    await original.close()
    recording = read_recording(path)
    assert [run.hung for run in recording.runs] == [True]
    replay = rkllm_of(model(build_script([recording])), **timeouts)
    with pytest.raises(EngineStalled, match="STALL_TIMEOUT_S"):
        await ask(replay)


@pytest.mark.long
@only_processes
async def test_failed_load_replays_with_its_reason(
    rkllm_of: RkllmMaker, model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "board.jsonl"
    original = rkllm_of('init fails=-7 "no memory"', record=str(path))
    with pytest.raises(ModelLoadFailed, match=r"failed with -7 .*no memory"):
        await original.ready()
    await original.close()
    replay = rkllm_of(model(build_script(read_recordings(path))))
    with pytest.raises(ModelLoadFailed, match=r"failed with -7 .*no memory"):
        await replay.ready()


async def test_path_that_cannot_be_written_is_one_sentence(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    engine = rkllm_of(SCRIPT, record=str(tmp_path / "missing" / "board.jsonl"))
    with pytest.raises(ModelLoadFailed, match=r"RKLLM_RECORD: .* cannot be written"):
        await engine.ready()


def test_placeholder_has_the_length_of_the_text() -> None:
    assert [placeholder(0, 3), placeholder(27, 2), placeholder(1, 0)] == [b"aaa", b"bb", b""]
