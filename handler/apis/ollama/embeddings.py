"""Read bodies of Ollama's two routes for embeddings, and encode their answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import Engine, Priority, Slot
from engine.errors import PromptTooLong
from engine.prompts.prompt_size import MAX_TOKEN_BYTES
from engine.request import RenderedPrompt
from handler.apis.ollama.keep_alive import read_keep_alive
from handler.apis.openai.embeddings import (
    EmbeddingsCall,
    EmbeddingsInput,
    check_not_adapter,
    compute_embeddings,
    read_texts,
)
from handler.errors import InvalidRequest
from handler.input.request import read_flag
from handler.input.sampling import validate_model
from handler.input.unknown_keys import KnownKeys
from handler.models.registry import ResolvedModel

_SHARED_KEYS = ("keep_alive", "model", "options", "truncate")
_EMBED_KEYS = KnownKeys("", (*_SHARED_KEYS, "dimensions", "input"))
_OLD_KEYS = KnownKeys("", (*_SHARED_KEYS, "prompt"))
# A long text is cut in pieces, because tokenizing can take quadratic time.
_PIECE_CHARS = 32_768
# Tokens that are left free for special ones, at the first attempt to cut a text and at later ones:
# a text that is cut may have more tokens than were counted.
_SPARE_TOKENS = (4, 64, 512)
# Ollama's sentence, which clients look for.
_TOO_LONG = "input length exceeds maximum context length"


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """The texts to embed; a request that only loads the model has no `call`.

    With `truncates`, texts that are too long are cut.
    """

    model: ResolvedModel
    call: EmbeddingsCall | None
    keep_alive_s: float | None
    truncates: bool = True


def read_embed(body: JsonObject, model: ResolvedModel) -> EmbedRequest:
    """Read a body of `/api/embed`. Raises InvalidRequest."""
    keep_alive_s, texts = read_keep_alive(body.get("keep_alive")), body.get("input")
    truncates = read_flag(body, "truncate", default=True)
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
    return EmbedRequest(model, call, keep_alive_s, truncates)


def read_old_embed(body: JsonObject, model: ResolvedModel) -> EmbedRequest:
    """Read a body of `/api/embeddings`, which has one text. Raises InvalidRequest."""
    keep_alive_s, text = read_keep_alive(body.get("keep_alive")), body.get("prompt")
    truncates = read_flag(body, "truncate", default=True)
    if text is None or text == "":
        return EmbedRequest(model, None, keep_alive_s)
    if not isinstance(text, str):
        raise InvalidRequest(f"prompt must be a string, got {describe_value(text)}", "prompt")
    check_not_adapter(model.name, model.pipeline.model_name)
    read = read_texts(text, "prompt")
    call = EmbeddingsCall(model.name, read, warnings=_OLD_KEYS.warnings(body))
    return EmbedRequest(model, call, keep_alive_s, truncates)


async def embed_texts(
    call: EmbeddingsCall, engine: Engine, priority: Priority, slot: Slot | None, *, truncates: bool
) -> JsonObject:
    """Return the answer of `/v1/embeddings`; with `truncates`, of texts that are cut to fit.

    Raises InvalidRequest or EngineError; PromptTooLong with Ollama's sentence.
    """
    try:
        return await compute_embeddings(call, engine, priority, slot)
    except PromptTooLong as error:
        # A server that has the model has its tokens too, so that the text cannot be cut here.
        if not truncates or not (await engine.ready()).tokenize:
            raise PromptTooLong(f"{_TOO_LONG} ({error.message})", **error.details) from error
        max_tokens = int(error.details.get("context_length") or 0)
    for spare in _SPARE_TOKENS:
        cut = await _cut_texts(call, engine, max(max_tokens - spare, 1))
        try:
            # The slot was used by the first attempt.
            return await compute_embeddings(cut, engine, priority, None)
        except PromptTooLong as error:
            too_long = error
    raise PromptTooLong(f"{_TOO_LONG} ({too_long.message})", **too_long.details)


async def _cut_texts(call: EmbeddingsCall, engine: Engine, max_tokens: int) -> EmbeddingsCall:
    """Return the call with the first tokens of each text, and a warning for each that was cut."""
    texts: list[RenderedPrompt] = []
    warnings = list(call.warnings)
    for index, text in enumerate(call.texts):
        cut = text[:max_tokens] if isinstance(text, tuple) else await _cut(engine, text, max_tokens)
        texts.append(cut)
        if len(cut) < len(text):
            name = "input" if len(call.texts) == 1 else f"input[{index}]"
            warnings.append(
                f"{name} was cut to its first {max_tokens} tokens, because it is too long"
            )
    return replace(call, texts=texts, warnings=tuple(warnings))


async def _cut(engine: Engine, text: str, max_tokens: int) -> str:
    context_length = (await engine.ready()).context_length
    step = min(_PIECE_CHARS, context_length * MAX_TOKEN_BYTES) if context_length else _PIECE_CHARS
    left = max_tokens
    # A token has one character at least.
    for start in range(0, len(text) if len(text) > max_tokens else 0, step):
        end = start
        for piece in await engine.pieces(text[start : start + step]):
            if not left:
                return text[:end]
            left -= 1
            end = min(end + len(piece), start + step)
    return text


def encode_vectors(answer: JsonObject | None) -> list[list[float]]:
    """Return the vectors in an answer of `/v1/embeddings`; none for a request without texts."""
    return [] if answer is None else [each["embedding"] for each in answer["data"]]
