"""The `/v1/embeddings` endpoint."""

from __future__ import annotations

import base64
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import EMBED, Capabilities, Embedding, Engine, Priority, Slot
from engine.request import RenderedPrompt
from handler.apis.openai.dialect import Dialect
from handler.apis.openai.models import read_model
from handler.errors import InvalidRequest
from handler.input.parameter_names import IGNORED, LABELS
from handler.input.sampling import (
    MAX_INT32,
    ParameterInput,
    SamplingInput,
    check_token_count,
    read_token_ids,
    validate_model,
)
from handler.input.text import check_text
from handler.input.unknown_keys import KnownKeys

logger = logging.getLogger(__name__)

# OpenAI's limit.
MAX_INPUTS = 2048
_RULE = (
    f"must be a non-empty string, an array of up to {MAX_INPUTS} of them, an array of token ids or "
    f"an array of up to {MAX_INPUTS} such arrays"
)


class EmbeddingsInput(ParameterInput):
    """Parameters other than `input` and `model`."""

    encoding_format: Literal["float", "base64"] | None = Field(None, description="float or base64")
    dimensions: int | None = Field(
        None, ge=1, le=MAX_INT32, description=f"a whole number from 1 to {MAX_INT32}"
    )
    user: str | None = Field(None, description="a string")


_KEYS = KnownKeys(
    "",
    EmbeddingsInput.model_fields.keys() | LABELS | {"input", "model"},
    notes={
        **dict.fromkeys(SamplingInput.model_fields, "has no effect on vectors and was ignored"),
        **dict.fromkeys(("messages", "prompt"), "is not for vectors and was ignored: use input"),
        **dict.fromkeys((*IGNORED, "truncate_prompt_tokens"), "is not supported and was ignored"),
    },
)


@dataclass(frozen=True, slots=True)
class EmbeddingsCall:
    """One call: its texts, the length of the vectors, and their encoding.

    `warnings` has a sentence for each key that has no effect.
    """

    model: str
    texts: Sequence[RenderedPrompt]
    dimensions: int | None = None
    in_base64: bool = False
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_body(
        cls,
        body: JsonObject,
        served: str,
        dialect: Dialect,
        adapters: Sequence[str] = (),
        aliases: Sequence[str] = (),
    ) -> EmbeddingsCall:
        """Parse a request body. Raises InvalidRequest or ModelNotFound."""
        model = read_model(body, served, dialect, adapters, aliases)
        check_not_adapter(model, served)
        texts = read_texts(body.get("input"))
        fields = validate_model(EmbeddingsInput, body)
        warnings = _KEYS.warnings(body)
        return cls(model, texts, fields.dimensions, fields.encoding_format == "base64", warnings)

    def check_dimensions(self, capabilities: Capabilities) -> None:
        """Check that `dimensions` is the length of the model's vectors.

        Vectors may be shortened only if the model was trained for it. Model files do not state
        this, and shortened vectors of other models are meaningless.

        Raises:
            InvalidRequest: `dimensions` is a different length.
        """
        self._check_length(capabilities.embedding_size)

    def _check_length(self, size: int) -> None:
        if self.dimensions is not None and size and self.dimensions != size:
            raise InvalidRequest(
                f"dimensions must be {size}, the length of {self.model}'s vectors, "
                f"got {self.dimensions}",
                "dimensions",
            )

    def encode_response(self, embeddings: Sequence[Embedding]) -> JsonObject:
        """Return the response body, with the vectors in the order of the texts.

        Raises:
            InvalidRequest: the vectors have another length than `dimensions`. Some engines do not
                know the length before they compute a vector.
        """
        for embedding in embeddings:
            self._check_length(len(embedding.vector))
        tokens = sum(embedding.tokens for embedding in embeddings)
        body: dict[str, Any] = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._encode(each.vector)}
                for index, each in enumerate(embeddings)
            ],
            "model": self.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        if self.warnings:
            body["warnings"] = list(self.warnings)
        return body

    def _encode(self, vector: Sequence[float]) -> Sequence[float] | str:
        if not self.in_base64:
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


async def compute_embeddings(
    call: EmbeddingsCall, engine: Engine, priority: Priority, slot: Slot | None
) -> JsonObject:
    """Return the response body of a call. Raises InvalidRequest or EngineError."""
    for warning in call.warnings:
        logger.warning("embeddings: %s", warning)
    call.check_dimensions(await engine.ready())
    return call.encode_response(await engine.compute(EMBED, call.texts, priority, slot))


def read_texts(value: Any, name: str = "input") -> Sequence[RenderedPrompt]:
    """Return the texts of a field, in any of the API's four forms. Raises InvalidRequest."""
    check_token_count(value, name)
    if isinstance(value, str) or read_token_ids(value):
        return [_read_text(value, name, name)]
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{name} {_RULE}, got {describe_value(value)}", name)
    if len(value) > MAX_INPUTS:
        raise InvalidRequest(f"{name} {_RULE}, got {len(value)}", name)
    return [_read_text(text, name, f"{name}[{index}]") for index, text in enumerate(value)]


def _read_text(value: Any, name: str, path: str) -> RenderedPrompt:
    if isinstance(value, str) and value:
        check_text(value, path)
        return value
    if ids := read_token_ids(value):
        return ids
    where = "" if path == name else f" at {path}"
    raise InvalidRequest(f"{name} {_RULE}, got {describe_value(value)}{where}", name)


def check_not_adapter(model: str, served: str) -> None:
    """Refuse the name of an adapter: adapters make no vectors. Raises InvalidRequest."""
    if model != served:
        raise InvalidRequest(
            f"model must be {served} for vectors, which adapters do not make, got {model}", "model"
        )
