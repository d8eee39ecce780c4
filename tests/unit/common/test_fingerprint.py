"""The fingerprint of a file, from both of its ends."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from common.fingerprint import sha256_of_ends

MEGABYTE = 1_000_000


@pytest.mark.parametrize("size", [0, 1, MEGABYTE, 3 * MEGABYTE])
def test_digest_covers_the_first_and_last_million_bytes(tmp_path: Path, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    path = tmp_path / "model"
    path.write_bytes(data)
    ends = data[:MEGABYTE] + data[max(size - MEGABYTE, 0) :]
    assert sha256_of_ends(path) == hashlib.sha256(ends).hexdigest()


@pytest.mark.parametrize("place", [0, MEGABYTE - 1, 2 * MEGABYTE, 3 * MEGABYTE - 1])
def test_digest_changes_with_a_byte_at_either_end(tmp_path: Path, place: int) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    data = bytearray(3 * MEGABYTE)
    one.write_bytes(data)
    data[place] = 1
    other.write_bytes(data)
    assert sha256_of_ends(one) != sha256_of_ends(other)
