"""Make a test of a kept job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.setting_error import SettingError
from emulator.tests_file.reader import FILE_NAME, RUNPOD_FOLDER, STATUSES, find_tests_file


def build_test(name: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the test that a kept job is saved as.

    Raises:
        SettingError: the job has not ended, or was ended from outside.
    """
    if job["status"] not in STATUSES:
        allowed = " or ".join(STATUSES)
        raise SettingError(
            f"the job {job['id']} is {job['status']}; a job that becomes a test must be {allowed}"
        )
    test = {"name": name, "input": job["input"], "expected_status": job["status"]}
    if "output" in job:
        test["expected_output"] = job["output"]
    return test


def find_file_to_extend(folders: Sequence[Path]) -> Path:
    """Return the tests file of a handler's folders, or where a new one belongs.

    A new one belongs to the project, which is the last of the folders.
    """
    project = folders[-1]
    runpod = project / RUNPOD_FOLDER
    return find_tests_file(folders) or (runpod if runpod.is_dir() else project) / FILE_NAME
