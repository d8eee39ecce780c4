"""The `/v1/chat/completions` endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from common.json_size import exceeds
from common.value_description import describe_value
from engine import Chat, Message
from handler.apis.openai import logprobs
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.apis.openai.message import encode_message
from handler.apis.openai.parameters import ChatInput
from handler.apis.openai.response_mode import ResponseMode
from handler.apis.openai.tools import read_tools
from handler.errors import InvalidRequest
from handler.input.constraints import Constraint, read_constraint
from handler.input.messages import read_messages
from handler.input.request import read_flag

MAX_TEMPLATE_CHARS = 100_000
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def _read_chat(body: Mapping[str, Any]) -> tuple[Chat]:
    template = body.get("chat_template_kwargs")
    if template is None:
        template = {}
    if isinstance(template, dict) and exceeds(template, MAX_TEMPLATE_CHARS):
        raise InvalidRequest(
            f"chat_template_kwargs must have at most {MAX_TEMPLATE_CHARS} characters, and they "
            "have more",
            "chat_template_kwargs",
        )
    if not isinstance(template, dict) or not _is_plain(template):
        raise InvalidRequest(
            "chat_template_kwargs must be an object of Unicode text, numbers of up to 64 bits and "
            f"not too many levels, got {describe_value(template)}",
            "chat_template_kwargs",
        )
    # Each of these is more exact than the one before it.
    variables: dict[str, Any] = {}
    if (effort := body.get("reasoning_effort")) is not None:
        variables |= _read_effort(effort)
    if body.get("enable_thinking") is not None:
        variables["enable_thinking"] = read_flag(body, "enable_thinking", default=False)
    template = variables | template
    messages = read_messages(body.get("messages"))
    continues_last = read_flag(body, "continue_final_message", default=False)
    if continues_last:
        _check_continued(messages)
    return (Chat(messages, template, read_tools(body).definitions, continues_last),)


def _check_continued(messages: Sequence[Message]) -> None:
    """Refuse a chat whose last message cannot be continued. Raises InvalidRequest."""
    last = messages[-1]
    if len(messages) < 2 or last.role != "assistant" or not last.content or last.tool_calls:
        raise InvalidRequest(
            "continue_final_message needs an assistant's message with text and no calls at the end "
            "of messages, after at least one other message",
            "continue_final_message",
        )


def _read_effort(effort: Any) -> dict[str, Any]:
    """Return the variables that templates read an effort from. Raises InvalidRequest.

    Qwen and most others have `enable_thinking`, DeepSeek and Granite `thinking`, gpt-oss the effort
    itself.
    """
    if effort not in REASONING_EFFORTS:
        raise InvalidRequest(
            f"reasoning_effort must be one of {', '.join(REASONING_EFFORTS)}, "
            f"got {describe_value(effort)}",
            "reasoning_effort",
        )
    if effort == "none":
        return {"enable_thinking": False, "thinking": False}
    return {"enable_thinking": True, "thinking": True, "reasoning_effort": effort}


def _read_response_mode(body: Mapping[str, Any]) -> ResponseMode:
    tools = read_tools(body)
    constraint = read_constraint(body)
    if tools.schema is not None:
        constraint = Constraint(param="tools", json_schema=tools.schema)
    return ResponseMode(reply_format=tools.reply_format, constraint=constraint)


def _is_plain(template: dict[str, Any]) -> bool:
    """Return whether orjson can encode the variables for the engine process.

    The standard library's `json`, which may have parsed the body, accepts more.
    """
    try:
        orjson.dumps(template)
    except TypeError:
        return False
    return True


CHAT = EndpointSpec(
    id_prefix="chatcmpl",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    input_model=ChatInput,
    read_prompts=_read_chat,
    encode_answer=lambda answer, echo: {"message": encode_message(answer, echo)},
    encode_chunk=lambda text: b'"delta":{"content":' + text + b"}",
    encode_chunk_with_role=lambda text: b'"delta":{"role":"assistant","content":' + text + b"}",
    read_response_mode=_read_response_mode,
    encode_logprobs=logprobs.encode_chat_logprobs,
    opening_choice={"delta": {"role": "assistant", "content": ""}},
    last_choice={"delta": {}},
)
