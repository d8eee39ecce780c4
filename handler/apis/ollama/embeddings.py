"""Read bodies of Ollama's two routes for embeddings, and encode their answers."""

from __future__ import annotations

from dataclasses import dataclass

from common.json_object import JsonObject
from common.value_description import describe_value
from handler.apis.ollama.keep_alive import read_keep_alive
from handler.apis.openai.embeddings import (
    EmbeddingsCall,
    EmbeddingsInput,
    check_not_adapter,
    read_texts,
)
from handler.errors import InvalidRequest
from handler.input.sampling import validate_model
from handler.input.unknown_keys import KnownKeys
from handler.models.registry import ResolvedModel

_SHARED_KEYS = ("keep_alive", "model", "options", "truncate")
_EMBED_KEYS = KnownKeys("", (*_SHARED_KEYS, "dimensions", "input"))
_OLD_KEYS = KnownKeys("", (*_SHARED_KEYS, "prompt"))


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """The texts to embed; `call` is None if the request only loads the model."""

    model: ResolvedModel
    call: EmbeddingsCall | None
    keep_alive_s: float | None


def read_embed(body: JsonObject, model: ResolvedModel) -> EmbedRequest:
    """Read a body of `/api/embed`. Raises InvalidRequest."""
    keep_alive_s, texts = read_keep_alive(body.get("keep_alive")), body.get("input")
    if texts in (None, "", []):
        return EmbedRequest(model, None, keep_alive_s)
    if not isinstance(texts, str) and not (
        isinstance(texts, list) and all(isinstance(each, str) for each in texts)
    ):
        raise InvalidRequest(
            f"input must be a string or an array of strings, got {describe_value(texts)}", "input"
        )
    dimensions = validate_model(EmbeddingsInput, {"dimensions": body.get("dimensions")}).dimensions
    check_not_adapter(model.name, model.pipeline.model_name)
    read = read_texts(texts)
    call = EmbeddingsCall(model.name, read, dimensions, warnings=_EMBED_KEYS.warnings(body))
    return EmbedRequest(model, call, keep_alive_s)


def read_old_embed(body: JsonObject, model: ResolvedModel) -> EmbedRequest:
    """Read a body of `/api/embeddings`, which has one text. Raises InvalidRequest."""
    keep_alive_s, text = read_keep_alive(body.get("keep_alive")), body.get("prompt")
    if text is None or text == "":
        return EmbedRequest(model, None, keep_alive_s)
    if not isinstance(text, str):
        raise InvalidRequest(f"prompt must be a string, got {describe_value(text)}", "prompt")
    check_not_adapter(model.name, model.pipeline.model_name)
    read = read_texts(text, "prompt")
    call = EmbeddingsCall(model.name, read, warnings=_OLD_KEYS.warnings(body))
    return EmbedRequest(model, call, keep_alive_s)


def encode_vectors(answer: JsonObject | None) -> list[list[float]]:
    """Return the vectors in an answer of `/v1/embeddings`; none for a request without texts."""
    return [] if answer is None else [each["embedding"] for each in answer["data"]]
