"""Translate bodies of Ollama's API into bodies of OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.value_description import describe_value
from handler.apis.core.field_names import FieldNames
from handler.apis.ollama.conversation import continues_last, image_parts, translate_messages
from handler.apis.ollama.keep_alive import read_keep_alive
from handler.apis.ollama.options import PARAMETERS, translate_options
from handler.errors import InvalidRequest
from handler.input.request import read_flag
from handler.input.unknown_keys import KnownKeys

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_EFFORTS = ("low", "medium", "high", "max")
_SHARED_KEYS = ("format", "keep_alive", "model", "options", "stream", "think", "truncate")
_UNSUPPORTED = "is not supported and was ignored"
_CHAT_KEYS = KnownKeys(
    "",
    (*_SHARED_KEYS, "messages", "tools"),
    notes=dict.fromkeys(("logprobs", "shift", "top_logprobs"), _UNSUPPORTED),
)
_GENERATE_KEYS = KnownKeys(
    "",
    (*_SHARED_KEYS, "images", "prompt", "raw", "suffix", "system"),
    notes=dict.fromkeys(("context", "logprobs", "shift", "template", "top_logprobs"), _UNSUPPORTED),
)
# The client's names of the parameters in errors.
_NAMES: Mapping[str, str] = {
    **{ours: f"options.{name}" for name, ours in PARAMETERS.items()},
    "continue_final_message": "messages",
    "enable_thinking": "think",
    "reasoning_effort": "think",
    "response_format": "format",
    "response_format.json_schema": "format",
    "response_format.json_schema.schema": "format",
    "validation.json_schema": "format",
}
_FIELD_NAMES = FieldNames(_NAMES)


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A request of Ollama's as the `route` and the `body` of a call of OpenAI's API.

    `body` is None if the request only loads the model. `keep_alive_s` is how many seconds the model
    stays loaded afterwards; None for the server's own time. With `truncates` the oldest messages
    are left out if the conversation is too long. `field_names` finds the client's field in errors
    about the body.
    """

    route: str
    body: Mapping[str, Any] | None
    keep_alive_s: float | None = None
    truncates: bool = True
    warnings: tuple[str, ...] = ()
    field_names: FieldNames = _FIELD_NAMES


def translate_chat(body: Mapping[str, Any]) -> TranslatedRequest:
    """Translate a body of `/api/chat`; `model` is left to the caller. Raises InvalidRequest."""
    shared, warnings = _translate_shared(body)
    messages = translate_messages(body.get("messages"))
    if (tools := body.get("tools")) not in (None, []):
        shared["tools"] = tools
    if continues_last(messages):
        shared["continue_final_message"] = True
    return TranslatedRequest(
        CHAT,
        None if messages in (None, []) else {**shared, "messages": messages},
        read_keep_alive(body.get("keep_alive")),
        read_flag(body, "truncate", default=True),
        (*_CHAT_KEYS.warnings(body), *warnings),
    )


def translate_generate(body: Mapping[str, Any]) -> TranslatedRequest:
    """Translate a body of `/api/generate`; `model` is left to the caller.

    The prompt is a turn of a chat, unless it is `raw` or has a `suffix`. Raises InvalidRequest.
    """
    shared, warnings = _translate_shared(body)
    prompt, system = _read_text(body, "prompt"), _read_text(body, "system")
    suffix, images = _read_text(body, "suffix"), body.get("images")
    keep_alive_s = read_keep_alive(body.get("keep_alive"))
    truncates = read_flag(body, "truncate", default=True)
    raw = read_flag(body, "raw", default=False)
    warnings = (*_GENERATE_KEYS.warnings(body), *warnings)
    if not prompt and images in (None, []):
        return TranslatedRequest(CHAT, None, keep_alive_s, truncates, warnings)
    if raw or suffix:
        if images not in (None, []):
            raise InvalidRequest("images need a chat, and raw and suffix are not one", "images")
        for name in ("enable_thinking", "reasoning_effort", "chat_template_kwargs"):
            shared.pop(name, None)
        completion = {**shared, "prompt": prompt, **({"suffix": suffix} if suffix else {})}
        return TranslatedRequest(COMPLETION, completion, keep_alive_s, truncates, warnings)
    content: Any = prompt
    if images not in (None, []):
        content = [*image_parts(images, "images"), {"type": "text", "text": prompt}]
    messages = [{"role": "user", "content": content}]
    paths = ["prompt"]
    if system:
        messages.insert(0, {"role": "system", "content": system})
        paths.insert(0, "system")
    chat = {**shared, "messages": messages}
    names = FieldNames({**_NAMES, "messages": "prompt"}, paths)
    return TranslatedRequest(CHAT, chat, keep_alive_s, truncates, warnings, names)


def _translate_shared(body: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that chats and completions share, and warnings."""
    parameters, warnings = translate_options(body.get("options"))
    fields = {**parameters, "stream": read_flag(body, "stream", default=False)}
    return fields | _translate_think(body.get("think")) | _translate_format(body), warnings


def _translate_think(think: Any) -> dict[str, Any]:
    """Return the fields that turn the model's reasoning on or off, or set its effort."""
    if think is None or think == "":
        return {}
    if isinstance(think, bool):
        # Templates of DeepSeek and Granite read `thinking`, most others `enable_thinking`.
        return {"enable_thinking": think, "chat_template_kwargs": {"thinking": think}}
    if think not in _EFFORTS:
        raise InvalidRequest(
            f"think must be true, false or one of {', '.join(_EFFORTS)}, "
            f"got {describe_value(think)}",
            "think",
        )
    return {"reasoning_effort": "xhigh" if think == "max" else think}


def _translate_format(body: Mapping[str, Any]) -> dict[str, Any]:
    form = body.get("format")
    if form is None or form == "":
        return {}
    if form == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(form, Mapping):
        schema = {"name": "answer", "schema": form}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    raise InvalidRequest(
        f'format must be "json" or a JSON Schema, got {describe_value(form)}', "format"
    )


def _read_text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, got {describe_value(value)}", name)
    return value
