"""Functions as plain text, for chat templates without tools (R39)."""

from __future__ import annotations

from engine import Chat, Message
from engine.hosts.frames import build_decoder, encode
from engine.prompts.tool_prompt import names_all_tools, tools_as_text
from engine.request import prompt_from_wire

TOOL = {"type": "function", "function": {"name": "time", "description": "", "parameters": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": '{"a":1}'}}
CHAT = Chat(
    (
        Message("user", "What time is it?"),
        Message("assistant", "", tool_calls=(CALL,)),
        Message("tool", "noon", tool_call_id="call_1"),
    ),
    tools=(TOOL,),
)


def test_functions_calls_and_results_are_in_the_text() -> None:
    text = tools_as_text(CHAT)
    assert text.tools == ()
    system, question, called, result = text.messages
    assert system.role == "system"
    assert '"name": "time"' in system.content
    assert "<tool_call>" in system.content
    assert question == CHAT.messages[0]
    assert called.content == '<tool_call>\n{"name": "time", "arguments": {"a":1}}\n</tool_call>'
    assert called.tool_calls == ()
    assert result == Message("user", "<tool_response>\nnoon\n</tool_response>")


def test_a_system_prompt_is_kept() -> None:
    chat = Chat((Message("system", "Be brief."), Message("user", "hi")), tools=(TOOL,))
    first, second = tools_as_text(chat).messages
    assert first.content.startswith("Be brief.\n\n")
    assert second == Message("user", "hi")


def test_template_that_drops_functions_is_detected() -> None:
    assert names_all_tools(CHAT, 'tools: [{"name": "time"}]')
    assert not names_all_tools(CHAT, "user: What time is it?")


def test_a_chat_with_functions_crosses_the_wire() -> None:
    [wire] = build_decoder().feed(encode(CHAT))
    assert prompt_from_wire(wire) == CHAT


def test_turns_for_templates_omit_absent_fields() -> None:
    assert Message("user", "hi").to_template() == {"role": "user", "content": "hi"}
    assert CHAT.messages[1].to_template()["tool_calls"] == [CALL]
    assert CHAT.messages[2].to_template()["tool_call_id"] == "call_1"
