"""Decides whether a text prompt becomes a user turn of the model's chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from textwrap import shorten

from engine.capabilities import Capabilities
from engine.errors import EngineError, RequestRejected
from engine.request import Chat, GenerationRequest, Message

# Turn markers of templates that use ordinary text for them, or whose text is unknown because it is
# inside the RKLLM runtime.
KNOWN_MARKERS = (
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
    *("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<|User|>", "<|Assistant|>"),
    *("[INST]", "[/INST]", "<|start|>", "<|message|>", "### Instruction:", "### Response:"),
)
# The markers that are special tokens in some vocabulary.
KNOWN_TOKENS = tuple(marker for marker in KNOWN_MARKERS if marker[0] in "<[")
# Some templates begin or end turns with these, but in a user's text they may be HTML.
_HTML_TAGS = {"<s>", "</s>"}
_MAX_REASON_CHARS = 300
_SYSTEM_ROLES = frozenset({"system", "developer"})


def template_markers(rendered: str, special_tokens: Iterable[str]) -> tuple[str, ...]:
    """Return the texts that distinguish a prompt rendered by a template from plain text.

    `rendered` is a short chat rendered by the template, `special_tokens` are the model's. A prompt
    that contains one of the markers was rendered by its author.
    """
    candidates = {*special_tokens, *KNOWN_MARKERS} - _HTML_TAGS
    return tuple(sorted(each for each in candidates if each.strip() and each in rendered))


def template_error(reason: str) -> RequestRejected:
    """Return the error for messages that a chat template refuses, in one sentence."""
    reason = shorten(reason, _MAX_REASON_CHARS)
    return RequestRejected(
        f"messages: the model's chat template cannot take them: {reason}", param="messages"
    )


def takes_late_system(render: Callable[[Chat], str]) -> bool:
    """Return whether a chat template takes a second system message after other turns.

    Strict templates refuse it, and some leave it out.
    """
    turns = (
        *(("system", "the first rule"), ("user", "a"), ("assistant", "b")),
        *(("system", "the second rule"), ("user", "c")),
    )
    try:
        rendered = render(Chat(tuple(Message(role, content) for role, content in turns)))
    except EngineError:
        return False
    return "the first rule" in rendered and "the second rule" in rendered


def merge_system_messages(
    request: GenerationRequest, capabilities: Capabilities
) -> tuple[GenerationRequest, tuple[str, ...]]:
    """Return the request with one system message, at the start, if the template takes no others."""
    prompt = request.prompt
    if capabilities.late_system or not isinstance(prompt, Chat):
        return request, ()
    system = [message for message in prompt.messages if message.role in _SYSTEM_ROLES]
    if not system or (len(system) == 1 and prompt.messages[0] is system[0]):
        return request, ()
    text = "\n\n".join(message.content for message in system)
    others = (message for message in prompt.messages if message.role not in _SYSTEM_ROLES)
    prompt = replace(prompt, messages=(Message("system", text), *others))
    warning = (
        f"messages: the chat template of {capabilities.model} takes one system message, at the "
        "start, so all of them were joined there"
    )
    return replace(request, prompt=prompt), (warning,)


def apply_chat_template(
    request: GenerationRequest, capabilities: Capabilities
) -> tuple[GenerationRequest, tuple[str, ...]]:
    """Return the request, with its prompt as a user turn if that applies, and warnings.

    This is decided only here, because only a loaded model shows whether it has a chat template.
    `request.chat_template` is "off" for requests that are raw by definition. "auto" applies only a
    template of the model's own, and not to a prompt that was rendered by its author. "on" also
    applies the engine's default template. Without one it warns and sends the prompt as it is,
    because an answer to the raw prompt is more useful than a failed job.
    """
    prompt, mode = request.prompt, request.chat_template
    if mode == "off" or not isinstance(prompt, str):
        return request, ()
    warnings: tuple[str, ...] = ()
    if mode == "auto":
        is_rendered = any(marker in prompt for marker in capabilities.template_markers)
        applies = capabilities.own_template and not is_rendered
    else:
        applies = capabilities.chat_template
        if not applies:
            warnings = (
                f"apply_chat_template was ignored: {capabilities.model} has no chat template",
            )
        elif not capabilities.own_template:
            warnings = (
                f"apply_chat_template: {capabilities.model} has no chat template of its own, so "
                f"the default one of the {capabilities.backend} engine was used",
            )
    if applies:
        request = replace(request, prompt=Chat((Message("user", prompt),)))
    return request, warnings
