"""Translate bodies and answers of Ollama's two routes for embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.value_description import describe_value
from handler.errors import InvalidRequest
from handler.input.unknown_keys import KnownKeys

_SHARED_KEYS = ("keep_alive", "model", "options", "truncate")
_EMBED_KEYS = KnownKeys("", (*_SHARED_KEYS, "dimensions", "input"))
_OLD_KEYS = KnownKeys("", (*_SHARED_KEYS, "prompt"))


def translate_embed(body: Mapping[str, Any]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Return the body of `/v1/embeddings` for one of `/api/embed`, and warnings.

    None instead of a body without texts, which only loads the model. Raises InvalidRequest.
    """
    warnings = _EMBED_KEYS.warnings(body)
    texts = body.get("input")
    if texts in (None, "", []):
        return None, warnings
    if not isinstance(texts, str) and not (
        isinstance(texts, list) and all(isinstance(each, str) for each in texts)
    ):
        raise InvalidRequest(
            f"input must be a string or an array of strings, got {describe_value(texts)}", "input"
        )
    translated = {"input": texts}
    if (dimensions := body.get("dimensions")) is not None:
        translated["dimensions"] = dimensions
    return translated, warnings


def translate_old_embed(body: Mapping[str, Any]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Return the same for a body of `/api/embeddings`, which has one text."""
    warnings = _OLD_KEYS.warnings(body)
    text = body.get("prompt")
    if text is None or text == "":
        return None, warnings
    if not isinstance(text, str):
        raise InvalidRequest(f"prompt must be a string, got {describe_value(text)}", "prompt")
    return {"input": text}, warnings


def encode_vectors(answer: Mapping[str, Any] | None) -> list[list[float]]:
    """Return the vectors in an answer of `/v1/embeddings`; none for a request without texts."""
    return [] if answer is None else [each["embedding"] for each in answer["data"]]
