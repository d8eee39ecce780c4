"""Processes that run a module of this project."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from common.child_processes import describe_exit, start_module


def test_started_module_imports_our_packages_and_not_the_working_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "common.py").write_text("raise SystemExit('another wrong package')")
    (extra / "reporting.py").write_text(
        "import common.digits, os; print(os.environ['COLOUR'], os.environ['PYTHONPATH'])"
    )
    monkeypatch.setenv("PYTHONPATH", str(extra))
    with start_module(
        "reporting", variables={"COLOUR": "red"}, cwd=tmp_path, stdout=subprocess.PIPE
    ) as process:
        # The variable reaches what the module starts, so our folder is not in it.
        assert process.communicate(timeout=30)[0].decode() == f"red {extra}\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("code", "description"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by SIGKILL"),
        (-250, "was killed by signal 250"),
    ],
)
def test_describe_exit_names_code_or_signal(code: int, description: str) -> None:
    assert describe_exit(code) == description
