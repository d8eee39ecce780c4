"""Which folders are used for batches: new ones, empty ones and those of this program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from emulator.batches.folder_layout import (
    BATCH_NAME,
    FILE_NAME,
    MARKER,
    encode_marker,
    explain_refusal,
)

DIGITS = "0123456789abcdef0123456789ab"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "batches"
    folder.mkdir()
    return folder


def create_layout_without_marker(folder: Path) -> None:
    """Create what versions without a marker created."""
    for name in ("files", "batches"):
        (folder / name).mkdir()
    (folder / "lock").touch()
    for name in (f"file-{DIGITS}", f"file-{DIGITS}.json", ".upload-0123456789abcdef"):
        (folder / "files" / name).touch()
    for name in (f"batch_{DIGITS}.json", f"batch_{DIGITS}.partial"):
        (folder / "batches" / name).touch()


def test_empty_folder_is_used(folder: Path) -> None:
    assert explain_refusal(folder) is None
    (folder / "lost+found").mkdir()
    assert explain_refusal(folder) is None


def test_folder_with_the_marker_is_used_with_any_other_files(folder: Path) -> None:
    (folder / "notes.txt").touch()
    for content in (encode_marker(), b"", b"damaged"):
        (folder / MARKER).write_bytes(content)
        assert explain_refusal(folder) is None


def test_folder_of_a_later_version_is_refused(folder: Path) -> None:
    (folder / MARKER).write_bytes(orjson.dumps({"format": 2}))
    assert "a later version of this program wrote it" in (explain_refusal(folder) or "")


def test_folder_of_an_earlier_version_is_used(folder: Path) -> None:
    create_layout_without_marker(folder)
    assert explain_refusal(folder) is None


def remove_lock(folder: Path) -> None:
    (folder / "lock").unlink()


def add_document(folder: Path) -> None:
    (folder / "files" / "thesis.pdf").touch()


def add_similar_name(folder: Path) -> None:
    (folder / "files" / f"file-{DIGITS}.jsonl").touch()


def add_folder(folder: Path) -> None:
    (folder / "files" / f"file-{DIGITS[::-1]}").mkdir()


def add_symlink(folder: Path) -> None:
    (folder / "batches" / f"batch_{DIGITS[::-1]}.json").symlink_to("/etc/hostname")


def replace_folder_by_symlink(folder: Path) -> None:
    (folder / "files").rename(folder.parent / "documents")
    (folder / "files").symlink_to(folder.parent / "documents")


NOT_OURS = "it was not created by this program"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (remove_lock, NOT_OURS),
        (replace_folder_by_symlink, NOT_OURS),
        (add_document, "files/thesis.pdf is not a file of this program: move that file"),
        (add_similar_name, f"files/file-{DIGITS}.jsonl is not a file of this program"),
        (add_folder, f"files/file-{DIGITS[::-1]} is not a file of this program"),
        (add_symlink, f"batches/batch_{DIGITS[::-1]}.json is not a file of this program"),
    ],
)
def test_folder_that_differs_from_the_earlier_layout_is_refused(
    folder: Path, change: Callable[[Path], None], reason: str
) -> None:
    create_layout_without_marker(folder)
    change(folder)
    before = sorted(folder.parent.rglob("*"))
    assert reason in (explain_refusal(folder) or "")
    assert sorted(folder.parent.rglob("*")) == before


def test_folder_with_other_files_is_refused(folder: Path) -> None:
    (folder / "notes.txt").touch()
    assert NOT_OURS in (explain_refusal(folder) or "")


@pytest.mark.parametrize(
    "name",
    ["thesis.pdf", "file-1", f"file-{DIGITS}.jsonl", f"file-{DIGITS}\n", ".upload-1", "x.new"],
)
def test_patterns_do_not_match_other_names(name: str) -> None:
    assert FILE_NAME.fullmatch(name) is None
    assert BATCH_NAME.fullmatch(name) is None
