"""A fingerprint of a large file that does not read all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

_ENDS_BYTES = 1_000_000


def file_fingerprint(path: Path) -> str:
    """Return a short identifier of a large file, from its size and its ends. Raises OSError."""
    return f"{path.stat().st_size:x}-{sha256_of_ends(path)[:12]}"


def sha256_of_ends(path: Path) -> str:
    """Return the SHA-256 of a file's first and last million bytes; models may have gigabytes.

    Raises OSError.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(_ENDS_BYTES))
        file.seek(max(path.stat().st_size - _ENDS_BYTES, 0))
        digest.update(file.read(_ENDS_BYTES))
    return digest.hexdigest()
