"""Where our packages are, in a clone and in the wheel, and how a command finds them."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from worker_rkllm.import_path import FOLDER, put_own_packages_first

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
PACKAGES = PROJECT["importlinter"]["root_packages"]


def test_packages_of_a_clone_are_at_its_top() -> None:
    assert FOLDER == ROOT
    assert all((FOLDER / name / "__init__.py").is_file() for name in PACKAGES)


def test_own_packages_come_first_without_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/the/folder", "/site-packages"])
    put_own_packages_first()
    put_own_packages_first()
    assert sys.path == [str(FOLDER), "/the/folder", "/site-packages"]


def test_wheel_has_all_packages_below_the_one_that_is_installed() -> None:
    wheel = PROJECT["hatch"]["build"]["targets"]["wheel"]
    assert sorted(wheel["only-include"]) == sorted(PACKAGES)
    below = [name for name in PACKAGES if name != "worker_rkllm"]
    assert wheel["sources"] == {name: f"worker_rkllm/packages/{name}" for name in below}
