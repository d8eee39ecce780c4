from __future__ import annotations

from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.tests_file.saved_job import build_test, find_file_to_extend


def test_kept_job_becomes_a_test() -> None:
    kept = {"id": "1", "status": "COMPLETED", "input": {"x": 1}, "output": None}
    assert build_test("name", kept) == {
        "name": "name",
        "input": {"x": 1},
        "expected_status": "COMPLETED",
        "expected_output": None,
    }
    failed = {"id": "1", "status": "FAILED", "input": {}, "error": "no"}
    assert build_test("name", failed) == {
        "name": "name",
        "input": {},
        "expected_status": "FAILED",
    }


@pytest.mark.parametrize("status", ["IN_QUEUE", "IN_PROGRESS", "CANCELLED", "TIMED_OUT"])
def test_job_that_the_handler_has_not_ended_is_no_test(status: str) -> None:
    with pytest.raises(SettingError, match=f"job 1 is {status}; a job that becomes a test must be"):
        build_test("name", {"id": "1", "status": status, "input": {}})


def test_new_file_belongs_into_runpods_folder_if_there_is_one(tmp_path: Path) -> None:
    assert find_file_to_extend([tmp_path]) == tmp_path / "tests.json"
    source = tmp_path / "src"
    source.mkdir()
    assert find_file_to_extend([source, tmp_path]) == tmp_path / "tests.json"
    (tmp_path / ".runpod").mkdir()
    assert find_file_to_extend([source, tmp_path]) == tmp_path / ".runpod" / "tests.json"
    (tmp_path / "tests.json").touch()
    assert find_file_to_extend([source, tmp_path]) == tmp_path / "tests.json"
