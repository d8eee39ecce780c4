"""Runs `python -m handler doctor` in this process, or as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from handler.__main__ import main
from tests.integration.handler.control_plane import clean_environment

WAIT_S = 50


@dataclass
class DoctorReport:
    """The exit code and the output of a doctor."""

    code: int
    page: str
    stderr: str

    def section(self, title: str) -> str:
        return self.page.split(f"## {title}\n\n")[1].split("\n\n## ")[0].rstrip()


DoctorRunner = Callable[..., DoctorReport]


def run_doctor_here(
    capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str, **settings: str
) -> DoctorReport:
    """Run the doctor in this process; only its children, which load the library, are processes."""
    environment = clean_environment(folder, settings)
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patches:
        for name in os.environ.keys() - environment.keys():
            patches.delenv(name)
        for name, value in environment.items():
            patches.setenv(name, value)
        patches.chdir(folder)
        try:
            code = main(["doctor", *arguments])
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
    page, stderr = capsys.readouterr()
    return DoctorReport(code, page, stderr)


def run_doctor_process(folder: Path, *arguments: str, **settings: str) -> DoctorReport:
    """Run the doctor as a command."""
    done = subprocess.run(
        [sys.executable, "-m", "handler", "doctor", *arguments],
        env=clean_environment(folder, settings),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return DoctorReport(done.returncode, done.stdout, done.stderr)
