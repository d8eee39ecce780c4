"""`/v1/embeddings`: texts in, their vectors out."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from engine import Capabilities, Embedding
from engine.request import RenderedPrompt
from handler.errors import InvalidRequest
from handler.messages import check_text
from handler.openai.dialect import Dialect
from handler.openai.models import read_model
from handler.parameter_names import IGNORED, LABELS
from handler.sampling import (
    MAX_INT32,
    SamplingInput,
    as_integer_parameter,
    check_token_count,
    describe_value,
    read_token_ids,
    validate_model,
)
from handler.unknown_keys import KnownKeys

# As many as OpenAI takes.
MAX_INPUTS = 2048
_INPUT = (
    f"input must be a non-empty string, an array of up to {MAX_INPUTS} of them, an array of token "
    f"ids or an array of up to {MAX_INPUTS} such arrays"
)


class EmbeddingsInput(BaseModel):
    """What a body may hold beside `input` and `model`; each description ends "… must be …"."""

    model_config = ConfigDict(strict=True, extra="ignore")
    _whole = field_validator("*", mode="before")(as_integer_parameter)

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
        **dict.fromkeys(IGNORED, "is not supported and was ignored"),
    },
)


@dataclass(frozen=True, slots=True)
class EmbeddingsCall:
    """One call: what to make vectors of, how long they are wanted, and how they are written.

    `warnings` are sentences about keys that have no effect.
    """

    model: str
    texts: Sequence[RenderedPrompt]
    dimensions: int | None
    in_base64: bool
    warnings: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        body: Mapping[str, Any],
        served: str,
        dialect: Dialect,
        adapters: Sequence[str] = (),
        aliases: Sequence[str] = (),
    ) -> EmbeddingsCall:
        """Return what a body asks for. Raises InvalidRequest or ModelNotFound."""
        model = read_model(body, served, dialect, adapters, aliases)
        if model != served:
            raise InvalidRequest(
                f"model must be {served} for vectors, which adapters do not make, got {model}",
                "model",
            )
        texts = _texts(body.get("input"))
        given = validate_model(EmbeddingsInput, body)
        warnings = _KEYS.warnings(body)
        return cls(model, texts, given.dimensions, given.encoding_format == "base64", warnings)

    def check(self, capabilities: Capabilities) -> None:
        """Refuse a length that the model's vectors have not.

        Those of a model that was trained for it could be cut; no file says which ones were, and the
        others' lose their meaning. Raises InvalidRequest.
        """
        self._check_length(capabilities.embedding_size)

    def _check_length(self, size: int) -> None:
        if self.dimensions is not None and size and self.dimensions != size:
            raise InvalidRequest(
                f"dimensions must be {size}, the length of {self.model}'s vectors, "
                f"got {self.dimensions}",
                "dimensions",
            )

    def answer(self, found: Sequence[Embedding]) -> dict[str, Any]:
        """Return the body that tells the vectors, in the order of the texts.

        Raises:
            InvalidRequest: they turn out to be of another length than was asked for, on an engine
                that does not know theirs before.
        """
        for each in found:
            self._check_length(len(each.vector))
        tokens = sum(each.tokens for each in found)
        body: dict[str, Any] = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._written(each.vector)}
                for index, each in enumerate(found)
            ],
            "model": self.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        if self.warnings:
            body["warnings"] = list(self.warnings)
        return body

    def _written(self, vector: Sequence[float]) -> Sequence[float] | str:
        if not self.in_base64:
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _texts(given: Any) -> Sequence[RenderedPrompt]:
    check_token_count(given, "input")
    texts = [given] if isinstance(given, str) or read_token_ids(given) else given
    if not isinstance(texts, list) or not texts:
        raise InvalidRequest(f"{_INPUT}, got {describe_value(given)}", "input")
    if len(texts) > MAX_INPUTS:
        raise InvalidRequest(f"{_INPUT}, got {len(texts)}", "input")
    return [_text(text, f"input[{index}]") for index, text in enumerate(texts)]


def _text(given: Any, name: str) -> RenderedPrompt:
    if isinstance(given, str) and given:
        check_text(given, name)
        return given
    if ids := read_token_ids(given):
        return ids
    raise InvalidRequest(f"{_INPUT}, got {describe_value(given)} at {name}", "input")
