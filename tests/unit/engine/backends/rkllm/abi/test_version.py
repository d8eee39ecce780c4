"""The version of a library, by the text in its file and by its content."""

from __future__ import annotations

import hashlib

import pytest

from engine.backends.rkllm.abi import version
from engine.backends.rkllm.abi.version import find_version


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            b"RKLLM SDK (version: 1.2.0 | target: Linux | build: f8ca3ae8 2025-04-08)",
            "1.2.0",
        ),
        (b"RKLLM SDK (version: 1.2.1b1 | target: Linux)", "1.2.1b1"),
        (b"RKLLM SDK (version: 1.3.1 | target: Android)", "1.3.1"),
        # The format of the log has no number, and another library's number is not this one's.
        (b"rkllm-runtime version: %s, rknpu driver version: %s", None),
        (b"rknn llm lib version: 2.3.3b0", None),
        (b"rkllm-runtime version: 1.2.3", None),
        (b"", None),
    ],
)
def test_version_is_that_of_the_sdk_text(text: bytes, expected: str | None) -> None:
    content = b"\x7fELF\0\0" + text + b"\0rknn llm lib version: 2.3.0\0"
    assert find_version(content) == (expected, False)


def test_content_of_an_official_file_decides_over_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = b"RKLLM SDK (version: 1.2.9 | target: Linux)"
    blob = hashlib.sha1(b"blob 42\0" + content, usedforsecurity=False).hexdigest()
    assert len(content) == 42
    monkeypatch.setattr(version, "_OFFICIAL_BLOBS", {blob: "1.2.3"})
    assert find_version(content) == ("1.2.3", True)
    monkeypatch.setattr(version, "_OFFICIAL_BLOBS", {})
    monkeypatch.setattr(version, "_OFFICIAL_SHA256", {hashlib.sha256(content).hexdigest(): "1.3.1"})
    assert find_version(content) == ("1.3.1", True)
    assert find_version(content + b"\0") == ("1.2.9", False)
