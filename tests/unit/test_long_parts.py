"""The parts of `make test-long`: every test belongs to one, and the commands that run them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.long import parts
from tests.long.parts import PARTS, ROOT, SUITE, Part

_INSTALL = "apt-get -q install -y --no-install-recommends its-package another".split()
FILES_OF_PARTS = {name: parts.find_files(part) for name, part in PARTS.items()}


def parts_of(file: str) -> list[str]:
    return [
        name
        for name, files in FILES_OF_PARTS.items()
        if name != "timing" and any(f"{file}/".startswith(f"{each}/") for each in files)
    ]


def test_every_test_belongs_to_a_part() -> None:
    folders = ("tests/long", "tests/image", *SUITE)
    files = [file for folder in folders for file in (ROOT / folder).rglob("test_*.py")]
    assert len(files) > 500
    names = [file.relative_to(ROOT).as_posix() for file in files]
    assert [name for name in names if not parts_of(name)] == []


def test_every_path_of_a_part_exists() -> None:
    for part in PARTS.values():
        patterns = (*part.files, *part.excluded, *part.changes)
        assert [each for each in patterns if not list(ROOT.glob(each))] == []


def test_files_of_another_part_are_left_out() -> None:
    assert parts_of("tests/acceptance/test_crashes.py") == ["crashes"]
    assert parts_of("tests/acceptance/test_rerank.py") == ["programs"]


def test_folders_of_the_suite_are_the_testpaths_of_pytest() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    assert tuple(options["ini_options"]["testpaths"]) == SUITE


def test_changed_files_choose_parts() -> None:
    assert parts.parts_to_run(["jobs/memory/store.py", "README.md"]) == ["crashes"]
    assert parts.parts_to_run(["docs/console.md", "Makefile"]) == ["console", "bare"]
    assert parts.parts_to_run(["jobs_old/store.py"]) == []


def test_timing_runs_last_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLEL", "-n 4")
    first, second = parts.build_commands(["timing", "console", "arm64"], ["-x"])
    pytest_call = [sys.executable, "-m", "pytest"]
    long_files = ["tests/long/console", "tests/long/test_arm64.py"]
    assert first == [*pytest_call, "--long", "-n", "4", *long_files, "-x"]
    assert second == [*pytest_call, "--timing", *SUITE, "-x"]


def test_part_with_shared_fixtures_runs_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARALLEL", "-n 4")
    first, second = parts.build_commands(["image-arm64", "arm64"], ["-x"])
    pytest_call = [sys.executable, "-m", "pytest", "--long"]
    assert first == [*pytest_call, "-n", "4", "tests/long/test_arm64.py", "-x"]
    assert second == [*pytest_call, "tests/image/test_arm64.py", "-x"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace pytest and apt-get by a failing fake, and return their calls."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_main_runs_all_parts_up_to_the_first_failure(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parts, "missing_packages", lambda part: [])
    assert parts.main(["--", "-x"]) == 1
    assert len(calls) == 1
    assert calls[0][-1] == "-x"
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(PARTS)


def test_check_runs_nothing(calls: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert parts.main(["--check", "crashes"]) == 0
    assert parts.main(["--check", "sped"]) == 2
    assert calls == []
    assert capsys.readouterr().err.startswith("PART must be some of security ")


def test_unknown_part_and_missing_program_run_nothing(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = Part("nothing", (), "", (), programs=(("no-such-program", "its-package"),))
    monkeypatch.setitem(PARTS, "lacking", lacking)
    assert parts.main(["sped", "lacking", "--", "-x"]) == 2
    assert calls == []
    assert capsys.readouterr().err.splitlines() == [
        f"PART must be some of {' '.join(PARTS)}, got sped",
        "PART=lacking needs more: `apt-get install its-package` brings it.",
    ]


def test_programs_in_administrators_folders_count_as_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "debootstrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(parts, "_SYSTEM_FOLDERS", (str(tmp_path),))
    part = Part("nothing", (), "", (), programs=(("debootstrap", "debootstrap"),))
    assert parts.missing_packages(part) == []


@pytest.mark.parametrize(
    ("user", "installed"), [(0, [["apt-get", "-q", "update"], _INSTALL]), (1000, [])]
)
def test_programs_of_a_part_are_installed_only_as_root(
    user: int,
    installed: list[list[str]],
    calls: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "apt-get").write_text("#!/bin/sh\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    programs = (("no-such-program", "its-package another"),)
    lacking = Part("nothing", (), "", (), programs=programs, installs_programs=True)
    monkeypatch.setitem(PARTS, "lacking", lacking)
    assert parts.main(["--check", "lacking"]) == 2
    assert calls == installed
