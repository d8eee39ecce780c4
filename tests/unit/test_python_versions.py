"""The supported Python versions, and the error of `make` for other versions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with what `make` needs for its first step."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "setup.txt").touch()
    return tmp_path


def fake_python(folder: Path, version: tuple[int, int, int]) -> Path:
    """Write a program that runs `-c` code with this Python, which reports another version."""
    path = folder / "python"
    code = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c \'{code}\' "$2"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 15, 0), (4, 0, 0)])
def test_make_names_the_supported_versions_when_python_is_another(
    clone: Path, version: tuple[int, int, int]
) -> None:
    python = fake_python(clone, version)
    done = subprocess.run(
        ["make", ".venv/.setup", f"PYTHON={python}"],
        cwd=clone,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    sentence = done.stderr.splitlines()[0]
    assert sentence.startswith(f'Python 3.11, 3.12, 3.13 or 3.14 is needed, and "{python}" is not')
    assert not (clone / ".venv").exists()


def test_package_and_make_support_the_same_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.15"
    assert "(3, 11) <= sys.version_info[:2] <= (3, 14)" in (ROOT / "Makefile").read_text()


def test_regular_expressions_have_no_possessive_groups() -> None:
    # Python 3.11.0 to 3.11.4 match `(?:-+a)*+` wrongly, and Debian 12 has 3.11.2.
    folders = ("engine", "handler", "validation", "emulator", "jobs", "batch")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [
        path.name for path in sources if re.search(r"\)(?:[*+?]|\{\d*,?\d*\})\+", path.read_text())
    ] == []
