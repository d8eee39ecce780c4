"""The doctor's option `--record`, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.setting_error import SettingError
from engine.backends.options import RkllmOptions
from handler.doctor.recording import apply_recording
from handler.settings.arguments import DoctorArguments, parse_doctor
from handler.settings.engine_configs import build_engine_config
from handler.settings.shared_settings import Settings

BOARD = Settings(engine="rkllm", model_path=Path("some/model.rkllm"))


def test_parse_doctor_reads_its_options() -> None:
    assert parse_doctor(["doctor"], "handler") == DoctorArguments()
    arguments = ["doctor", "--record", "board.jsonl", "--record-text"]
    assert parse_doctor(arguments, "handler") == DoctorArguments(Path("board.jsonl"), True)
    assert parse_doctor([], "handler") is None


def test_parse_doctor_requires_a_file_for_texts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        parse_doctor(["doctor", "--record-text"], "handler")
    assert leaving.value.code == 2
    assert "--record-text needs --record FILE" in capsys.readouterr().err


@pytest.mark.parametrize("texts", [False, True])
def test_apply_recording_sets_the_options_of_the_engine(tmp_path: Path, texts: bool) -> None:
    path = tmp_path / "board.jsonl"
    settings = apply_recording(BOARD, DoctorArguments(path, texts))
    options = build_engine_config(settings).backend.options
    assert isinstance(options, RkllmOptions)
    assert (options.record, options.record_text) == (str(path), texts)


def test_apply_recording_changes_nothing_without_the_option() -> None:
    assert apply_recording(BOARD, DoctorArguments()) is BOARD


def test_apply_recording_refuses_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "board.jsonl"
    with pytest.raises(SettingError, match=r"^--record: .* cannot be written: there is no folder"):
        apply_recording(BOARD, DoctorArguments(path))


def test_apply_recording_refuses_another_engine(tmp_path: Path) -> None:
    settings = Settings(engine="llamacpp")
    with pytest.raises(SettingError, match=r"this is the llamacpp engine$"):
        apply_recording(settings, DoctorArguments(tmp_path / "board.jsonl"))
