"""Long lists, a page at a time, as OpenAI's clients ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request

from emulator.batches.repository import is_id
from handler.errors import InvalidRequest
from handler.sampling import describe_value

_ORDERS = ("asc", "desc")


class Listed(Protocol):
    """What is in a list."""

    @property
    def id(self) -> str:
        """What it is known by; in the order in which things were made."""

    def describe_value(self) -> dict[str, Any]:
        """Return it as clients are told of it."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which part of a list is asked for: so many, behind one, the newest first or last."""

    limit: int
    after: str | None
    ascending: bool

    @classmethod
    def read(cls, request: Request, default: int, most: int) -> PageQuery:
        """Return what a call's query asks for. Raises InvalidRequest."""
        query = request.query_params
        limit, after, order = query.get("limit"), query.get("after"), query.get("order", "desc")
        number = default
        if limit is not None:
            number = int(limit) if limit.isascii() and limit.isdigit() and len(limit) < 10 else 0
        if not 1 <= number <= most:
            raise InvalidRequest(
                f"limit must be a whole number from 1 to {most}, got {describe_value(limit)}",
                "limit",
            )
        if after is not None and not is_id(after):
            raise InvalidRequest(f"after must be an id, got {describe_value(after)}", "after")
        if order not in _ORDERS:
            raise InvalidRequest(
                f"order must be one of {', '.join(_ORDERS)}, got {describe_value(order)}", "order"
            )
        return cls(number, after, order == "asc")

    def page(self, items: Sequence[Listed]) -> dict[str, Any]:
        """Return the page of a list that has the oldest first."""
        found = list(items) if self.ascending else list(reversed(items))
        if self.after is not None:
            after = self.after
            found = [each for each in found if (each.id > after) is self.ascending]
            found = [each for each in found if each.id != after]
        shown_ = found[: self.limit]
        return {
            "object": "list",
            "data": [each.shown() for each in shown_],
            "first_id": shown_[0].id if shown_ else None,
            "last_id": shown_[-1].id if shown_ else None,
            "has_more": len(found) > self.limit,
        }
