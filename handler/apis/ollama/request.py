"""Read bodies of Ollama's `/api/chat` and `/api/generate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import Chat, Message
from engine.request import Prompt
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.parameters import Parameters
from handler.apis.core.parsed_call import ParsedCall, new_call_id
from handler.apis.core.template_variables import set_effort, set_thinking
from handler.apis.core.tools import NO_TOOLS, Tools, build_tools, read_functions
from handler.apis.ollama.conversation import add_images, read_messages
from handler.apis.ollama.keep_alive import read_keep_alive
from handler.apis.ollama.options import read_options
from handler.errors import InvalidRequest
from handler.input.constraints import Constraint, any_object, read_schema
from handler.input.message_content import MessageContent
from handler.input.messages import check_messages
from handler.input.request import read_flag
from handler.input.text import check_text
from handler.input.unknown_keys import KnownKeys
from handler.models.registry import ResolvedModel

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
# The client's names of the fields that the engine names.
_CHAT_FIELDS = {"prompt": "messages", "continue_final_message": "messages"}
_GENERATE_FIELDS = {"messages": "prompt"}


@dataclass(frozen=True, slots=True)
class OllamaRequest:
    """A request to load a model, and to generate a text with it.

    A request that only loads the model has no `call`. `keep_alive_s` is how many seconds the model
    stays loaded afterwards; None for the server's own time. With `truncates` the oldest messages
    are left out if the conversation is too long.
    """

    call: ParsedCall | None
    keep_alive_s: float | None = None
    truncates: bool = True


def read_chat(body: JsonObject, model: ResolvedModel, defaults: CallDefaults) -> OllamaRequest:
    """Read a body of `/api/chat`. Raises InvalidRequest."""
    keep_alive_s = read_keep_alive(body.get("keep_alive"))
    truncates = read_flag(body, "truncate", default=True)
    if body.get("messages") in (None, []):
        return OllamaRequest(None, keep_alive_s, truncates)
    messages, left_out = read_messages(body["messages"])
    raw_tools = body.get("tools")
    tools = NO_TOOLS if raw_tools is None else build_tools(read_functions(raw_tools))
    last = messages[-1]
    is_text = last.role == "assistant" and bool(last.content) and not last.tool_calls
    continues_last = is_text and len(messages) > 1
    variables = _read_think(body.get("think"))
    chat = tools.build_chat(messages, variables, continues_last=continues_last)
    warnings = (*_CHAT_KEYS.warnings(body), *left_out)
    call = _build_call(body, chat, tools, model, defaults, warnings, _CHAT_FIELDS)
    return OllamaRequest(call, keep_alive_s, truncates)


def read_generate(body: JsonObject, model: ResolvedModel, defaults: CallDefaults) -> OllamaRequest:
    """Read a body of `/api/generate`.

    The prompt is a turn of a chat, unless it is `raw` or has a `suffix`. Raises InvalidRequest.
    """
    keep_alive_s = read_keep_alive(body.get("keep_alive"))
    truncates = read_flag(body, "truncate", default=True)
    text, system, suffix = (_read_text(body, name) for name in ("prompt", "system", "suffix"))
    images, variables = body.get("images"), _read_think(body.get("think"))
    is_raw = read_flag(body, "raw", default=False)
    if not text and images in (None, []):
        return OllamaRequest(None, keep_alive_s, truncates)
    prompt: Prompt = text
    if is_raw or suffix:
        if images not in (None, []):
            raise InvalidRequest("images need a chat, and raw and suffix are not one", "images")
        # A completion has no turns to leave out.
        truncates = False
    else:
        content = MessageContent()
        add_images(content, images, "images")
        content.add_text(text, "prompt")
        messages = [Message("user", content.text, images=content.images)]
        if system:
            messages.insert(0, Message("system", system))
        prompt = Chat(check_messages(messages, "images"), variables)
    warnings = _GENERATE_KEYS.warnings(body)
    call = _build_call(
        body, prompt, NO_TOOLS, model, defaults, warnings, _GENERATE_FIELDS, suffix=suffix
    )
    return OllamaRequest(call, keep_alive_s, truncates)


def _build_call(
    body: JsonObject,
    prompt: Prompt,
    tools: Tools,
    model: ResolvedModel,
    defaults: CallDefaults,
    warnings: tuple[str, ...],
    field_names: Mapping[str, str],
    suffix: str = "",
) -> ParsedCall:
    """Return the call for a prompt, with the fields that both routes share."""
    sampling, ignored = read_options(body.get("options"), defaults.max_tokens, model.adapter)
    constraint = _read_format(body.get("format"))
    tools, tool_warnings = tools.combine(constraint)
    constraint = constraint if tools.constraint is None else tools.constraint
    if constraint is not None:
        sampling = constraint.apply(sampling)
    streaming = read_flag(body, "stream", default=False)
    return ParsedCall(
        id=new_call_id("chat-" if isinstance(prompt, Chat) else "text-"),
        model=model.name,
        prompts=(prompt,),
        parameters=Parameters(sampling=sampling, streaming=streaming, suffix=suffix),
        reply_format=(
            tools.build_reply_format(defaults.tool_form) if isinstance(prompt, Chat) else None
        ),
        constraint=constraint,
        options=defaults.options.defaults,
        warnings=(*warnings, *ignored, *tool_warnings, *defaults.options.warnings),
        field_names=field_names,
    )


def _read_think(think: Any) -> JsonObject:
    """Return the variables that turn the model's reasoning on or off, or set its effort."""
    if think is None or think == "":
        return {}
    if isinstance(think, bool):
        return set_thinking(think)
    if think not in _EFFORTS:
        raise InvalidRequest(
            f"think must be true, false or one of {', '.join(_EFFORTS)}, "
            f"got {describe_value(think)}",
            "think",
        )
    return set_effort("xhigh" if think == "max" else think)


def _read_format(form: Any) -> Constraint | None:
    if form is None or form == "":
        return None
    if form == "json":
        return any_object("format")
    if isinstance(form, Mapping):
        return read_schema(form, "format", "format")
    raise InvalidRequest(
        f'format must be "json" or a JSON Schema, got {describe_value(form)}', "format"
    )


def _read_text(body: JsonObject, name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, got {describe_value(value)}", name)
    check_text(value, name)
    return value
