"""The `/v1/rerank` endpoint: sort documents by their relevance to a query."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from common.json_object import JsonObject
from engine import Relevance
from handler.apis.openai.dialect import Dialect
from handler.apis.openai.relevance import (
    TextPair,
    count_usage,
    read_scoring_model,
    read_text,
    read_texts,
)
from handler.input.parameter_names import IGNORED, LABELS
from handler.input.sampling import MAX_INT32, ParameterInput, SamplingInput, validate_model
from handler.input.unknown_keys import KnownKeys


class RerankInput(ParameterInput):
    """Parameters other than the texts and `model`."""

    top_n: int | None = Field(
        None, ge=0, le=MAX_INT32, description=f"a whole number from 0 (for all) to {MAX_INT32}"
    )
    return_documents: bool | None = Field(None, description="true or false")
    user: str | None = Field(None, description="a string")


_KEYS = KnownKeys(
    "",
    RerankInput.model_fields.keys() | LABELS | {"query", "documents", "model"},
    notes={
        **dict.fromkeys(SamplingInput.model_fields, "has no effect on scores and was ignored"),
        **dict.fromkeys(("texts", "input"), "was ignored: use documents"),
        **dict.fromkeys((*IGNORED, "truncate_prompt_tokens"), "is not supported and was ignored"),
        **dict.fromkeys(
            ("rank_fields", "max_chunks_per_doc", "max_tokens_per_doc", "truncate"),
            "is not supported and was ignored",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class RerankCall:
    """One call: a query with each of its documents, and what the response contains.

    `top_n` is the number of results. `warnings` has a sentence for each key that has no effect.
    """

    model: str
    pairs: Sequence[TextPair]
    top_n: int
    return_documents: bool
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_body(
        cls,
        body: JsonObject,
        served: str,
        dialect: Dialect,
        adapters: Sequence[str] = (),
        aliases: Sequence[str] = (),
    ) -> RerankCall:
        """Parse a request body. Raises InvalidRequest or ModelNotFound."""
        model = read_scoring_model(body, served, dialect, adapters, aliases)
        query = read_text(body.get("query"), "query")
        documents = read_texts(body.get("documents"), "documents")
        fields = validate_model(RerankInput, body)
        return cls(
            model,
            [TextPair(query, document) for document in documents],
            fields.top_n or len(documents),
            # The default of vLLM and Jina.
            fields.return_documents is not False,
            _KEYS.warnings(body),
        )

    def encode_response(self, scores: Sequence[Relevance]) -> JsonObject:
        """Return the response body, with the most relevant document first."""
        order = sorted(range(len(scores)), key=lambda index: -scores[index].score)
        body: dict[str, Any] = {
            "id": f"rerank-{os.urandom(16).hex()}",
            "object": "list",
            "model": self.model,
            "results": [self._encode(index, scores[index]) for index in order[: self.top_n]],
            "usage": count_usage(scores),
        }
        if self.warnings:
            body["warnings"] = list(self.warnings)
        return body

    def _encode(self, index: int, relevance: Relevance) -> JsonObject:
        result: dict[str, Any] = {"index": index, "relevance_score": relevance.score}
        if self.return_documents:
            result["document"] = {"text": self.pairs[index].document.text}
        return result
