"""The bytes of tokens, which joined equal the text, for all kinds of vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.backends.rkllm.logits.vocabulary import Vocabulary
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.errors import ModelLoadFailed
from tests.fake_rkllm.tokenizer import id_of, write_tokenizer

TEXTS = ["Grüße 👩‍🚀, 漢!", " leading", "\t\n\r\0\x7f\xad¡", "".join(map(chr, range(1, 700)))]


def vocabulary_of(folder: Path) -> tuple[ChatTokenizer, Vocabulary]:
    tokenizer = ChatTokenizer(folder)
    return tokenizer, Vocabulary(tokenizer, folder)


def sentence_pieces(folder: Path, decoder: Any) -> Path:
    """A SentencePiece tokenizer: words with a mark for the space, and byte tokens."""
    pieces = ["<unk>", "</s>", "▁", "▁Good", "day", "▁day", *"abcdefgory"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    made: Any = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoder
    made.add_special_tokens(["</s>"])
    made.add_tokens([AddedToken("<tool_call>", special=False)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_a_byte_level_vocabulary_are_the_text(tmp_path: Path, text: str) -> None:
    tokenizer, vocabulary = vocabulary_of(write_tokenizer(tmp_path))
    tokens = tokenizer.encode(text, special=True)
    assert b"".join(map(vocabulary.piece, tokens)) == text.encode()


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Metaspace(),
    ],
    ids=["sequence", "metaspace"],
)
def test_bytes_of_a_sentencepiece_vocabulary_are_the_text(tmp_path: Path, decoder: Any) -> None:
    tokenizer, vocabulary = vocabulary_of(sentence_pieces(tmp_path, decoder))
    tokens = tokenizer.encode("good 漢 day<tool_call>", special=True)
    assert b"".join(map(vocabulary.piece, tokens)) == " good 漢 day<tool_call>".encode()
    assert vocabulary.piece(3) == b" Good"


def test_special_tokens_have_text_but_no_bytes(tmp_path: Path) -> None:
    _, vocabulary = vocabulary_of(write_tokenizer(tmp_path))
    end = id_of("<|im_end|>")
    assert (vocabulary.piece(end), vocabulary.text(end)) == (b"", "<|im_end|>")
    assert vocabulary.text(id_of("a")) == "a"
    # An incomplete character has no text.
    assert vocabulary.text(id_of("Ã")) == "\N{REPLACEMENT CHARACTER}"
    assert vocabulary.size == 260
    assert vocabulary.piece(260) == vocabulary.piece(10**6) == b""


@pytest.mark.parametrize("configured", [258, [258, 259], None])
def test_end_tokens_come_from_both_files(tmp_path: Path, configured: Any) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": configured}))
    _, vocabulary = vocabulary_of(tmp_path)
    more = configured if isinstance(configured, list) else [configured]
    assert vocabulary.end_tokens == {id_of("</s>"), *more} - {None}


def test_vocabulary_without_end_token_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, eos_token=None)
    with pytest.raises(
        ModelLoadFailed, match="RKLLM_MODE: which token ends an answer is in neither"
    ):
        vocabulary_of(tmp_path)
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(ModelLoadFailed, match=r"generation_config\.json cannot be read"):
        vocabulary_of(tmp_path)


def test_unknown_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"not known here \(WordPiece\)"):
        vocabulary_of(sentence_pieces(tmp_path, decoders.WordPiece()))
