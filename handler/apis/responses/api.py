"""OpenAI's Responses API for HTTP routes, the queue, jobs and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from common.json_object import JsonObject
from handler.apis.core.api import Api, ApiCall, CallContext
from handler.apis.core.call_runner import CallRunner
from handler.apis.responses.call import InputTokensCall, ResponseCall
from handler.apis.responses.input_items import read_items
from handler.apis.responses.item_references import (
    build_input_item_id,
    is_reference,
    resolve_references,
)
from handler.apis.responses.request import (
    ResponseRequest,
    read_created_at,
    read_previous_id,
    read_request,
)
from handler.apis.responses.response import ID_PREFIX, new_response_id
from handler.apis.responses.store import ResponseSource, ResponseStore
from handler.apis.responses.wire_format import FORMAT
from handler.errors import InvalidRequest
from handler.generation.offload import check_body

RESPONSES = "/v1/responses"
INPUT_TOKENS = f"{RESPONSES}/input_tokens"
_NO_CONTEXT = CallContext()
_UNREAD_ITEM = {"role": "user", "content": ""}


class ResponsesApi(Api):
    """Answers responses; keeps only the stored responses.

    Owned by the event loop.
    """

    format = FORMAT
    routes = (RESPONSES, INPUT_TOKENS)

    def __init__(self, runner: CallRunner, store: ResponseStore) -> None:
        self._runner = runner
        self._store = store

    def check(self, route: str, body: JsonObject) -> None:
        """Check a body, without what it continues. Raises InvalidRequest or ModelNotFound."""
        read_previous_id(body)
        earlier_items: Sequence[JsonObject] = ()
        if (raw := body.get("previous_items")) is not None:
            earlier_items = read_items(raw, "previous_items")
        if isinstance(items := body.get("input"), list):
            # The check does not read the store, so a text stands for each referenced item.
            items = [_UNREAD_ITEM if is_reference(item) else item for item in items]
            body = {**body, "input": items}
        self._read(body, earlier_items, "")

    async def parse(self, route: str, body: JsonObject, context: CallContext) -> ApiCall:
        """Parse a body; only that of a job may ask for a response in the background."""
        call = await self.parse_response(body, context)
        if route == INPUT_TOKENS:
            return InputTokensCall(self._runner, call.request.call, context)
        if call.request.background and context.job_id is None:
            raise InvalidRequest(
                "background: true is for POST /v1/responses, and not for lines of a batch",
                "background",
            )
        return call

    async def parse_response(
        self, body: JsonObject, context: CallContext = _NO_CONTEXT
    ) -> ResponseCall:
        """Read a body; the response of a job has the job's id.

        Raises:
            InvalidRequest: naming the parameter that is wrong.
            NotFound: no model has that name, or there is no item that the body refers to.
        """
        earlier_items = await self.read_conversation(body)
        items = await resolve_references(body.get("input"), self._store.find_items)
        if items is not body.get("input"):
            body = {**body, "input": items}
        response_id = new_response_id() if context.job_id is None else ID_PREFIX + context.job_id
        request = await check_body(body, partial(self._read, body, earlier_items, response_id))
        request = replace(request, call=request.call.in_context(context))
        created = read_created_at(body)
        return ResponseCall(request, created, self._runner, self._store, context)

    def _read(
        self, body: JsonObject, earlier_items: Sequence[JsonObject], response_id: str
    ) -> ResponseRequest:
        runner = self._runner
        model = runner.models.resolve(body.get("model"))
        return read_request(body, earlier_items, response_id, model, runner.defaults)

    async def read_conversation(self, body: JsonObject) -> Sequence[JsonObject]:
        """Return the items of the responses that a body continues. Raises InvalidRequest."""
        previous_id = read_previous_id(body)
        if (items := body.get("previous_items")) is not None:
            return read_items(items, "previous_items")
        return await self._store.conversation(previous_id)

    def add_source(self, source: ResponseSource) -> None:
        """Add a place that has responses besides those in memory."""
        self._store.others.append(source)

    async def get(self, response_id: str) -> bytes:
        """Return a stored response as JSON. Raises NotFound."""
        return (await self._store.get(response_id)).response

    async def delete(self, response_id: str) -> dict[str, Any]:
        """Delete a stored response. Raises NotFound."""
        await self._store.remove(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def list_input_items(
        self, response_id: str, *, limit: int = 20, order: str = "desc", after: str | None = None
    ) -> dict[str, Any]:
        """Return a page of the input items of a response. Raises NotFound."""
        stored = await self._store.get(response_id)
        items = [
            {"id": build_input_item_id(response_id, number), **item}
            for number, item in enumerate(orjson.loads(stored.items))
        ]
        if order == "desc":
            items.reverse()
        if after is not None:
            ids = [item["id"] for item in items]
            items = items[ids.index(after) + 1 :] if after in ids else []
        page = items[:limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > len(page),
        }
