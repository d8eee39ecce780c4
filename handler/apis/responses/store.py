"""Keep responses for clients that read, continue or delete them later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from common.value_description import describe_value
from handler.errors import InvalidRequest, NotFound

MAX_RESPONSES = 10_000
MAX_BYTES = 100_000_000
# Responses that continue one another; a longer chain fits into no model's context.
MAX_CHAIN = 1_000


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and the input items of its own request, encoded as JSON."""

    response: bytes
    items: bytes
    previous_id: str | None

    @property
    def size_bytes(self) -> int:
        """The size of both."""
        return len(self.response) + len(self.items)


class ResponseStore:
    """Responses in memory, the least recently stored of which are removed for new ones.

    Owned by the event loop.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._size_bytes = 0

    def add(
        self,
        response: Mapping[str, Any],
        items: Sequence[Mapping[str, Any]],
        previous_id: str | None,
    ) -> None:
        """Store a response that has ended."""
        stored = StoredResponse(orjson.dumps(response), orjson.dumps(items), previous_id)
        self._responses[response["id"]] = stored
        self._size_bytes += stored.size_bytes
        while len(self._responses) > self._max_responses or self._size_bytes > self._max_bytes:
            _, oldest = self._responses.popitem(last=False)
            self._size_bytes -= oldest.size_bytes

    def get(self, response_id: str) -> StoredResponse:
        """Return a response. Raises NotFound."""
        stored = self._responses.get(response_id)
        if stored is None:
            raise NotFound(f"there is no response {describe_value(response_id)}", "response_id")
        return stored

    def remove(self, response_id: str) -> None:
        """Remove a response. Raises NotFound."""
        self._size_bytes -= self.get(response_id).size_bytes
        del self._responses[response_id]

    def conversation(self, response_id: str | None) -> list[Mapping[str, Any]]:
        """Return the input and output items of a response and of all before it, oldest first.

        Raises:
            InvalidRequest: one of them is not stored, or there are too many.
        """
        turns: list[StoredResponse] = []
        while response_id is not None:
            stored = self._responses.get(response_id)
            if stored is None:
                raise InvalidRequest(
                    f"previous_response_id: there is no response {describe_value(response_id)}; "
                    "responses are kept until the server ends, and those with store: false are "
                    "not kept",
                    "previous_response_id",
                )
            turns.append(stored)
            if len(turns) > MAX_CHAIN:
                raise InvalidRequest(
                    f"previous_response_id: the conversation has more than {MAX_CHAIN} responses",
                    "previous_response_id",
                )
            response_id = stored.previous_id
        items: list[Mapping[str, Any]] = []
        for stored in reversed(turns):
            items += orjson.loads(stored.items)
            items += orjson.loads(stored.response)["output"]
        return items
