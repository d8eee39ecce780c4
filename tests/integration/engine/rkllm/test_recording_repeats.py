"""Each recording of the doctor or a server can be replayed: its calls, made again, agree."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from engine import EMBED, Engine
from engine.backends.rkllm.abi.abi import Abi
from engine.backends.rkllm.board.trials import TRIALS
from engine.doctor.examiner import FAILED, Doctor, examine_trial
from engine.request import Chat, ChatImage, Message, Priority
from tests import fake_rknnlite
from tests.fake_rkllm.repeat import recordings_of, repeat_recording
from tests.fake_rkllm.replay import read_recording
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.rkllm.conftest import OptionsMaker, RkllmMaker
from tests.integration.engine.support import ask, request
from tests.unit.handler.input.images import png
from tests.waiting import wait_until

COUNTING = """
vocabulary 260
answer
  abort ms=2 finish
  prefill_ms 1 hears us_per_token=5
  thread alternate
  say "one " "two " "three " id=7 us=500
  waiting "\\xe2\\x82" id=7 us=500
  say "\\xac" id=7 us=500
  say " more" id=7 us=500 times=40
"""
LOGITS = "vocabulary 260\nanswer\n"
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)
CASES: dict[str, dict[str, Any]] = {
    "text": {},
    "tokens": {"tokenizer": True},
    "texts-recorded": {"tokenizer": True, "record_text": True},
    "no-reuse": {"tokenizer": True, "kv_reuse": False},
    "batches": {"tokenizer": True, "n_batch": 2},
    "logits": {"tokenizer": True, "mode": "logits"},
}


def check_replays(abi: Abi, library: Path, folder: Path) -> int:
    """Replay all recordings of a folder; return the number of their runs."""
    runs = 0
    for path in recordings_of(folder / "board.jsonl"):
        recorded, repeated = repeat_recording(path, abi, library, folder)
        assert [code for code, _ in repeated] == [code for code, _ in recorded]
        for (_, again), (_, original) in zip(repeated, recorded, strict=True):
            assert len(again) == len(original)
            for number, pair in enumerate(zip(again, original, strict=True), 1):
                assert pair[0] == pair[1], f"run {number} of {path.name}"
            runs += len(original)
    return runs


@pytest.mark.parametrize("case", CASES)
def test_recording_of_the_doctor_replays(
    options_of: OptionsMaker, abi: Abi, library: Path, tmp_path: Path, case: str
) -> None:
    script = LOGITS if case == "logits" else COUNTING
    findings = [*Doctor(options_of(script, **CASES[case])).examine()]
    failed = {step: value for step, name, value in findings if name == FAILED}
    # Sampled from a fake model's logits, the first answer is no count.
    assert failed.keys() == ({"first run"} if case == "logits" else set()), failed
    assert check_replays(abi, library, tmp_path) >= 8


def test_recordings_of_the_trials_replay(
    options_of: OptionsMaker, abi: Abi, library: Path, tmp_path: Path
) -> None:
    options = options_of(COUNTING)
    for step in TRIALS:
        findings = [*examine_trial(step, options)]
        assert all(name != FAILED for _, name, _ in findings), findings
    headers = [read_recording(path).header for path in recordings_of(tmp_path / "board.jsonl")]
    assert [header["process"] for header in headers] == [f"trial: {step}" for step in TRIALS]
    assert check_replays(abi, library, tmp_path) >= 15


@only_threads
async def test_recording_of_a_server_replays(
    rkllm_of: RkllmMaker, abi: Abi, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_rknnlite.install(monkeypatch)
    engine = rkllm_of(
        COUNTING,
        record=str(tmp_path / "board.jsonl"),
        tokenizer=str(write_tokenizer(tmp_path / "tokenizer")),
        vision=str(fake_rknnlite.write_encoder(tmp_path / "vision.rknn")),
        vision_size=28,
    )
    image = ChatImage(base64.b64encode(png(28, 28, (3, 3, 3))).decode(), 0)
    await ask(engine, Chat((Message("user", "Look.", images=(image,)),)))
    await ask(engine, "text", max_tokens=3)
    await engine.compute(EMBED, ("four!",), Priority.JOB)
    await abort_in_prefill(engine)
    await ask(engine, "after it")
    await engine.close()
    assert check_replays(abi, library, tmp_path) >= 4


async def abort_in_prefill(engine: Engine) -> None:
    async with await engine.generate(request("x" * 400)):
        await wait_until(lambda: engine.running == 1)
    await wait_until(lambda: engine.running == 0)
