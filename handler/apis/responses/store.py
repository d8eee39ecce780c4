"""Keep responses for clients that read, continue or delete them later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson

from common.json_object import JsonObject
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
    has_ended: bool = True

    @property
    def size_bytes(self) -> int:
        """The size of both."""
        return len(self.response) + len(self.items)


class ResponseSource(Protocol):
    """Another place that has responses, such as the jobs of background responses."""

    async def find(self, response_id: str) -> StoredResponse | None:
        """Return a response; None if it is not there."""

    async def remove(self, response_id: str) -> bool:
        """Remove a response; False if it is not there."""


class ResponseStore:
    """Keeps responses in memory. If there are too many, the oldest are removed.

    A response that is not in memory is read from `others`. Owned by the event loop.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.others: list[ResponseSource] = []
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._size_bytes = 0

    def add(
        self,
        response: JsonObject,
        items: Sequence[JsonObject],
        previous_id: str | None,
    ) -> None:
        """Store a response that has ended."""
        stored = StoredResponse(orjson.dumps(response), orjson.dumps(items), previous_id)
        self._responses[response["id"]] = stored
        self._size_bytes += stored.size_bytes
        while len(self._responses) > self._max_responses or self._size_bytes > self._max_bytes:
            _, oldest = self._responses.popitem(last=False)
            self._size_bytes -= oldest.size_bytes

    async def get(self, response_id: str) -> StoredResponse:
        """Return a response. Raises NotFound."""
        stored = await self._find(response_id)
        if stored is None:
            raise _not_found(response_id)
        return stored

    async def _find(self, response_id: str) -> StoredResponse | None:
        stored = self._responses.get(response_id)
        for other in self.others:
            stored = stored or await other.find(response_id)
        return stored

    async def find_items(self, response_id: str, is_input: bool) -> Sequence[JsonObject]:
        """Return the items of a response's input, or of its output. Raises NotFound."""
        stored = await self.get(response_id)
        items = orjson.loads(stored.items if is_input else stored.response)
        if not is_input:
            items = items.get("output")
        return items if isinstance(items, list) else ()

    async def remove(self, response_id: str) -> None:
        """Remove a response. Raises NotFound."""
        stored = self._responses.pop(response_id, None)
        if stored is not None:
            self._size_bytes -= stored.size_bytes
            return
        for other in self.others:
            if await other.remove(response_id):
                return
        raise _not_found(response_id)

    async def conversation(self, response_id: str | None) -> list[JsonObject]:
        """Return the input and output items of a response and of all before it, oldest first.

        Raises:
            InvalidRequest: one of them is not stored or has not ended, or there are too many.
        """
        turns: list[StoredResponse] = []
        while response_id is not None:
            stored = await self._find(response_id)
            if stored is None:
                raise InvalidRequest(
                    f"previous_response_id: there is no response {describe_value(response_id)}; "
                    "responses are kept until the server ends, background responses for half an "
                    "hour, and those with store: false not at all",
                    "previous_response_id",
                )
            if not stored.has_ended:
                raise InvalidRequest(
                    f"previous_response_id: the response {describe_value(response_id)} has not "
                    "ended yet",
                    "previous_response_id",
                )
            turns.append(stored)
            if len(turns) > MAX_CHAIN:
                raise InvalidRequest(
                    f"previous_response_id: the conversation has more than {MAX_CHAIN} responses",
                    "previous_response_id",
                )
            response_id = stored.previous_id
        items: list[JsonObject] = []
        for stored in reversed(turns):
            items += orjson.loads(stored.items)
            items += _read_output(stored)
        return items


def _read_output(stored: StoredResponse) -> Sequence[JsonObject]:
    """Return the output items of a response. Raises InvalidRequest."""
    output = orjson.loads(stored.response).get("output")
    # The response of a job is what its worker returned.
    if not isinstance(output, list) or not all(isinstance(item, Mapping) for item in output):
        raise InvalidRequest(
            "previous_response_id: the output of that response is not an array of items, got "
            f"{describe_value(output)}",
            "previous_response_id",
        )
    return output


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"there is no response {describe_value(response_id)}", "response_id")
