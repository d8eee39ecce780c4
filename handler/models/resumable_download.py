"""Download large files of the Hugging Face Hub so that an interrupted download is continued.

The Hub's library writes each download to a file with a random name and removes it after an error,
so it never continues one. This module downloads the content into the library's cache itself, to a
file that is named after the content's SHA-256. The library then finds the content there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger(__name__)

# An unfinished file that has not grown for so long belongs to a process that was killed.
STALE_PART_AGE_S = 24 * 3600
_PART_SUFFIX = ".incomplete"
# The Hub announces the SHA-256 of each large file; small files have another digest.
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCK_INTERVAL_S = 0.2
_HASH_BLOCK_BYTES = 4 * 2**20
# The library offers larger files only through its own transfer protocol.
_MAX_BYTES = 50_000_000_000


class DamagedDownload(Exception):
    """The downloaded content is not what the Hub announced, and was removed."""


def fetch_content(
    repository: Path,
    url: str,
    file: str,
    progress_bar: Any,
    on_progress: Callable[[int, int], None],
) -> None:
    """Download a file's content into a repository's folder of the cache, if it is large.

    `on_progress` is called with the bytes that are there and all bytes, also while another process
    downloads the same content and while the content is checked; its exceptions end the download.
    What has been downloaded then stays, for the next call. Small files are left to the library.

    Raises:
        DamagedDownload: the content has another SHA-256 than the Hub announced.
        OSError: the cache cannot be written, or the download is shorter than announced.
        Exception: any error of the library or its HTTP client.
    """
    from huggingface_hub import constants, get_hf_file_metadata
    from huggingface_hub.file_download import http_get

    utils: Any = import_module("huggingface_hub.utils")
    headers = utils.build_hf_headers()
    metadata = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, headers=headers)
    digest, size = metadata.etag or "", metadata.size
    if not _SHA256.fullmatch(digest) or size is None or not 0 < size <= _MAX_BYTES:
        return
    blob = repository / "blobs" / digest
    blob.parent.mkdir(parents=True, exist_ok=True)
    snapshot = repository / "snapshots" / (metadata.commit_hash or "")
    part = blob.with_name(digest + _PART_SUFFIX)
    with _open_part(part, lambda: on_progress(_size_of(part), size)) as output:
        if blob.exists() or (snapshot / file).exists():
            part.unlink()
            return
        done = output.seek(0, os.SEEK_END)
        if done > size:
            done = output.truncate(0)
        if shutil.disk_usage(blob.parent).free < size - done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(blob.parent))
        if done:
            logger.info("continuing the download of %s after %s bytes", file, f"{done:,}")
        http_get(
            url,
            output,
            resume_size=done,
            headers=headers,
            expected_size=size,
            tqdm_class=progress_bar,
        )
        output.flush()
        if _hash_file(part, lambda: on_progress(size, size)) != digest:
            part.unlink()
            raise DamagedDownload(
                "the downloaded file was damaged and is removed: its SHA-256 is not the one that "
                "the Hub announced"
            )
        part.replace(blob)


def remove_stale_parts(cache: Path) -> None:
    """Remove unfinished files that have not grown for STALE_PART_AGE_S from a cache."""
    oldest = time.time() - STALE_PART_AGE_S
    for part in cache.glob(f"models--*/blobs/*{_PART_SUFFIX}"):
        try:
            if part.stat().st_mtime < oldest:
                part.unlink()
                logger.info("removed %s, which an earlier download has left", part)
        except OSError as error:
            logger.debug("%s is not removed: %s", part, error.strerror)


def _open_part(part: Path, on_wait: Callable[[], None]) -> BinaryIO:
    """Open an unfinished file for appending, when no other process or thread has it open."""
    while True:
        output = part.open("ab")
        try:
            while not _lock(output):
                on_wait()
                time.sleep(_LOCK_INTERVAL_S)
            # The process that had it may have finished it, and thereby renamed it.
            if part.exists() and os.path.samestat(os.fstat(output.fileno()), part.stat()):
                return output
        except BaseException:
            output.close()
            raise
        output.close()


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size_of(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _hash_file(path: Path, on_block: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
            on_block()
    return digest.hexdigest()
