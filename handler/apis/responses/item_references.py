"""Replace references to items of stored responses by the items."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from common.json_object import JsonObject
from handler.apis.responses.response import ID_PREFIX
from handler.errors import NotFound

# The id of an item names its response, so that it is found without an index of all items.
_ITEM_ID = re.compile(r"(?P<kind>[a-z]+)_(?P<response>.+)_(?P<number>\d{1,5})")
_INPUT_KIND = "item"

# Returns the items of a response's input, or of its output, by the response's id.
FindItems = Callable[[str, bool], Awaitable[Sequence[JsonObject]]]


def build_item_id(kind: str, response_id: str, number: int) -> str:
    """Return the id of an item, which is the same each time the response is generated."""
    return f"{kind}_{response_id.removeprefix(ID_PREFIX)}_{number}"


def build_input_item_id(response_id: str, number: int) -> str:
    """Return the id of an item of a response's input."""
    return build_item_id(_INPUT_KIND, response_id, number)


def is_reference(item: Any) -> bool:
    """Return whether an item of a body only refers to another one."""
    if not isinstance(item, Mapping):
        return False
    return item.get("type") == "item_reference" or item.keys() == {"id"}


async def resolve_references(items: Any, find_items: FindItems) -> Any:
    """Return the `input` of a body with the referenced items in place of references.

    The AI SDK refers to the turns of the assistant. Raises NotFound.
    """
    if not isinstance(items, list) or not any(map(is_reference, items)):
        return items
    items_by_place: dict[tuple[str, bool], Sequence[JsonObject]] = {}
    resolved = []
    for item in items:
        if not is_reference(item):
            resolved.append(item)
            continue
        item_id = item.get("id")
        match = _ITEM_ID.fullmatch(item_id) if isinstance(item_id, str) else None
        if match is None:
            raise _not_found(item_id)
        place = ID_PREFIX + match["response"], match["kind"] == _INPUT_KIND
        if place not in items_by_place:
            try:
                items_by_place[place] = await find_items(*place)
            except NotFound:
                raise _not_found(item_id) from None
        number = int(match["number"])
        if number >= len(items_by_place[place]):
            raise _not_found(item_id)
        resolved.append(items_by_place[place][number])
    return resolved


def _not_found(item_id: Any) -> NotFound:
    # OpenAI's sentence.
    return NotFound(f"Item with id '{str(item_id)[:100]}' not found.", "input")
