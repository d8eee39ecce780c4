"""Read the variables of chat templates, by which clients turn a model's reasoning on or off."""

from __future__ import annotations

from typing import Any

import orjson

from common.json_object import JsonObject
from common.json_size import exceeds
from common.value_description import describe_value
from handler.errors import InvalidRequest
from handler.input.request import read_flag

MAX_TEMPLATE_CHARS = 100_000
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


def read_template_variables(
    body: JsonObject, effort: Any, effort_param: str = "reasoning_effort"
) -> JsonObject:
    """Return the variables of a body, which `effort` and `enable_thinking` set too.

    `effort` is the value of the field `effort_param`.

    Raises:
        InvalidRequest: naming the field that is wrong.
    """
    template = body.get("chat_template_kwargs")
    if template is None:
        template = {}
    if isinstance(template, dict) and exceeds(template, MAX_TEMPLATE_CHARS):
        raise InvalidRequest(
            f"chat_template_kwargs must have at most {MAX_TEMPLATE_CHARS} characters, and they "
            "have more",
            "chat_template_kwargs",
        )
    if not isinstance(template, dict) or (template and not _is_plain(template)):
        raise InvalidRequest(
            "chat_template_kwargs must be an object of Unicode text, numbers of up to 64 bits and "
            f"not too many levels, got {describe_value(template)}",
            "chat_template_kwargs",
        )
    # Each of these is more exact than the one before it.
    variables: dict[str, bool | str] = {}
    if effort is not None:
        if effort not in REASONING_EFFORTS:
            raise InvalidRequest(
                f"{effort_param} must be one of {', '.join(REASONING_EFFORTS)}, "
                f"got {describe_value(effort)}",
                effort_param,
            )
        variables |= set_effort(effort)
    if body.get("enable_thinking") is not None:
        variables["enable_thinking"] = read_flag(body, "enable_thinking", default=False)
    return variables | template


def set_thinking(is_on: bool) -> dict[str, bool | str]:
    """Return the variables that turn the reasoning on or off.

    Qwen and most others have `enable_thinking`, DeepSeek and Granite `thinking`.
    """
    return {"enable_thinking": is_on, "thinking": is_on}


def set_effort(effort: str) -> dict[str, bool | str]:
    """Return the variables for an effort of the reasoning; gpt-oss reads the effort itself."""
    if effort == "none":
        return set_thinking(False)
    return set_thinking(True) | {"reasoning_effort": effort}


def _is_plain(variables: JsonObject) -> bool:
    """Return whether orjson can encode the variables for the engine process.

    The standard library's `json`, which may have parsed the body, accepts more.
    """
    try:
        orjson.dumps(variables)
    except TypeError:
        return False
    return True
