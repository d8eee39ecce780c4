"""R58: when a prompt becomes a user turn of the chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine import Capabilities, Chat, GenerationRequest, Message
from engine.errors import RequestRejected
from engine.prompts.chat_template import (
    apply_chat_template,
    merge_system_messages,
    takes_late_system,
    template_error,
    template_markers,
)
from engine.request import TemplateMode

CHATML = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
INSTRUCT = Capabilities(
    backend="llamacpp",
    model="tiny",
    context_length=512,
    chat_template=True,
    own_template=True,
    template_markers=("<|im_end|>", "<|im_start|>"),
)
# llama.cpp renders the chats of such a model as ChatML.
BASE = replace(INSTRUCT, own_template=False, template_markers=())
WITHOUT = replace(BASE, chat_template=False)
TURN = Chat((Message("user", "hi"),))


def applied(mode: TemplateMode, capabilities: Capabilities, prompt: Any = "hi") -> Any:
    request = GenerationRequest(prompt=prompt, chat_template=mode)
    result, warnings = apply_chat_template(request, capabilities)
    assert result == replace(request, prompt=result.prompt)
    return result.prompt, *warnings


@pytest.mark.parametrize(
    ("mode", "capabilities", "prompt"),
    [
        ("auto", INSTRUCT, TURN),
        ("auto", BASE, "hi"),
        ("auto", WITHOUT, "hi"),
        ("on", INSTRUCT, TURN),
        ("off", INSTRUCT, "hi"),
    ],
)
def test_prompt_becomes_a_user_turn_by_mode_and_model(
    mode: TemplateMode, capabilities: Capabilities, prompt: object
) -> None:
    assert applied(mode, capabilities) == (prompt,)


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
@pytest.mark.parametrize("prompt", [(1, 2), Chat((Message("system", "x"),))])
def test_token_ids_and_chats_are_unchanged(mode: TemplateMode, prompt: object) -> None:
    assert applied(mode, INSTRUCT, prompt) == (prompt,)


def test_auto_keeps_a_rendered_prompt_and_on_does_not() -> None:
    rendered = CHATML.replace("a<", "hi<")
    assert applied("auto", INSTRUCT, rendered) == (rendered,)
    assert applied("on", INSTRUCT, rendered) == (Chat((Message("user", rendered),)),)


def test_on_uses_the_default_template_of_the_engine_with_a_warning() -> None:
    prompt, warning = applied("on", BASE)
    assert prompt == TURN
    assert warning.startswith("apply_chat_template: tiny has no chat template of its own")


def test_on_is_ignored_with_a_warning_without_any_template() -> None:
    ignored = "apply_chat_template was ignored: tiny has no chat template"
    assert applied("on", WITHOUT) == ("hi", ignored)


def test_markers_are_the_special_tokens_in_the_template() -> None:
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|odd|>", "", "\n"]
    assert template_markers(CHATML, special) == ("<|im_end|>", "<|im_start|>")


def test_markers_of_plain_text_are_known_and_html_is_no_marker() -> None:
    assert template_markers("<s>[INST] a [/INST]", ["<s>", "</s>"]) == ("[/INST]", "[INST]")


def test_markers_survive_the_wire() -> None:
    assert Capabilities(**INSTRUCT.to_wire()) == INSTRUCT


# -- system messages ------------------------------------------------------------------------------


def turns(*pairs: tuple[str, str]) -> Chat:
    return Chat(tuple(Message(role, content) for role, content in pairs))


def lenient(chat: Chat) -> str:
    return "".join(f"<{each.role}>{each.content}" for each in chat.messages)


def strict(chat: Chat) -> str:
    if any(each.role == "system" for each in chat.messages[1:]):
        raise RequestRejected("System message must be at the beginning.")
    return lenient(chat)


def forgetful(chat: Chat) -> str:
    first, *others = chat.messages
    return lenient(Chat((first, *(each for each in others if each.role != "system"))))


@pytest.mark.parametrize(
    ("render", "expected"), [(lenient, True), (strict, False), (forgetful, False)]
)
def test_template_is_tried_with_a_late_system_message(
    render: Callable[[Chat], str], expected: bool
) -> None:
    assert takes_late_system(render) is expected


STRICT = replace(INSTRUCT, late_system=False)
LATE = turns(("system", "a"), ("user", "b"), ("developer", "c"), ("user", "d"), ("system", "e"))


def test_system_messages_are_joined_for_a_strict_template() -> None:
    merged, [warning] = merge_system_messages(GenerationRequest(prompt=LATE), STRICT)
    assert merged.prompt == turns(("system", "a\n\nc\n\ne"), ("user", "b"), ("user", "d"))
    assert warning == (
        "messages: the chat template of tiny takes one system message, at the start, so all of "
        "them were joined there"
    )
    late = GenerationRequest(prompt=turns(("user", "b"), ("system", "a")))
    assert merge_system_messages(late, STRICT)[0].prompt == turns(("system", "a"), ("user", "b"))


@pytest.mark.parametrize(
    ("prompt", "capabilities"),
    [
        (LATE, INSTRUCT),
        (turns(("system", "a"), ("user", "b")), STRICT),
        (turns(("user", "b"), ("assistant", "c")), STRICT),
        ("text", STRICT),
        ((1, 2), STRICT),
    ],
)
def test_other_prompts_are_left_as_they_are(prompt: Any, capabilities: Capabilities) -> None:
    request = GenerationRequest(prompt=prompt)
    assert merge_system_messages(request, capabilities) == (request, ())


def test_error_of_a_template_is_one_sentence() -> None:
    error = template_error("no\n  such   role " + "x" * 500)
    assert error.message.startswith("messages: the model's chat template cannot take them: no such")
    assert "\n" not in error.message
    assert len(error.message) < 400
    assert error.details == {"param": "messages"}
