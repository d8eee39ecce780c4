"""The file of a user's handler, and the endpoint that is named after its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.handler_file import find_handler_file, list_folders, name_endpoint


def test_find_handler_file_returns_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").touch()
    monkeypatch.chdir(tmp_path)
    assert find_handler_file(Path("own.py")) == tmp_path / "own.py"


@pytest.mark.parametrize("name", ["handler.py", "rp_handler.py", "src/handler.py"])
def test_find_handler_file_finds_the_usual_names_in_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / name).touch()
    assert find_handler_file(tmp_path) == tmp_path / name


@pytest.mark.parametrize(
    ("files", "path", "problem"),
    [
        ([], ".", "has none of handler.py, rp_handler.py"),
        (["handler.py", "rp_handler.py"], ".", "has handler.py, rp_handler.py; name one of them"),
        ([], "missing.py", "there is no file"),
        (["worker.sh"], "worker.sh", "must be a Python file"),
    ],
)
def test_find_handler_file_explains_what_is_wrong(
    tmp_path: Path, files: list[str], path: str, problem: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(SettingError, match=problem):
        find_handler_file(tmp_path / path)


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/home/me/my-worker/handler.py", "my-worker"),
        ("/home/me/my worker (2)/handler.py", "my-worker-2"),
        ("/home/me/project/src/handler.py", "project"),
        ("/home/me/project/.runpod/handler.py", "project"),
        ("/handler.py", "handler"),
        ("/ü/handler.py", "handler"),
    ],
)
def test_name_endpoint_uses_the_name_of_the_folder(path: str, endpoint: str) -> None:
    assert name_endpoint(Path(path)) == endpoint


@pytest.mark.parametrize(
    ("path", "folders"),
    [
        ("handler.py", ["."]),
        ("src/handler.py", ["src", "."]),
        ("src", ["src", "."]),
        (".runpod/handler.py", [".runpod", "."]),
        ("lib/handler.py", ["lib"]),
    ],
)
def test_list_folders_has_the_project_after_the_handlers_own(
    tmp_path: Path, path: str, folders: list[str]
) -> None:
    (tmp_path / "src").mkdir()
    assert list_folders(tmp_path / path) == [tmp_path / folder for folder in folders]
