"""Which folders are used for batches: new ones, empty ones and those of this program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from emulator.batches.folder_layout import BATCH_NAME, FILE_NAME, MARK, mark, why_refused

DIGITS = "0123456789abcdef0123456789ab"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    return folder


def earlier(folder: Path) -> None:
    """Leave what versions without a mark left."""
    for name in ("files", "batches"):
        (folder / name).mkdir()
    (folder / "lock").touch()
    for name in (f"file-{DIGITS}", f"file-{DIGITS}.json", ".upload-0123456789abcdef"):
        (folder / "files" / name).touch()
    for name in (f"batch_{DIGITS}.json", f"batch_{DIGITS}.partial"):
        (folder / "batches" / name).touch()


def test_empty_folder_is_used(folder: Path) -> None:
    assert why_refused(folder) is None
    (folder / "lost+found").mkdir()
    assert why_refused(folder) is None


def test_folder_with_the_mark_is_used_whatever_else_is_in_it(folder: Path) -> None:
    (folder / "notes.txt").touch()
    for content in (mark(), b"", b"damaged"):
        (folder / MARK).write_bytes(content)
        assert why_refused(folder) is None


def test_folder_of_a_later_version_is_refused(folder: Path) -> None:
    (folder / MARK).write_bytes(orjson.dumps({"format": 2}))
    assert "a later version of this program wrote it" in (why_refused(folder) or "")


def test_folder_of_an_earlier_version_is_used(folder: Path) -> None:
    earlier(folder)
    assert why_refused(folder) is None


def no_lock(folder: Path) -> None:
    (folder / "lock").unlink()


def a_document(folder: Path) -> None:
    (folder / "files" / "thesis.pdf").touch()


def a_similar_name(folder: Path) -> None:
    (folder / "files" / f"file-{DIGITS}.jsonl").touch()


def a_folder_inside(folder: Path) -> None:
    (folder / "files" / f"file-{DIGITS[::-1]}").mkdir()


def a_link_inside(folder: Path) -> None:
    (folder / "batches" / f"batch_{DIGITS[::-1]}.json").symlink_to("/etc/hostname")


def a_linked_folder(folder: Path) -> None:
    (folder / "files").rename(folder.parent / "documents")
    (folder / "files").symlink_to(folder.parent / "documents")


NOT_OURS = "it was not created by this program"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (no_lock, NOT_OURS),
        (a_linked_folder, NOT_OURS),
        (a_document, "files/thesis.pdf is not a file of this program: move that file"),
        (a_similar_name, f"files/file-{DIGITS}.jsonl is not a file of this program"),
        (a_folder_inside, f"files/file-{DIGITS[::-1]} is not a file of this program"),
        (a_link_inside, f"batches/batch_{DIGITS[::-1]}.json is not a file of this program"),
    ],
)
def test_folder_that_is_not_exactly_an_earlier_versions_is_refused(
    folder: Path, change: Callable[[Path], None], reason: str
) -> None:
    earlier(folder)
    change(folder)
    before = sorted(folder.parent.rglob("*"))
    assert reason in (why_refused(folder) or "")
    assert sorted(folder.parent.rglob("*")) == before


def test_folder_with_other_files_is_refused(folder: Path) -> None:
    (folder / "notes.txt").touch()
    assert NOT_OURS in (why_refused(folder) or "")


@pytest.mark.parametrize(
    "name",
    ["thesis.pdf", "file-1", f"file-{DIGITS}.jsonl", f"file-{DIGITS}\n", ".upload-1", "x.new"],
)
def test_names_that_are_not_of_the_pattern_do_not_match(name: str) -> None:
    assert FILE_NAME.fullmatch(name) is None
    assert BATCH_NAME.fullmatch(name) is None
