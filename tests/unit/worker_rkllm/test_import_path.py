"""Our packages are found before modules of the same names in the user's folder."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from worker_rkllm.import_path import PACKAGES, ROOT, put_own_packages_first


@pytest.mark.parametrize("name", PACKAGES)
def test_root_comes_first_when_a_file_hides_a_package(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").touch()
    path = [str(tmp_path), str(ROOT)]
    put_own_packages_first(path)
    assert path == [str(ROOT), str(tmp_path), str(ROOT)]
    spec = PathFinder.find_spec(name, path)
    assert spec is not None
    assert spec.origin == str(ROOT / name / "__init__.py")


def test_root_comes_first_when_a_folder_hides_a_package(tmp_path: Path) -> None:
    (tmp_path / "handler").mkdir()
    (tmp_path / "handler" / "__init__.py").touch()
    path = [str(tmp_path), str(ROOT)]
    put_own_packages_first(path)
    assert path[0] == str(ROOT)


def test_path_stays_as_it_is_when_nothing_hides_a_package(tmp_path: Path) -> None:
    (tmp_path / "other.py").touch()
    path = [str(tmp_path), str(ROOT)]
    put_own_packages_first(path)
    assert path == [str(tmp_path), str(ROOT)]
