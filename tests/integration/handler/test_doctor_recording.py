"""`python -m handler doctor --record` with a real child, on the fake library."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from engine.backends.rkllm.board.trials import TRIALS
from tests.fake_rkllm import build, write_script
from tests.fake_rkllm.replay import read_recordings
from tests.integration.handler.doctor_runs import DoctorRunner, run_doctor_here

SCRIPT = """
answer
  thread caller
  abort ms=0 finish
  say "confidential " "two " "three " times=10 us=1000
"""


@pytest.fixture
def run_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> DoctorRunner:
    return partial(run_doctor_here, capsys, tmp_path)


def read_all(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("board*.jsonl"))


@pytest.fixture
def board(tmp_path: Path, fake_rkllm_folder: Path) -> dict[str, str]:
    """The settings of a board with the fake library."""
    model = write_script(tmp_path / "model.rkllm", SCRIPT)
    return {"MODEL_PATH": str(model), "RKLLM_LIB_PATH": str(build("1.3.1", fake_rkllm_folder))}


def test_doctor_records_its_runs(
    run_doctor: DoctorRunner, tmp_path: Path, board: dict[str, str]
) -> None:
    done = run_doctor("--record", "board.jsonl", **board)
    assert done.code == 0, done.page
    *trials, recording = read_recordings(tmp_path / "board.jsonl")
    assert [each.header["process"] for each in trials] == [f"trial: {step}" for step in TRIALS]
    assert recording.header["process"] == "copy 1"
    assert recording.header["abi"] == "1.3.1"
    assert recording.header["library"]["version"] == "1.3.1"
    runs = recording.runs
    assert len(runs) >= 8
    assert any(run.abort_times_us for run in runs)
    content = read_all(tmp_path)
    for secret in ("confidential", "walnut", str(tmp_path)):
        assert secret not in content


@pytest.mark.long
def test_doctor_records_texts_on_request(
    run_doctor: DoctorRunner, tmp_path: Path, board: dict[str, str]
) -> None:
    run_doctor("--record", "board.jsonl", "--record-text", **board)
    content = read_all(tmp_path)
    assert "confidential" in content
    assert "walnut" in content


@pytest.mark.parametrize(
    ("arguments", "engine", "sentence"),
    [
        (("--record", "missing/board.jsonl"), "rkllm", "--record: missing/board.jsonl cannot be"),
        (("--record", "board.jsonl"), "scripted", "--record is for the rkllm engine"),
    ],
)
def test_doctor_refuses_a_recording_that_is_not_possible(
    run_doctor: DoctorRunner,
    board: dict[str, str],
    arguments: tuple[str, ...],
    engine: str,
    sentence: str,
) -> None:
    done = run_doctor(*arguments, ENGINE=engine, **board)
    assert (done.code, done.page) == (2, "")
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1
