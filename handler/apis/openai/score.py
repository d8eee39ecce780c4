"""The `/v1/score` endpoint of vLLM: score pairs of texts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from common.json_object import JsonObject
from engine import Relevance
from handler.apis.openai.dialect import Dialect
from handler.apis.openai.relevance import (
    MAX_TEXTS,
    TEXT_RULE,
    ScoredText,
    TextPair,
    count_usage,
    read_scoring_model,
    read_text,
    read_texts,
)
from handler.errors import InvalidRequest
from handler.input.parameter_names import IGNORED, LABELS
from handler.input.sampling import ParameterInput, SamplingInput, validate_model
from handler.input.unknown_keys import KnownKeys

# The names of both sides in vLLM, in the order of precedence.
FIRST_NAMES = ("text_1", "queries", "data_1")
SECOND_NAMES = ("text_2", "documents", "items", "data_2")


class ScoreInput(ParameterInput):
    """Parameters other than the texts and `model`."""

    user: str | None = Field(None, description="a string")


_KEYS = KnownKeys(
    "",
    ScoreInput.model_fields.keys() | LABELS | {*FIRST_NAMES, *SECOND_NAMES, "model"},
    notes={
        **dict.fromkeys(SamplingInput.model_fields, "has no effect on scores and was ignored"),
        **dict.fromkeys((*IGNORED, "truncate_prompt_tokens"), "is not supported and was ignored"),
        **dict.fromkeys(("top_n", "return_documents"), "is for /v1/rerank and was ignored"),
    },
)


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """One call: its pairs of texts. `warnings` has a sentence for each key that has no effect."""

    model: str
    pairs: Sequence[TextPair]
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_body(
        cls,
        body: JsonObject,
        served: str,
        dialect: Dialect,
        adapters: Sequence[str] = (),
        aliases: Sequence[str] = (),
    ) -> ScoreCall:
        """Parse a request body. Raises InvalidRequest or ModelNotFound."""
        model = read_scoring_model(body, served, dialect, adapters, aliases)
        first_name, *unread_first = _list_names(body, FIRST_NAMES)
        second_name, *unread_second = _list_names(body, SECOND_NAMES)
        first = _read_side(body, first_name)
        second = _read_side(body, second_name)
        if len(first) == 1:
            first *= len(second)
        if len(first) != len(second):
            raise InvalidRequest(
                f"{second_name} must have as many texts as {first_name} has, {len(first)}, "
                f"got {len(second)}",
                second_name,
            )
        validate_model(ScoreInput, body)
        warnings = [
            f"{name} was ignored, because {read} has the texts"
            for read, unread in ((first_name, unread_first), (second_name, unread_second))
            for name in unread
        ]
        pairs = [TextPair(*texts) for texts in zip(first, second, strict=True)]
        return cls(model, pairs, (*warnings, *_KEYS.warnings(body)))

    def encode_response(self, scores: Sequence[Relevance]) -> JsonObject:
        """Return the response body, with the scores in the order of the pairs."""
        body: dict[str, Any] = {
            "id": f"score-{os.urandom(16).hex()}",
            "object": "list",
            "created": int(time.time()),
            "model": self.model,
            "data": [
                {"index": index, "object": "score", "score": each.score}
                for index, each in enumerate(scores)
            ],
            "usage": count_usage(scores),
        }
        if self.warnings:
            body["warnings"] = list(self.warnings)
        return body


def _list_names(body: JsonObject, names: Sequence[str]) -> list[str]:
    """Return the names that a body sets, or the first name if it sets none of them."""
    return [name for name in names if body.get(name) is not None] or [names[0]]


def _read_side(body: JsonObject, name: str) -> list[ScoredText]:
    value = body.get(name)
    if isinstance(value, list):
        return read_texts(value, name)
    return [read_text(value, name, f"{TEXT_RULE}, or an array of up to {MAX_TEXTS} of them")]
