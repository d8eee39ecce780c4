"""The form of calls that the templates of the families ask for."""

from __future__ import annotations

import pytest

from engine.errors import RequestRejected
from engine.prompts.call_form import find_call_form
from engine.prompts.tool_prompt import tools_as_text
from engine.reply.reply_format import ToolForm
from engine.request import Chat

# The instructions in the public chat templates of the families.
INSTRUCTIONS: dict[str, tuple[str, ToolForm | None]] = {
    "Qwen3": (
        "For each function call, return a json object with function name and arguments within "
        '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
        "<args-json-object>}\n</tool_call>",
        "hermes",
    ),
    "Hermes 3": ('<tool_call>\n{"name": <function-name>, "arguments": <args-dict>}\n', "hermes"),
    # The keys in the other order.
    "Hermes 2": ("<tool_call>\n{'arguments': <args-dict>, 'name': <function-name>}\n", None),
    "Qwen3-Coder": (
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\n",
        "qwen_xml",
    ),
    "Llama 3.2": (
        'Respond in the format {"name": function name, "parameters": dictionary of argument name '
        "and its value}. Do not use variables.",
        "llama",
    ),
    "GLM 4.5": ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n", None),
    "Mistral": ("[AVAILABLE_TOOLS][][/AVAILABLE_TOOLS]", None),
    "none": ("", None),
}


@pytest.mark.parametrize("family", INSTRUCTIONS)
def test_form_is_that_of_the_instructions(family: str) -> None:
    text, expected = INSTRUCTIONS[family]
    assert find_call_form(lambda chat: f"{chat.tools}\n{text}", ()) == expected


def test_template_without_tools_gets_the_form_of_the_text() -> None:
    def render(chat: Chat) -> str:
        return tools_as_text(chat).messages[0].content

    assert find_call_form(render, ()) == "hermes"


def test_marks_that_are_control_tokens_have_no_form() -> None:
    text = INSTRUCTIONS["Qwen3"][0]
    assert find_call_form(lambda _: text, ["<|im_end|>", "<tool_call>"]) is None


def test_template_that_refuses_tools_has_no_form() -> None:
    def render(chat: Chat) -> str:
        raise RequestRejected("no tools")

    assert find_call_form(render, ()) is None
