"""Reads the parameters of the batch routes: a new batch, an expiry, and a page of a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from common.digits import parse_digits
from common.value_description import describe_value
from emulator.batches.models import COMPLETION_WINDOW
from emulator.batches.repository import is_valid_id
from handler.apis.calls import CALL_ROUTES
from handler.errors import InvalidRequest
from handler.input.sampling import validate_model

EXPIRY_ANCHOR = "created_at"
MIN_EXPIRY_S = 3_600
MAX_EXPIRY_S = 2_592_000
_ORDERS = ("asc", "desc")

_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class NewBatchInput(BaseModel):
    """The fields of a new batch.

    Strict; each description completes the sentence "… must be …" of the error naming the field.
    """

    model_config = ConfigDict(strict=True)

    input_file_id: str = Field(description="the id of an uploaded file")
    completion_window: Literal["24h"] = Field(description=COMPLETION_WINDOW)
    metadata: dict[_Key, _Value] | None = Field(
        None,
        max_length=16,
        description="an object of up to 16 strings of up to 512 characters, "
        "their names up to 64 characters long",
    )


def read_new_batch(body: Mapping[str, Any]) -> tuple[NewBatchInput, str, int | None]:
    """Return the fields of a new batch, its endpoint, and the expiry of its output in seconds.

    Raises:
        InvalidRequest: a field is missing or wrong; the sentence names it.
    """
    fields = validate_model(NewBatchInput, body)
    endpoint = body.get("endpoint")
    if endpoint not in CALL_ROUTES:
        raise InvalidRequest(
            f"endpoint must be one of {', '.join(CALL_ROUTES)}, got {describe_value(endpoint)}",
            "endpoint",
        )
    expires_s = read_expiry(body.get("output_expires_after"), "output_expires_after")
    return fields, endpoint, expires_s


def read_expiry(expiry: Any, name: str) -> int | None:
    """Return after how many seconds a file expires, None if the request does not set it.

    Raises:
        InvalidRequest: the value is not `{"anchor": "created_at", "seconds": …}`.
    """
    if expiry is None:
        return None
    if not isinstance(expiry, Mapping):
        raise InvalidRequest(f"{name} must be an object, got {describe_value(expiry)}", name)
    if expiry.get("anchor") != EXPIRY_ANCHOR:
        raise InvalidRequest(
            f"{name}.anchor must be {EXPIRY_ANCHOR}, got {describe_value(expiry.get('anchor'))}",
            f"{name}.anchor",
        )
    seconds = expiry.get("seconds")
    if type(seconds) is not int or not MIN_EXPIRY_S <= seconds <= MAX_EXPIRY_S:
        raise InvalidRequest(
            f"{name}.seconds must be a whole number from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}, "
            f"got {describe_value(seconds)}",
            f"{name}.seconds",
        )
    return seconds


class Listable(Protocol):
    """An object that a list route returns."""

    @property
    def id(self) -> str:
        """The id; ids sort in the order in which the objects were created."""

    def to_openai(self) -> dict[str, Any]:
        """Return the OpenAI object."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The query of a list route: at most `limit` objects that follow the id `after`."""

    limit: int
    after: str | None
    ascending: bool

    @classmethod
    def read(cls, request: Request, default: int, maximum: int) -> PageQuery:
        """Read the query of a request; `default` and `maximum` apply to `limit`.

        Raises InvalidRequest.
        """
        query = request.query_params
        limit, after, order = query.get("limit"), query.get("after"), query.get("order", "desc")
        number = default
        if limit is not None:
            number = parse_digits(limit, max_digits=9) or 0
        if not 1 <= number <= maximum:
            raise InvalidRequest(
                f"limit must be a whole number from 1 to {maximum}, got {describe_value(limit)}",
                "limit",
            )
        if after is not None and not is_valid_id(after):
            raise InvalidRequest(f"after must be an id, got {describe_value(after)}", "after")
        if order not in _ORDERS:
            raise InvalidRequest(
                f"order must be one of {', '.join(_ORDERS)}, got {describe_value(order)}", "order"
            )
        return cls(number, after, order == "asc")

    def build_page(self, items: Sequence[Listable]) -> dict[str, Any]:
        """Return the page of a list whose items are sorted by age, the oldest first."""
        rest = list(items) if self.ascending else list(reversed(items))
        if (after := self.after) is not None:
            rest = [
                item for item in rest if (item.id > after if self.ascending else item.id < after)
            ]
        page = rest[: self.limit]
        return {
            "object": "list",
            "data": [item.to_openai() for item in page],
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
            "has_more": len(rest) > self.limit,
        }
