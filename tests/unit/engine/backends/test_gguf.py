"""Valid and damaged GGUF headers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.gguf import (
    _MAX_HEADER_BYTES,
    has_infill_tokens,
    read_chat_template,
    read_header,
)
from engine.errors import ModelLoadFailed

UINT32, STRING, ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def header(*pairs: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)


NAME = pair("general.name", STRING, text("tiny"))
TOKENS = pair("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("b"))
SCORES = pair("tokenizer.ggml.scores", ARRAY, struct.pack("<IQ3f", 6, 3, 0.5, 1, 2))
CONTEXT = pair("llama.context_length", UINT32, struct.pack("<I", 8192))
POOLING = pair("llama.pooling_type", UINT32, struct.pack("<I", 3))
HEADER = header(NAME, TOKENS, SCORES, CONTEXT)


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "tiny.gguf"


def test_context_length_is_read_after_strings_and_arrays(gguf: Path) -> None:
    gguf.write_bytes(HEADER)
    assert read_header(gguf).context_length == 8192


@pytest.mark.parametrize("vocabulary", ["before", "between", "after"])
def test_pooling_is_read_at_any_position(gguf: Path, vocabulary: str) -> None:
    parts = [CONTEXT, POOLING]
    parts.insert({"before": 0, "between": 1, "after": 2}[vocabulary], TOKENS)
    gguf.write_bytes(header(NAME, *parts))
    # It is among the model's properties, before the vocabulary, which is slow to parse.
    read = read_header(gguf)
    assert (read.context_length, read.pooling) == (8192, 0 if vocabulary == "between" else 3)


def test_vocabulary_is_not_read(gguf: Path) -> None:
    gguf.write_bytes(header(NAME, CONTEXT, POOLING, TOKENS)[: -len(TOKENS) + 40])
    read = read_header(gguf)
    assert (read.context_length, read.pooling) == (8192, 3)


def test_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"DRAFT_MODEL_PATH: there is no file .*gone"):
        read_header(tmp_path / "gone", "DRAFT_MODEL_PATH")


def test_missing_properties_have_defaults(gguf: Path) -> None:
    gguf.write_bytes(header(NAME))
    assert read_header(gguf).context_length == 4096


def test_truncated_file_error_names_the_file_and_the_setting(
    gguf: Path, subtests: pytest.Subtests
) -> None:
    for cut in range(len(HEADER)):
        with subtests.test(cut=cut):
            gguf.write_bytes(HEADER[:cut])
            reason = "is not a GGUF file" if cut < 4 else "is damaged or cut short"
            with pytest.raises(ModelLoadFailed, match=rf"MODEL_PATH: .*tiny\.gguf {reason}"):
                read_header(gguf)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"MODEL_PATH: there is no file .*gone"):
        read_header(tmp_path / "gone")
    with pytest.raises(ModelLoadFailed, match=r"MODEL_PATH: .* cannot be read"):
        read_header(tmp_path)


@pytest.mark.parametrize(
    "damaged",
    [
        header(text("key" * 3) + struct.pack("<IQ", STRING, 2**63)),
        header(pair("scores", ARRAY, struct.pack("<IQ", UINT32, 2**60))),
        header(pair("scores", ARRAY, struct.pack("<IQ", ARRAY, 2**60))),
        header(pair("a.context_length", STRING, text("long"))),
        header(pair("a.pooling_type", STRING, text("mean"))),
        header(pair("a.context_length", ARRAY, struct.pack("<IQ", UINT32, 0))),
        header(pair("deep", ARRAY, struct.pack("<IQ", ARRAY, 1) * 5000)),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63) + NAME,
    ],
    ids=["string", "array", "nested", "text", "pooling", "none", "deep", "pairs"],
)
def test_absurd_numbers_are_reported_as_damage(gguf: Path, damaged: bytes) -> None:
    gguf.write_bytes(damaged)
    with pytest.raises(ModelLoadFailed, match="is damaged or cut short"):
        read_header(gguf)


@given(flips=st.dictionaries(st.integers(4, len(HEADER) - 1), st.integers(0, 255), min_size=1))
def test_any_damage_gives_a_length_or_a_clear_error(gguf: Path, flips: dict[int, int]) -> None:
    damaged = bytearray(HEADER)
    for place, value in flips.items():
        damaged[place] = value
    gguf.write_bytes(damaged)
    try:
        outcome: int | str = read_header(gguf).context_length
    except ModelLoadFailed as error:
        outcome = error.message
    assert outcome > 0 if isinstance(outcome, int) else str(gguf) in outcome


@pytest.mark.parametrize("has_template", [True, False])
def test_chat_template_is_read_by_its_key_and_type(tmp_path: Path, has_template: bool) -> None:
    # R58
    path = tmp_path / "model.gguf"
    key = b"tokenizer.chat_template"
    entry = pair("tokenizer.chat_template", STRING, text("{{ messages }}"))
    # The bare name, for example in a description, is not an entry.
    path.write_bytes(b"GGUF" + key + (entry if has_template else b"") + b"\0" * 100)
    assert read_chat_template(path) == ("{{ messages }}" if has_template else None)


def test_template_of_a_damaged_length_ends_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    entry = text("tokenizer.chat_template") + struct.pack("<IQ", STRING, 2**63)
    path.write_bytes(b"GGUF" + entry + b"tools")
    assert read_chat_template(path) == "tools"


def test_properties_are_numbers_and_short_texts(gguf: Path) -> None:
    gguf.write_bytes(
        header(
            pair("general.architecture", STRING, text("llama")),
            pair("general.license", STRING, text("x" * 300)),
            pair("llama.rope.freq_base", 6, struct.pack("<f", 10000)),
            pair("llama.rope.scaling.factor", 6, struct.pack("<f", float("nan"))),
            pair("llama.heads", ARRAY, struct.pack("<IQI", UINT32, 1, 7)),
            pair("tokenizer.ggml.model", STRING, text("gpt2")),
            CONTEXT,
            TOKENS,
        )
    )
    assert read_header(gguf).properties == {
        "general.architecture": "llama",
        "llama.rope.freq_base": 10000.0,
        "llama.context_length": 8192,
    }


def test_header_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(header(text("long") + struct.pack("<IQ", STRING, _MAX_HEADER_BYTES)))
        # A sparse file, which takes no disk space.
        file.truncate(2 * _MAX_HEADER_BYTES)
    with pytest.raises(ModelLoadFailed, match="is damaged or cut short"):
        read_header(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (pair("tokenizer.ggml.fim_pre_token_id", UINT32, struct.pack("<I", 1)), True),
        (text("<|fim_prefix|>"), True),
        (b"a text about <|fim_prefix|> and more", False),
    ],
)
def test_infill_tokens_are_detected(tmp_path: Path, content: bytes, expected: bool) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(HEADER + content)
    assert has_infill_tokens(path) is expected
