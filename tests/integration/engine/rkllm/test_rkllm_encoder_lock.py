"""A vision encoder and language models in several engine processes never use the NPU at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.backends.rkllm.abi.abi import ABI_131
from tests import fake_rkllm, fake_rknnlite
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.rkllm.test_rkllm_images import chat
from tests.integration.engine.support import ask
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("examined_once")
only_131 = pytest.mark.parametrize("abi", [ABI_131], ids=["abi1.3.1"])

SLOW_ANSWER = 'answer\n  say "a" us=4000 times=20\n'


class Use(NamedTuple):
    """A use of the NPU: from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int
    pid: int


def read_runs(log: Path) -> list[Use]:
    """Return the runs of the language models."""
    starts: dict[tuple[int, int], int] = {}
    runs = []
    for call in fake_rkllm.read_log(log):
        # A thread makes one run at a time; on threads, two models are in one process.
        key = (call.pid, call.thread)
        if call.name == "rkllm_run":
            starts[key] = call.ns
        elif call.name == "run_end":
            runs.append(Use(starts.pop(key), call.ns, call.pid))
    return runs


def read_encodings(log: Path) -> list[Use]:
    """Return the runs of the encoders."""
    starts: dict[int, int] = {}
    encodings = []
    for call in fake_rknnlite.read_log(log):
        if call.name == "inference":
            starts[call.pid] = call.ns
        elif call.name == "inference_end":
            encodings.append(Use(starts.pop(call.pid), call.ns, call.pid))
    return encodings


@only_131
async def test_encoders_and_runs_of_all_processes_never_overlap(
    rkllm_of: RkllmMaker, call_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rknn_log = tmp_path / "rknn.log"
    monkeypatch.setenv("FAKE_RKNN_LOG", str(rknn_log))
    fake_rknnlite.install(monkeypatch)
    encoder = fake_rknnlite.write_encoder(tmp_path / "vision.rknn", duration_s=0.03)
    folder = write_tokenizer(tmp_path / "tokenizer")
    common = {"tokenizer": str(folder), "encoder_lock": True}
    text = rkllm_of(SLOW_ANSWER, **common)
    await text.ready()
    # The encoder is tried at the load of the second model, while the first one answers.
    answers = [asyncio.create_task(ask(text)) for _ in range(3)]
    await wait_until(lambda: "rkllm_run" in call_log.read_text())
    image = rkllm_of(SLOW_ANSWER, **common, vision=str(encoder), vision_size=28)
    answers += [asyncio.create_task(ask(image, chat(number))) for number in range(4)]
    answers += [asyncio.create_task(ask(text)) for _ in range(3)]
    assert {answer for answer, _ in await asyncio.gather(*answers)} == {"a" * 20}
    runs, encodings = read_runs(call_log), read_encodings(rknn_log)
    assert (len(runs), len(encodings)) == (10, 5)
    overlaps = [
        (run, encoding)
        for run in runs
        for encoding in encodings
        if run.start_ns < encoding.end_ns and encoding.start_ns < run.end_ns
    ]
    assert overlaps == []
