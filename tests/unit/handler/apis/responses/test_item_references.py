"""References to items of stored responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from engine import Chat
from handler.apis.calls import ApiCalls, build_calls
from handler.apis.core.api import CallContext
from handler.apis.openai.service import OpenAIService
from handler.apis.responses.call import ResponseCall
from handler.errors import NotFound
from handler.models.registry import ModelRegistry
from tests.unit.handler.conftest import PipelineFactory

ROUTE = "/v1/responses"
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}
Context = CallContext


@pytest.fixture
def calls(pipeline_of: PipelineFactory) -> ApiCalls:
    models = ModelRegistry(pipeline_of({"pieces": ["<think>sum</think>one", CALL]}))
    return build_calls(OpenAIService(models), models)


async def answer(calls: ApiCalls, **body: Any) -> Mapping[str, Any]:
    return await calls.answer(ROUTE, {"tools": [TOOL], **body}, Context())


async def read_roles(calls: ApiCalls, *items: Any) -> list[tuple[str, str, str, int]]:
    """Return the role, content, reasoning and number of calls of each message of a body."""
    call = await calls.responses.parse(ROUTE, {"input": [*items], "tools": [TOOL]}, Context())
    assert isinstance(call, ResponseCall)
    (chat,) = call.request.call.prompts
    assert isinstance(chat, Chat)
    return [
        (each.role, each.content, each.reasoning, len(each.tool_calls)) for each in chat.messages
    ]


@pytest.mark.parametrize("has_type", [True, False])
async def test_items_of_an_answer_are_resolved(calls: ApiCalls, has_type: bool) -> None:
    first = await answer(calls, input="hi")
    kinds = [item["type"] for item in first["output"]]
    assert kinds == ["reasoning", "message", "function_call"]
    mark = {"type": "item_reference"} if has_type else {}
    references = [{**mark, "id": item["id"]} for item in first["output"]]
    output = {
        "type": "function_call_output",
        "call_id": first["output"][2]["call_id"],
        "output": "2",
    }
    assert await read_roles(calls, {"role": "user", "content": "hi"}, *references, output) == [
        ("user", "hi", "", 0),
        ("assistant", "one", "sum", 1),
        ("tool", "2", "", 0),
    ]


async def test_items_of_an_input_are_resolved_by_their_listed_ids(calls: ApiCalls) -> None:
    first = await answer(calls, input="hi")
    listed = await calls.responses.list_input_items(first["id"])
    [item] = listed["data"]
    roles = await read_roles(calls, {"type": "item_reference", "id": item["id"]})
    assert roles == [("user", "hi", "", 0)]


async def test_response_keeps_what_it_referred_to(calls: ApiCalls) -> None:
    first = await answer(calls, input="hi")
    reference = {"type": "item_reference", "id": first["output"][1]["id"]}
    second = await answer(calls, input=[reference, {"role": "user", "content": "go on"}])
    await calls.responses.delete(first["id"])
    listed = await calls.responses.list_input_items(second["id"], order="asc")
    assert listed["data"][0]["content"][0]["text"] == "one"


@pytest.mark.parametrize("item_id", ["msg_1", "msg_none_0", 3, None, "", "msg_" + "9" * 300 + "_1"])
async def test_unknown_item_is_an_error(calls: ApiCalls, item_id: Any) -> None:
    reference = {"type": "item_reference", "id": item_id}
    with pytest.raises(NotFound, match=r"^Item with id '.*' not found\.$") as caught:
        await read_roles(calls, reference)
    assert caught.value.param == "input"
    # `check` does not read stored items; the call does when it runs.
    calls.check(ROUTE, {"input": [reference]})


async def test_items_of_removed_and_unstored_responses_are_unknown(calls: ApiCalls) -> None:
    removed = await answer(calls, input="hi")
    await calls.responses.delete(removed["id"])
    unstored = await answer(calls, input="hi", store=False)
    for response in (removed, unstored):
        with pytest.raises(NotFound):
            await read_roles(calls, {"id": response["output"][0]["id"]})
