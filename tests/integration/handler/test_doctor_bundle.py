"""`python -m handler doctor --bundle`: one file with all that one needs to know about a board."""

from __future__ import annotations

import json
import zipfile
from functools import partial
from pathlib import Path

import pytest

from engine.backends.rkllm.abi.abi import ABIS
from engine.backends.rkllm.board.trials import TRIALS
from tests.fake_rkllm import build, write_script
from tests.fake_rkllm.repeat import recordings_of, repeat_recording
from tests.integration.handler.doctor_runs import DoctorRunner, run_doctor_here

SCRIPT = """
vocabulary 260
answer
  thread caller
  abort ms=0 finish
  say "confidential " "two " "three " times=10 us=1000
"""
MAX_BYTES = 60_000


@pytest.fixture
def run_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> DoctorRunner:
    return partial(run_doctor_here, capsys, tmp_path)


@pytest.mark.long_except("1.3.1")
@pytest.mark.parametrize("version", ["1.2", "1.3", "1.3.1"])
def test_bundle_has_the_report_and_recordings_that_replay(
    run_doctor: DoctorRunner, tmp_path: Path, fake_rkllm_folder: Path, version: str
) -> None:
    model = write_script(tmp_path / "model.rkllm", SCRIPT)
    library = build(version, fake_rkllm_folder)
    done = run_doctor("--bundle", "board.zip", MODEL_PATH=str(model), RKLLM_LIB_PATH=str(library))
    assert done.code == 0, done.page + done.stderr
    assert "board.zip has the report and the recordings" in done.stderr
    bundle = tmp_path / "board.zip"
    assert bundle.stat().st_size < MAX_BYTES
    folder = tmp_path / "bundle"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    assert (folder / "report.md").read_text() == done.page
    findings = json.loads((folder / "findings.json").read_text())
    assert {"step": "library", "name": "ABI"} in [
        {"step": each["step"], "name": each["name"]} for each in findings["findings"]
    ]
    printed = [path.read_text() for path in sorted(folder.glob("printed-*.txt"))]
    assert len(printed) == len(TRIALS) + 1
    assert all("I rkllm: rkllm-runtime version: " in each for each in printed)
    assert "I rkllm:  Prefill " in printed[-1]
    recordings = recordings_of(folder / "recording.jsonl")
    assert len(recordings) == len(TRIALS) + 1
    for path in recordings:
        assert "confidential" not in path.read_text()
    # Each one takes two processes.
    for path in recordings[::3]:
        recorded, repeated = repeat_recording(path, ABIS[version], library, tmp_path)
        assert repeated == recorded


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--bundle", "board.jsonl"), "--bundle: the file's name must end in .zip"),
        (("--bundle", "missing/board.zip"), "--bundle: missing/board.zip cannot be written"),
        (("--bundle", "folder.zip"), "--bundle: folder.zip cannot be written: it is a folder"),
        (("--bundle", "b.zip", "--record", "r.jsonl"), "--bundle has the recordings"),
    ],
)
def test_bundle_that_is_not_possible_is_one_sentence(
    run_doctor: DoctorRunner, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "folder.zip").mkdir()
    done = run_doctor(*arguments, ENGINE="scripted")
    assert (done.code, done.page) == (2, "")
    assert sentence in done.stderr


def test_bundle_has_no_home_folder_of_others(
    run_doctor: DoctorRunner, tmp_path: Path, fake_rkllm_folder: Path
) -> None:
    model = write_script(tmp_path / "m.rkllm", 'init fails "no /home/alice/secret.bin"\n')
    library = build("1.3.1", fake_rkllm_folder)
    done = run_doctor("--bundle", "b.zip", MODEL_PATH=str(model), RKLLM_LIB_PATH=str(library))
    assert done.code == 1
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        contents = {name: archive.read(name).decode() for name in archive.namelist()}
    assert "secret.bin" in contents["recording.jsonl"]
    assert not [name for name, content in contents.items() if "alice" in content]


def test_bundle_of_another_engine_has_the_report(run_doctor: DoctorRunner, tmp_path: Path) -> None:
    done = run_doctor("--bundle", "board.zip", ENGINE="scripted")
    assert done.code == 0, done.page
    with zipfile.ZipFile(tmp_path / "board.zip") as archive:
        assert [name.partition(".")[0] for name in archive.namelist()] == [
            *("findings", "printed-1-examination", "report")
        ]
