"""The version of a librkllmrt.so, by the content of its file."""

from __future__ import annotations

import hashlib
import re
from types import MappingProxyType
from typing import NamedTuple

# The text that real libraries contain: `RKLLM SDK (version: 1.2.0 | target: Linux | build: …)`.
# The text of their log, `rkllm-runtime version: %s`, has no number, and the number behind
# `rknn llm lib version: ` is another one.
_SDK_VERSION = re.compile(rb"RKLLM SDK \(version: ?(\d+\.\d+\.\d+\w*)")

# Rockchip's files for aarch64: the ids of their blobs in its repository, which are the SHA-1 of
# "blob", the size and the content; and SHA-256 where only that is known.
_OFFICIAL_BLOBS = MappingProxyType(
    {
        "d45ee9b8dcb9ef27d7dd875ce3be3d5e6dfb654d": "1.2.0",
        "db041c01bba5e0e8f624bb2ff50d48825dde1bfc": "1.2.1b1",
        "6b9439d59f2fe4bb8ef5ee2b09c102f1bf993da9": "1.2.1",
        "8ed9cca16f8d5ad8f7cdd7d393de6561182b3395": "1.2.2",
        "0084abc34ab43359cfa9fd5d4c92ece34127dbd0": "1.2.3",
        "34167b32f99cb7ab19e21fb579fb750d96b878f1": "1.3.0",
    }
)
_OFFICIAL_SHA256 = MappingProxyType(
    {"f25e9b099db08aaacd0a3ac62b4697d3951d6ae61ae41ea09f6702cfa89eb32c": "1.3.1"}
)


class LibraryVersion(NamedTuple):
    """The version of a library; None if nothing names it. Official files are Rockchip's own."""

    version: str | None
    is_official: bool


def find_version(content: bytes) -> LibraryVersion:
    """Return the version of a library with this content."""
    # A name for the file, not a protection.
    blob = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    blob.update(content)
    official = _OFFICIAL_BLOBS.get(blob.hexdigest())
    if official is None:
        official = _OFFICIAL_SHA256.get(hashlib.sha256(content).hexdigest())
    if official is not None:
        return LibraryVersion(official, is_official=True)
    match = _SDK_VERSION.search(content)
    return LibraryVersion(match[1].decode() if match else None, is_official=False)
