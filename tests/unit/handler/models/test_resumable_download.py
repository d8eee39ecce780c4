"""Downloads that end early: the next one continues them, and no partial file remains."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from handler.models.hub import Hub, HubError, HubReference
from handler.models.resumable_download import STALE_PART_AGE_S, remove_stale_parts
from tests.hub_server import MAIN, HubServer, hub_server

CONTENT = bytes(range(256)) * 12_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
REFERENCE = HubReference("org/repo", "main", "a.gguf")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    with hub_server() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        hub.add("org/repo", {"a.gguf": CONTENT})
        yield hub


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    """The folder of the repository's contents in the cache."""
    folder = tmp_path / "models--org--repo" / "blobs"
    folder.mkdir(parents=True)
    return folder


class Stopped(Exception):
    pass


def download(cache: Path, stop_after: int | None = None) -> bytes:
    def on_progress(file: str, done: int, total: int) -> None:
        if stop_after is not None and done >= stop_after:
            raise Stopped

    folder = Hub([cache], on_progress).download(REFERENCE, ["a.gguf"])
    return (folder / "a.gguf").read_bytes()


def test_interrupted_download_is_continued(server: HubServer, tmp_path: Path, blobs: Path) -> None:
    with pytest.raises(HubError):
        download(tmp_path, 1_000_000)
    part = blobs / f"{DIGEST}.incomplete"
    size = part.stat().st_size
    assert 500_000 < size < len(CONTENT)
    assert part.read_bytes() == CONTENT[:size]
    assert download(tmp_path) == CONTENT
    assert server.ranges == [f"bytes={size}-"]
    assert [each.name for each in blobs.iterdir()] == [DIGEST]


@pytest.mark.parametrize(
    ("left", "ranges"),
    [
        (CONTENT[:5], ["bytes=5-"]),
        # The process was killed before it renamed the complete file.
        (CONTENT, []),
        (b"", []),
        # It cannot be this content.
        (CONTENT + b"more", []),
    ],
)
def test_part_of_a_killed_process_is_used(
    server: HubServer, tmp_path: Path, blobs: Path, left: bytes, ranges: list[str]
) -> None:
    (blobs / f"{DIGEST}.incomplete").write_bytes(left)
    assert download(tmp_path) == CONTENT
    assert server.ranges == ranges
    assert [each.name for each in blobs.iterdir()] == [DIGEST]


def test_damaged_part_is_removed_and_the_next_download_succeeds(
    server: HubServer, tmp_path: Path, blobs: Path
) -> None:
    (blobs / f"{DIGEST}.incomplete").write_bytes(b"x" * 1000)
    with pytest.raises(HubError, match="its SHA-256 is not the one that the Hub announced"):
        download(tmp_path)
    assert list(blobs.iterdir()) == []
    assert download(tmp_path) == CONTENT


def test_file_that_does_not_fit_on_the_disk_is_refused_before_it_is_downloaded(
    server: HubServer, tmp_path: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=len(CONTENT) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(HubError, match="No space left on device"):
        download(tmp_path)
    assert server.downloads == []
    # Bytes that are already downloaded need no space.
    (blobs / f"{DIGEST}.incomplete").write_bytes(CONTENT[:10])
    assert download(tmp_path) == CONTENT


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("is_new", [True, False])
def test_cache_of_another_user_is_reported_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    cache, user = tmp_path / "hf" / "hub", os.getuid() + 1000
    if not is_new:
        cache.mkdir(parents=True)

    def mkdir(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(HubError) as refused:
        download(cache)
    command = f"sudo chown {user} {tmp_path}" if is_new else f"sudo chown -R {user} {cache}"
    assert "Permission denied" in str(refused.value)
    assert str(refused.value).endswith(f": `{command}`")


def test_cached_content_is_not_downloaded_again(server: HubServer, tmp_path: Path) -> None:
    assert download(tmp_path) == CONTENT
    assert download(tmp_path) == CONTENT
    assert server.downloads == ["a.gguf"]
    # A file system without links has the content in the snapshot.
    snapshot = tmp_path / "models--org--repo" / "snapshots" / MAIN / "a.gguf"
    content = snapshot.resolve()
    snapshot.unlink()
    content.rename(snapshot)
    assert download(tmp_path) == CONTENT
    assert server.downloads == ["a.gguf"]


def test_old_parts_are_removed_and_others_stay(tmp_path: Path, blobs: Path) -> None:
    names = ("old.incomplete", "old.0a1b2c3d.incomplete", "new.incomplete", "whole")
    for name in names:
        (blobs / name).write_bytes(b"x")
        if name != "new.incomplete":
            seconds = (blobs / name).stat().st_mtime - STALE_PART_AGE_S - 60
            os.utime(blobs / name, (seconds, seconds))
    remove_stale_parts(tmp_path)
    assert sorted(each.name for each in blobs.iterdir()) == ["new.incomplete", "whole"]
    remove_stale_parts(tmp_path / "none")
