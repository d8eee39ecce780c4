from __future__ import annotations

import struct
from pathlib import Path

import pytest

from handler.models.default_model import DEFAULT_MODEL_PATH
from handler.models.model_file import FileCapabilities, ModelFiles, ModelSource, describe_file
from tests.unit.engine.backends.test_gguf import CONTEXT, POOLING, STRING, header, pair, text


def test_gguf_is_described_by_its_header() -> None:
    described = describe_file(ModelSource(DEFAULT_MODEL_PATH), "tiny")
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
    described = describe_file(ModelSource(path, 4096), "m")
    assert (described.parameter_size, described.quantization) == (size, quantization)
    assert (described.format, described.size_bytes) == ("rkllm", 9)
    # Only the runtime knows them.
    assert (described.context_length, described.capabilities) == (None, None)


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"no GGUF at all"])
def test_missing_or_damaged_file_is_described_by_its_name(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "some-3b.gguf"
    if content is not None:
        path.write_bytes(content)
    described = describe_file(ModelSource(path), "some")
    assert (described.parameter_size, described.family) == ("3B", "")
    assert len(described.digest) == 64


def test_digest_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.rkllm"
    digests = set()
    for content in (b"a", b"b", b"bb"):
        path.write_bytes(content)
        digests.add(describe_file(ModelSource(path), "m").digest)
    assert len(digests) == 3
    assert describe_file(None, "m").size_bytes == 0


def gguf(path: Path, template: str, *pairs: bytes) -> ModelSource:
    entry = pair("tokenizer.chat_template", STRING, text(template))
    path.write_bytes(header(CONTEXT, *pairs, entry))
    return ModelSource(path)


@pytest.mark.parametrize(
    ("template", "tools", "thinking"),
    [
        ("{% if tools %}<tools>{% endif %}{{ '<think>' }}", True, True),
        ("{{ messages }}", False, False),
        ("{{ '[THINK]' }}", False, True),
        # The end of every turn of some models.
        ("{{ '<|end|>' }}", False, False),
    ],
)
def test_capabilities_are_those_of_the_template(
    tmp_path: Path, template: str, tools: bool, thinking: bool
) -> None:
    described = describe_file(gguf(tmp_path / "a.gguf", template), "a")
    assert described.capabilities == FileCapabilities(
        completion=True, tools=tools, thinking=thinking, insert=False, embedding=True
    )


@pytest.mark.parametrize(("pooling", "embedding"), [(1, True), (4, False)])
def test_embedding_and_reranking_models_complete_nothing(
    tmp_path: Path, pooling: int, embedding: bool
) -> None:
    kind = pair("llama.pooling_type", 4, struct.pack("<I", pooling))
    capabilities = describe_file(gguf(tmp_path / "a.gguf", "", kind), "a").capabilities
    assert capabilities is not None
    assert (capabilities.completion, capabilities.embedding) == (False, embedding)


@pytest.mark.parametrize(("limit", "context"), [(0, 8192), (512, 512), (9999, 8192)])
def test_context_is_limited_by_the_setting(tmp_path: Path, limit: int, context: int) -> None:
    path = gguf(tmp_path / "a.gguf", "", POOLING).path
    assert describe_file(ModelSource(path, limit), "a").context_length == context


def test_files_are_read_once(tmp_path: Path) -> None:
    source = gguf(tmp_path / "a.gguf", "")
    files = ModelFiles({"a": source})
    first = files.describe("a")
    source.path.unlink()
    assert files.describe("a") is first
    assert files.find_name(source.path) == "a"
    files.add("b", ModelSource(tmp_path / "b.gguf"))
    assert files.find_name(tmp_path / "b.gguf") == "b"
