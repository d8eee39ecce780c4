"""`python -m handler` and `python -m emulator` with invalid settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SMALL_RULES
from tests.integration.handler.control_plane import clean_environment
from tests.unit.handler.bad_settings import BAD_SETTINGS, write_files

# One value of each kind: the same code reads all of them, and each process starts for a second.
VALUES = [
    "wrong.yaml",
    "none.json",
    "thing.json",
    "klingon",
    "general,sports",
    "\u200b",
    "card,dna",
]
CASES = [each for each in BAD_SETTINGS if each[1] in VALUES]


@pytest.mark.long_except("VALIDATION_RULES-handler", "VALIDATION_SCHEMA0-emulator")
@pytest.mark.parametrize("program", ["handler", "emulator"])
@pytest.mark.parametrize(("name", "value", "expected"), CASES, ids=[name for name, _, _ in CASES])
def test_bad_setting_ends_the_program_with_one_line(
    name: str, value: str, expected: str, program: str, tmp_path: Path
) -> None:
    write_files(tmp_path)
    settings = {"ENGINE": "scripted", "PORT": "0", "VALIDATION_RULES": str(SMALL_RULES)}
    done = subprocess.run(
        [sys.executable, "-m", program],
        env=clean_environment(tmp_path, {**settings, name: value}),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(expected)
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1


def test_every_kind_of_setting_has_a_case() -> None:
    assert len(CASES) == len(VALUES)
    assert {name for name, _, _ in CASES} == {name for name, _, _ in BAD_SETTINGS}
