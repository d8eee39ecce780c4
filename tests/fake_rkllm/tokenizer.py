"""Write tokenizer files like those of a model, with one token per byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

# The tokens of Qwen3-Reranker's prompt and answer that are not special.
RERANK_TOKENS = ("<think>", "</think>", "yes", "no")
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
# Qwen's chat template, shortened.
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(added: Sequence[str] = ()) -> Tokenizer:
    """Return a tokenizer that encodes and decodes any text exactly; prompts start with <s>.

    The `added` texts are tokens too, behind the special ones.
    """
    vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    made.add_tokens(list(added))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair=None, special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made  # type: ignore[no-any-return]


def write_tokenizer(
    folder: Path, template: Any = CHATML, *, added: Sequence[str] = (), **config: Any
) -> Path:
    """Write tokenizer.json and tokenizer_config.json; without a chat template if it is None."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(added).save(str(folder / "tokenizer.json"))
    fields = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **config}
    if template is not None:
        fields["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def id_of(token: str) -> int:
    """Return the id of a token, which must exist."""
    token_id = tokenizer().token_to_id(token)
    assert token_id is not None
    return token_id


def text_of(ids: Sequence[int]) -> str:
    """Return the text of tokens, including special tokens."""
    return str(tokenizer().decode(list(ids), skip_special_tokens=False))
