"""Encode the list of models as Anthropic's API has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from common.digits import parse_digits
from common.json_object import JsonObject
from common.value_description import describe_value
from handler.errors import InvalidRequest

_MAX_PAGE, _DEFAULT_PAGE = 1000, 20


def encode_model(model: JsonObject) -> JsonObject:
    """Return a model of `/v1/models` in Anthropic's form."""
    created = datetime.fromtimestamp(model["created"], UTC)
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def encode_model_page(models: Sequence[JsonObject], query: Mapping[str, Any]) -> JsonObject:
    """Return the page of a list of models that a query asks for.

    Raises:
        InvalidRequest: `limit` is no number from 1 to 1000.
    """
    raw_limit = query.get("limit", str(_DEFAULT_PAGE))
    limit = parse_digits(raw_limit, max_digits=4)
    if limit is None or not 1 <= limit <= _MAX_PAGE:
        raise InvalidRequest(
            f"limit must be from 1 to {_MAX_PAGE}, got {describe_value(raw_limit)}", "limit"
        )
    ids = [model["id"] for model in models]
    start, end = 0, len(models)
    if (after := query.get("after_id")) in ids:
        start = ids.index(after) + 1
    if (before := query.get("before_id")) in ids:
        end = ids.index(before)
        start = max(start, end - limit)
    page = [encode_model(model) for model in models[start:end][:limit]]
    return {
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < end if before not in ids else start > 0,
    }
