"""Replay every file in tests/recordings through the engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine import Engine
from engine.backends.rkllm.abi.abi import ABIS
from engine.errors import BackendFailed, EngineCrashed, EngineError, EngineStalled, ModelLoadFailed
from tests.fake_rkllm.repeat import recordings_of, repeat_recording
from tests.fake_rkllm.replay import (
    ERROR,
    FINISH,
    NORMAL,
    WAITING,
    RecordedRun,
    Recording,
    build_script,
    read_recordings,
)
from tests.fake_rkllm.tokenizer import id_of, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, request
from tests.waiting import PATIENCE, wait_until

FOLDER = Path(__file__).resolve().parents[3] / "recordings"
# A crash of the library would end the tests in a thread. The file of a following process has a
# number before its suffix.
PATHS = [
    path for path in sorted(FOLDER.glob("*.jsonl")) if not path.stem.rpartition(".")[2].isdigit()
]
TEXT_PROMPT, TOKEN_PROMPT = "x", 1
pytestmark = pytest.mark.parametrize("isolation", ["process"], indirect=True)


def merge_loads(recording: Recording) -> Recording:
    """Return the recording with all runs in its last load, because the replay loads only once."""
    *others, last = recording.loads
    last.runs[:0] = [run for load in others for run in load.runs]
    recording.loads = [last]
    return recording


def are_requests(runs: list[RecordedRun]) -> bool:
    """Return whether each run is one request, which an engine without other settings repeats."""
    return all(run.arguments["mode"] == 0 and len(run.arguments["prompts"]) == 1 for run in runs)


def tokens_of(run: RecordedRun) -> list[list[Any]]:
    """Return the tokens of a run: id, length and, if recorded, text."""
    return [result.tokens[0] for result in run.results if result.state in (NORMAL, WAITING)]


def tokens_before_abort(run: RecordedRun) -> int:
    return sum(
        result.state in (NORMAL, WAITING) and result.time_us <= run.abort_times_us[0]
        for result in run.results
    )


def expected_error(run: RecordedRun) -> type[EngineError] | None:
    """Return the error of a request whose run was not aborted by the client."""
    states = {result.state for result in run.results}
    if run.crashed:
        return EngineCrashed
    if run.hung:
        return EngineStalled
    limit = run.arguments.get("max_new_tokens", 0)
    is_complete = FINISH in states or 0 < limit <= len(tokens_of(run))
    return BackendFailed if run.code or ERROR in states or not is_complete else None


def timeouts(runs: list[RecordedRun]) -> dict[str, float]:
    """Return timeouts that only a hang exceeds."""
    waits_us = [run.results[0].time_us - run.time_us for run in runs if run.results]
    gaps_us = [b.time_us - a.time_us for run in runs for a, b in pairwise(run.results)]
    return {
        "prefill_timeout_s": 2 * max([0, *waits_us]) / 1e6 + 2 * PATIENCE,
        "stall_timeout_s": 2 * max([0, *gaps_us]) / 1e6 + 2 * PATIENCE,
        "abort_grace_s": 2 * max([0, *gaps_us]) / 1e6 + 2 * PATIENCE,
    }


async def replay_run(engine: Engine, run: RecordedRun) -> None:
    """Send the request of a run, and check how it ends."""
    prompt_size = run.arguments["prompts"][0]
    prompt = (
        TEXT_PROMPT * prompt_size["bytes"]
        if "bytes" in prompt_size
        else (TOKEN_PROMPT,) * prompt_size["tokens"]
    )
    limit = run.arguments.get("max_new_tokens")
    sampling = {"max_tokens": limit} if limit else {}
    error = expected_error(run)
    if run.abort_times_us and not run.hung:
        await abort_at_token(engine, request(prompt, **sampling), tokens_before_abort(run))
    elif error is not None:
        with pytest.raises(error):
            await ask(engine, prompt, **sampling)
    else:
        text, finish = await ask(engine, prompt, **sampling)
        tokens = tokens_of(run)
        assert finish.usage.completion_tokens == len(tokens)
        assert len(text.encode()) == sum(length or 0 for _, length, *_ in tokens)


async def abort_at_token(engine: Engine, generation: Any, tokens: int) -> None:
    """Abort a request after a number of tokens, and wait until the run has ended."""
    async with asyncio.timeout(60), await engine.generate(generation) as stream:
        await wait_until(lambda: engine.running == 1)
        received = 0
        while received < tokens and (deltas := await anext(stream, None)) is not None:
            received += len(deltas)
    await wait_until(lambda: engine.running == 0)


def callbacks(run: RecordedRun) -> list[Any]:
    """Return a run's tokens, with what does not depend on the texts."""
    return [
        (result.state, result.is_caller_thread, [token[1] for token in result.tokens])
        for result in run.results
        if result.state != FINISH
    ]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
