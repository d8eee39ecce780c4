"""No warning is about a parameter that the client did not send, with fixed sampling either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.capabilities import Capabilities
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.messages.request import read_request as read_messages_request
from handler.apis.ollama.request import read_chat as read_ollama_chat
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.responses.request import read_request as read_responses_request
from tests.unit.handler.apis.served_model import TINY

# The sampling of RKLLM with ABI 1.2.
FIXED = Capabilities(
    backend="rkllm",
    model="tiny",
    context_length=512,
    fixed_sampling={"temperature": 0.7, "top_p": 0.9, "top_k": 50, "presence_penalty": 0.0},
    chat_template=True,
)
MESSAGES = [{"role": "user", "content": "hi"}]
DEFAULTS = CallDefaults()
CHAT_BODY = {"messages": MESSAGES}


def read_ollama(body: dict[str, Any]) -> ParsedCall:
    options = {"options": {"temperature": body["temperature"]}} if body.get("temperature") else {}
    call = read_ollama_chat(CHAT_BODY | options, TINY, DEFAULTS).call
    assert call is not None
    return call


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (lambda body: OpenAICall(CHAT, body, "tiny").parsed, CHAT_BODY),
        (lambda body: OpenAICall(COMPLETIONS, body, "tiny").parsed, {"prompt": "hi"}),
        (lambda body: read_responses_request(body, (), "", TINY, DEFAULTS).call, {"input": "hi"}),
        (
            lambda body: read_messages_request(body, TINY, DEFAULTS),
            CHAT_BODY | {"max_tokens": 9},
        ),
        (read_ollama, CHAT_BODY),
    ],
    ids=["chat", "completions", "responses", "messages", "ollama"],
)
def test_only_sent_parameters_cause_warnings(
    read: Callable[[dict[str, Any]], ParsedCall], body: dict[str, Any]
) -> None:
    def warnings_of(body: dict[str, Any]) -> tuple[str, ...]:
        call = read(body)
        return FIXED.check(call.prompts[0], call.parameters.sampling)

    assert warnings_of(body) == ()
    # Null is the same as no value.
    assert warnings_of(body | {"temperature": None}) == ()
    [warning] = warnings_of(body | {"temperature": 0.3})
    assert warning.startswith("temperature is fixed at 0.7")
