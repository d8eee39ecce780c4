"""Score pairs of texts: with a reranking model, or by comparing their embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import EMBED, RERANK, Embedding, Engine, Priority, Relevance, Slot
from engine.errors import UnsupportedParameter
from handler.apis.openai.dialect import Dialect
from handler.apis.openai.models import read_model
from handler.errors import InvalidRequest
from handler.input.text import check_text

# As many as a request for embeddings may have. Jina's limit is the same.
MAX_TEXTS = 2048
TEXT_RULE = "a non-empty string or an object with such a string as its text"


@dataclass(frozen=True, slots=True)
class ScoredText:
    """One text of a request. `param` names it in errors."""

    text: str
    param: str


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query and a document whose relevance is computed."""

    query: ScoredText
    document: ScoredText


async def compute_relevance(
    engine: Engine, pairs: Sequence[TextPair], priority: Priority, slot: Slot | None
) -> list[Relevance]:
    """Return the relevance of each pair, in the order of the pairs.

    With a model that has embeddings, it is the cosine of the angle between both, from -1 to 1. Each
    text is computed once, and its tokens are counted in the first pair that has it.

    Raises:
        UnsupportedParameter: the model is no reranking model and has no embeddings, or it is one
            that scores no texts with these settings.
        EngineError: the engine failed or is not available.
    """
    capabilities = await engine.ready()
    if capabilities.rerank:
        return await engine.compute(
            RERANK,
            [(pair.query.text, pair.document.text) for pair in pairs],
            priority,
            slot,
            [(pair.query.param, pair.document.param) for pair in pairs],
        )
    if not capabilities.embeddings:
        param = pairs[0].query.param
        reason = capabilities.rerank_gap or (
            f"{capabilities.model} is no reranking model, and the {capabilities.backend} engine "
            "has no embeddings"
        )
        raise UnsupportedParameter(f"{param}: {reason}", param=param)
    params = {
        scored.text: scored.param
        for pair in reversed(pairs)
        for scored in (pair.document, pair.query)
    }
    names = [(param,) for param in params.values()]
    computed = await engine.compute(EMBED, list(params), priority, slot, names)
    embeddings = dict(zip(params, computed, strict=True))
    # In a thread: two thousand long embeddings take tenths of a second.
    return await asyncio.to_thread(lambda: list(_compare_embeddings(pairs, embeddings)))


def _compare_embeddings(
    pairs: Sequence[TextPair], embeddings: Mapping[str, Embedding]
) -> Iterator[Relevance]:
    uncounted = set(embeddings)
    for pair in pairs:
        texts = {pair.query.text, pair.document.text}
        tokens = sum(embeddings[text].tokens for text in texts & uncounted)
        uncounted -= texts
        # Embeddings have length 1.
        query, document = embeddings[pair.query.text], embeddings[pair.document.text]
        cosine = sum(map(mul, query.vector, document.vector))
        yield Relevance(max(-1.0, min(1.0, cosine)), tokens)


def count_usage(scores: Sequence[Relevance]) -> dict[str, int]:
    """Return the `usage` of a response."""
    tokens = sum(each.tokens for each in scores)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def read_scoring_model(
    body: JsonObject,
    served: str,
    dialect: Dialect,
    adapters: Sequence[str],
    aliases: Sequence[str],
) -> str:
    """Return the name of the model. Raises InvalidRequest or ModelNotFound."""
    model = read_model(body, served, dialect, adapters, aliases)
    if model != served:
        raise InvalidRequest(
            f"model must be {served} for scores, which adapters do not make, got {model}", "model"
        )
    return model


def read_text(value: Any, path: str, rule: str = TEXT_RULE) -> ScoredText:
    """Read a string or an object with `text`, which must not be empty. Raises InvalidRequest."""
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text:
        raise InvalidRequest(f"{path} must be {rule}, got {describe_value(value)}", path)
    check_text(text, path)
    return ScoredText(text, path)


def read_texts(value: Any, path: str) -> list[ScoredText]:
    """Read an array of texts. Raises InvalidRequest."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_TEXTS:
        described = len(value) if isinstance(value, list) and value else describe_value(value)
        raise InvalidRequest(
            f"{path} must be an array of up to {MAX_TEXTS} texts, got {described}", path
        )
    return [read_text(each, f"{path}[{index}]") for index, each in enumerate(value)]