async def test_recording_replays_with_its_outcome(
    rkllm_of: RkllmMaker,
    model: Callable[[str], Path],
    fake_library: Callable[[str], Path],
    tmp_path: Path,
    path: Path,
) -> None:
    recordings = [merge_loads(each) for each in read_recordings(path)]
    runs = [run for recording in recordings for run in recording.runs]
    if not are_requests(runs):
        for each in recordings_of(path):
            # The calls of one version have fields that another one lacks.
            abi = recordings[0].header["abi"]
            library = fake_library(abi)
            recorded, repeated = repeat_recording(each, ABIS[abi], library, tmp_path)
            assert repeated == recorded
        return
    engine = rkllm_of(
        model(build_script(recordings)),
        context_length=recordings[0].loads[-1].arguments["max_context_len"],
        record=str(tmp_path / "replay.jsonl"),
        **timeouts(runs),
    )
    if not runs and recordings[-1].loads[-1].code is not None:
        printed = recordings[-1].loads[-1].printed
        with pytest.raises(ModelLoadFailed) as caught:
            await engine.ready()
        assert all(line in caught.value.message for line in printed)
        return
    for run in runs:
        await replay_run(engine, run)
    await engine.close()
    replayed = read_recordings(tmp_path / "replay.jsonl")
    repeated = [run for recording in replayed for run in recording.runs]
    assert [*map(callbacks, repeated)] == [*map(callbacks, runs)]
    assert [run.crashed for run in repeated] == [run.crashed for run in runs]


@pytest.mark.long
async def test_load_that_prints_an_error_and_returns_0_fails(
    rkllm_of: RkllmMaker, model: Callable[[str], Path]
) -> None:
    recordings = read_recordings(FOLDER / "load-prints-error-and-returns-0.jsonl")
    assert [load.code for load in recordings[0].loads] == [0]
    with pytest.raises(ModelLoadFailed, match="succeeded, but reported an error") as caught:
        await rkllm_of(model(build_script(recordings))).ready()
    assert "invalid rknn llm model magic" in caught.value.message


async def test_crash_in_a_run_is_followed_by_an_answer(
    rkllm_of: RkllmMaker, model: Callable[[str], Path]
) -> None:
    engine = rkllm_of(model(build_script(read_recordings(FOLDER / "crash-in-run.jsonl"))))
    with pytest.raises(EngineCrashed, match="SIGSEGV"):
        await ask(engine, "first")
    _, finish = await ask(engine, "second")
    assert finish.usage.completion_tokens == 10
    assert engine.restarts == 1


async def test_run_that_goes_on_past_its_end_token_ends_there(
    rkllm_of: RkllmMaker, model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = write_tokenizer(tmp_path)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": id_of("<|im_end|>")})
    )
    recordings = read_recordings(FOLDER / "past-end-token.jsonl")
    assert all(len(tokens_of(run)) > 5 for run in recordings[0].runs)
    engine = rkllm_of(model(build_script(recordings)), context_length=512)
    assert (await ask(engine, (1, 2, 3), max_tokens=40))[0] == "One two"
    assert (await ask(engine, (4, 5), max_tokens=40))[0] == "next"
