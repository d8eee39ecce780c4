"""Which handlers a server runs, and the IDs of their endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.autoscaling.program.handler_list import find_handlers, split_handlers

FILES = ("resize/handler.py", "caption/src/handler.py", "steps/first.py", "steps/the second.py")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FILES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("handlers", "endpoints"),
    [
        (["resize"], {"resize": FILES[0]}),
        (["resize", "caption/"], {"resize": FILES[0], "caption": FILES[1]}),
        (["8ab=resize", "./caption"], {"8ab": FILES[0], "caption": FILES[1]}),
        # Two files of one folder are named after the files, not after the folder.
        (["steps/first.py", "steps/the second.py"], {"first": FILES[2], "the-second": FILES[3]}),
        (["steps/first.py", "resize"], {"steps": FILES[2], "resize": FILES[0]}),
        # One handler as two endpoints.
        (["a=resize", "b=resize"], {"a": FILES[0], "b": FILES[0]}),
    ],
)
def test_find_handlers_names_the_endpoints(
    handlers: Sequence[str], endpoints: dict[str, str], folder: Path
) -> None:
    handler_files = find_handlers(handlers)
    assert list(handler_files.items()) == [
        (each, folder / file) for each, file in endpoints.items()
    ]


def test_find_handlers_uses_the_chosen_id_for_the_first() -> None:
    assert list(find_handlers(["resize", "caption"], "mine")) == ["mine", "caption"]
    assert list(find_handlers(["own=resize", "caption"], "mine")) == ["own", "caption"]


def test_find_handlers_takes_a_path_with_an_equals_sign(folder: Path) -> None:
    (folder / "a=b").mkdir()
    (folder / "a=b" / "handler.py").touch()
    assert find_handlers(["a=b"]) == {"a-b": folder / "a=b" / "handler.py"}


def test_find_handlers_refuses_two_of_one_endpoint(folder: Path) -> None:
    other = folder / "other" / "resize"
    other.mkdir(parents=True)
    (other / "handler.py").touch()
    with pytest.raises(SettingError, match=r"have the endpoint resize; name one of them"):
        find_handlers(["resize", "other/resize"])
    assert list(find_handlers(["resize", "second=other/resize"])) == ["resize", "second"]


def test_find_handlers_refuses_a_missing_file() -> None:
    with pytest.raises(SettingError, match=r"--handler: there is no file gone"):
        find_handlers(["a=resize", "b=gone"])


@pytest.mark.parametrize("wrong", ["my ep", "v1.2", "Größe", ""])
def test_find_handlers_names_a_wrong_endpoint_id(wrong: str) -> None:
    with pytest.raises(SettingError, match=rf"the endpoint's ID '{wrong}' of resize must consist"):
        find_handlers([f"{wrong}=resize"])


def test_split_handlers_separates_at_commas() -> None:
    assert split_handlers("a=./a, ./b,") == ["a=./a", "./b"]
    assert split_handlers(" ") == []
