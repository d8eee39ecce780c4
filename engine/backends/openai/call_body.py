"""Build the body of a request to a server from a prompt and sampling parameters."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.openai.server_kind import ServerKind
from engine.errors import UnsupportedParameter
from engine.request import Chat, ChatImage, Message, Prompt, SamplingParams

# The first bytes of the formats that messages may have.
_IMAGE_TYPES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
    b"BM": "image/bmp",
}
# As many as this project's own server takes.
_MAX_STOPS = 16
# OpenAI's name for an answer without reasoning.
_NO_EFFORT = "none"
# Parameters whose default at the server depends on the model, so that 1 is not the same as none.
_ALWAYS_SENT = frozenset({"temperature", "top_p"})


@dataclass(frozen=True, slots=True)
class Call:
    """One request: its path, such as `/v1/chat/completions`, and its body."""

    path: str
    body: dict[str, Any]

    @property
    def is_chat(self) -> bool:
        """Whether the answer is one of a chat."""
        return self.path == CHAT_PATH


CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"


def build_call(model: str, prompt: Prompt, sampling: SamplingParams, kind: ServerKind) -> Call:
    """Return the streamed request for one generation.

    Stop strings are found here, in the text of the answer alone, so they are not sent but to a
    server that finds the same ones. Raises UnsupportedParameter for what the server is not known to
    do, and what cannot be left out.
    """
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True, **kind.stream_options},
        **kind.extras,
        **_sampling_parameters(sampling, kind),
        **_constraint(sampling, kind),
        **(_stops(sampling) if kind.ends_at_stops else {}),
    }
    if isinstance(prompt, Chat):
        body |= _chat_parameters(prompt, kind)
        if sampling.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": sampling.logprobs}
        return Call(CHAT_PATH, body)
    body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    # Without the key, OpenAI and vLLM generate 16 tokens; null is as many as there is room for.
    body.setdefault("max_tokens", None)
    if sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
    return Call(COMPLETION_PATH, body)


def _sampling_parameters(sampling: SamplingParams, kind: ServerKind) -> dict[str, Any]:
    """Return the parameters that the client has sent, or that are not OpenAI's defaults.

    The others are left to the server, whose models may have defaults of their own.
    """
    changed = sampling.non_defaults
    parameters: dict[str, Any] = {}
    for name in _ALWAYS_SENT - sampling.unset:
        if name in kind.parameters:
            parameters[kind.parameters[name]] = getattr(sampling, name)
    for name, sent_name in kind.parameters.items():
        if name in changed:
            parameters[sent_name] = _encode_value(changed[name])
    if sampling.max_tokens is not None:
        parameters["max_tokens"] = sampling.max_tokens
    if sampling.allowed_token_ids and "allowed_token_ids" not in kind.parameters:
        raise UnsupportedParameter(
            "allowed_token_ids: the server of UPSTREAM_URL is not known to have it",
            param="allowed_token_ids",
        )
    return parameters


def _encode_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _stops(sampling: SamplingParams) -> dict[str, Any]:
    """Return the parameters with which a worker-rkllm ends after the stop string of the engine."""
    if not 0 < len(sampling.stop) <= _MAX_STOPS:
        return {}
    return {
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "stop_in_reasoning": sampling.stop_scope is None,
    }


def _constraint(sampling: SamplingParams, kind: ServerKind) -> dict[str, Any]:
    if sampling.grammar is not None and kind.grammar is not None:
        return {kind.grammar: sampling.grammar}
    schema = sampling.json_schema
    if schema is None:
        return {}
    if schema == {"type": "object"}:
        return {"response_format": {"type": "json_object"}}
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }
    }


def _chat_parameters(chat: Chat, kind: ServerKind) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "messages": [_encode_message(message, kind) for message in chat.messages],
        **_template_parameters(chat, kind),
    }
    if chat.continues_last:
        if kind.continuation is None:
            raise UnsupportedParameter(
                "messages: the last one is the assistant's, and the server of UPSTREAM_URL is not "
                "known to continue a message",
                param="messages",
            )
        parameters |= kind.continuation
    return parameters | _tool_parameters(chat)


def _template_parameters(chat: Chat, kind: ServerKind) -> dict[str, Any]:
    variables = dict(chat.template_kwargs)
    if not variables:
        return {}
    if kind.template_variables:
        return {"chat_template_kwargs": variables}
    effort = variables.get("reasoning_effort")
    if effort is None and variables.get("enable_thinking") is False:
        effort = _NO_EFFORT
    return {} if effort is None else {"reasoning_effort": effort}


def _tool_parameters(chat: Chat) -> dict[str, Any]:
    if not chat.tools:
        return {}
    parameters: dict[str, Any] = {"tools": list(chat.tools)}
    if not chat.parallel_calls:
        parameters["parallel_tool_calls"] = False
    if len(chat.required_calls) == 1:
        function = {"name": chat.required_calls[0]}
        return parameters | {"tool_choice": {"type": "function", "function": function}}
    if chat.required_calls:
        parameters["tool_choice"] = "required"
        parameters["tools"] = [
            tool for tool in chat.tools if tool["function"]["name"] in chat.required_calls
        ]
    return parameters


def _encode_message(message: Message, kind: ServerKind) -> dict[str, Any]:
    encoded = message.to_template()
    reasoning = encoded.pop("reasoning_content", None)
    if reasoning and kind.reads_reasoning:
        encoded["reasoning_content"] = reasoning
    if message.images:
        encoded["content"] = [*_content_parts(message)]
    return encoded


def _content_parts(message: Message) -> Iterator[dict[str, Any]]:
    """Yield the texts and images of a message in their order."""
    start = 0
    for image in message.images:
        if text := message.content[start : image.position]:
            yield {"type": "text", "text": text}
        yield {"type": "image_url", "image_url": {"url": _data_url(image)}}
        start = image.position
    if text := message.content[start:]:
        yield {"type": "text", "text": text}


def _data_url(image: ChatImage) -> str:
    first_bytes = base64.b64decode(image.data[:16] + "=" * (-len(image.data[:16]) % 4))
    media_type = next(
        (name for mark, name in _IMAGE_TYPES.items() if first_bytes.startswith(mark)), "image/png"
    )
    return f"data:{media_type};base64,{image.data}"
