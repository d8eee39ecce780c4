"""Score a document for a query by how likely a reranking model answers "yes"."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.backends.options import RkllmOptions
from engine.backends.rkllm.logits.last_row import LastRow
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.errors import BackendFailed, PromptTooLong

logger = logging.getLogger(__name__)

# The prompt of Qwen3-Reranker, as its README (QwenLM/Qwen3-Embedding f4ad0c4) tokenises it: the
# three texts one by one.
_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_YES, _NO = "yes", "no"
# The tokens of this prompt and its answer. Qwen2.5's tokenizer has no token for a mark of
# reasoning, and the reranking models made from it read another prompt.
_REQUIRED_TOKENS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", _YES, _NO)
# As with llama.cpp. The runtime makes a row of logits for each token: with a vocabulary of 152,000,
# 1.2 GB for so many.
_MAX_TOKENS = 2048
_NAME_PART = "rerank"


@dataclass(frozen=True, slots=True)
class Reranker:
    """Builds the prompt of a query with a document, and reads the score from its logits.

    `yes` and `no` are the tokens of the two answers. Immutable and thread-safe.
    """

    tokenizer: ChatTokenizer
    context_length: int
    yes: int
    no: int

    def build_prompt(self, query: str, document: str) -> list[int]:
        """Return the tokens of the prompt; special tokens in the texts are read as plain text.

        Raises:
            PromptTooLong: naming the text that does not fit as the detail `param`.
        """
        head = f"<Instruct>: {_INSTRUCTION}\n<Query>: {query}"
        tokens = self._encode(f"{head}\n<Document>: {document}")
        max_tokens = min(self.context_length, _MAX_TOKENS)
        if len(tokens) <= max_tokens:
            return tokens
        param = "query" if len(self._encode(head)) > max_tokens else "document"
        raise PromptTooLong(
            f"{param}: {len(tokens)} tokens of a query and a document, with the model's "
            f"instruction, are more than the {max_tokens} that a score is made of",
            prompt_tokens=len(tokens),
            context_length=max_tokens,
            param=param,
        )

    def _encode(self, text: str) -> list[int]:
        encode = self.tokenizer.encode
        return [
            *encode(_PREFIX, special=False),
            *self.tokenizer.encode_plain(text),
            *encode(_SUFFIX, special=False),
        ]

    def score(self, last_row: LastRow, tokens: int) -> float:
        """Return the probability of "yes" if the answer is "yes" or "no".

        It is the softmax over the two logits after the last of `tokens` tokens.

        Raises:
            BackendFailed: there are no such logits, or they are no numbers.
        """
        row = memoryview(last_row.data(tokens)).cast("f")
        if max(self.yes, self.no) >= len(row):
            raise BackendFailed(
                f"the RKLLM runtime gave {len(row)} logits, and none for the tokens "
                f'"{_YES}" ({self.yes}) and "{_NO}" ({self.no})'
            )
        difference: float = row[self.yes] - row[self.no]
        if not math.isfinite(difference):
            raise BackendFailed("the RKLLM runtime gave logits that are no numbers")
        # The same as 1 / (1 + exp(-difference)), which overflows for a large difference.
        return (1 + math.tanh(difference / 2)) / 2


class RerankSetup(NamedTuple):
    """Whether a model reranks: its `reranker`, or the reason why a reranking model does not.

    A model of another kind has neither.
    """

    reranker: Reranker | None = None
    gap: str = ""


def find_reranker(
    options: RkllmOptions, tokenizer: ChatTokenizer | None, context_length: int
) -> RerankSetup:
    """Return how a model reranks, and log it; a name with "rerank" makes it a reranking model.

    The runtime does not report what a model was trained for.
    """
    names = (Path(options.model_path).name, options.model_name)
    if not any(_NAME_PART in name.lower() for name in names):
        return RerankSetup()
    start = f"{options.model_name} is a reranking model by its name"
    if tokenizer is None:
        return _refuse(
            f"{start}, and scores texts only with RKLLM_MODE=logits and the tokenizer files of the "
            "model (RKLLM_TOKENIZER)"
        )
    missing = [text for text in _REQUIRED_TOKENS if len(_encode(tokenizer, text)) != 1]
    if missing:
        return _refuse(
            f"{start}, and cannot score texts: its tokenizer has no token {', '.join(missing)} of "
            "Qwen3-Reranker's prompt and answer"
        )
    if options.mode != "logits":
        return _refuse(f"{start}, and scores texts only with RKLLM_MODE=logits")
    logger.info("%s: it scores texts with Qwen3-Reranker's prompt, and has no embeddings", start)
    [yes], [no] = _encode(tokenizer, _YES), _encode(tokenizer, _NO)
    return RerankSetup(Reranker(tokenizer, context_length, yes, no))


def _encode(tokenizer: ChatTokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, special=False)


def _refuse(gap: str) -> RerankSetup:
    logger.warning("%s; /v1/rerank, /v1/score and /v1/embeddings are refused", gap)
    return RerankSetup(gap=gap)
