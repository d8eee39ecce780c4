from __future__ import annotations

from pathlib import Path

import pytest

from handler.models.default_model import DEFAULT_MODEL_PATH
from handler.models.model_file import describe_file


def test_gguf_is_described_by_its_header() -> None:
    described = describe_file(DEFAULT_MODEL_PATH, "tiny")
    assert (described.format, described.family) == ("gguf", "llama")
    assert (described.parameter_size, described.quantization) == ("135M", "Q4_1")
    assert described.size_bytes == DEFAULT_MODEL_PATH.stat().st_size
    assert described.context_length == 8192


@pytest.mark.parametrize(
    ("name", "size", "quantization"),
    [
        ("Qwen2.5-1.5B-w8a8-rk3588.rkllm", "1.5B", "w8a8"),
        ("gemma-270m_W4A16_G128.rkllm", "270M", "w4a16_g128"),
        ("model.rkllm", "", ""),
    ],
)
def test_rkllm_is_described_by_its_name(
    tmp_path: Path, name: str, size: str, quantization: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"x" * 9)
    described = describe_file(path, "m")
    assert (described.parameter_size, described.quantization) == (size, quantization)
    assert (described.format, described.size_bytes) == ("rkllm", 9)


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"no GGUF at all"])
def test_missing_or_damaged_file_is_described_by_its_name(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "some-3b.gguf"
    if content is not None:
        path.write_bytes(content)
    described = describe_file(path, "some")
    assert (described.parameter_size, described.family) == ("3B", "")
    assert len(described.digest) == 64


def test_digest_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.rkllm"
    digests = set()
    for content in (b"a", b"b", b"bb"):
        path.write_bytes(content)
        digests.add(describe_file(path, "m").digest)
    assert len(digests) == 3
    assert describe_file(None, "m").size_bytes == 0
