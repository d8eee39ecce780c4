"""The bodies of requests to servers."""

from __future__ import annotations

from typing import Any

import pytest

from engine.backends.openai.call_body import build_call
from engine.backends.openai.server_kind import KINDS, OTHER, ServerKind, find_kind
from engine.errors import UnsupportedParameter
from engine.request import Chat, ChatImage, Message, SamplingParams, StopScope

VLLM, LLAMA, OURS = KINDS["vllm"], KINDS["llamacpp"], KINDS["worker-rkllm"]
UNSET = frozenset({"temperature", "top_p", "top_k"})
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}
    for name in ("weather", "time")
)
HI = Chat((Message("user", "hi"),))
PNG = "iVBORw0KGgo="


def body(prompt: Any, kind: ServerKind = OTHER, **sampling: Any) -> dict[str, Any]:
    return build_call("m", prompt, SamplingParams(**{"unset": UNSET} | sampling), kind).body


def test_chat_is_sent_as_messages() -> None:
    call = build_call("m", HI, SamplingParams(unset=UNSET), OTHER)
    assert call.path == "/v1/chat/completions"
    assert call.body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_text_is_sent_as_a_prompt_without_a_limit() -> None:
    call = build_call("m", "Once", SamplingParams(unset=UNSET), OTHER)
    assert call.path == "/v1/completions"
    # Without the key, servers would end the answer after 16 tokens.
    assert (call.body["prompt"], call.body["max_tokens"]) == ("Once", None)
    assert body((1, 2), VLLM, max_tokens=5)["prompt"] == [1, 2]


def test_defaults_of_the_server_are_kept_where_the_client_sends_nothing() -> None:
    assert body(HI).keys().isdisjoint({"temperature", "top_p", "seed", "max_tokens"})


def test_parameters_of_the_client_are_sent_also_with_their_usual_values() -> None:
    sent = body(HI, temperature=1.0, top_p=1.0, unset=frozenset(), seed=0, max_tokens=7)
    assert (sent["temperature"], sent["top_p"], sent["seed"], sent["max_tokens"]) == (
        1.0,
        1.0,
        0,
        7,
    )


def test_parameters_apart_from_openais_go_to_servers_that_read_them() -> None:
    sampling: dict[str, Any] = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "ignore_eos": True,
        "logit_bias": {7: -100.0},
        "skip_special_tokens": False,
        "stop_token_ids": (1, 2),
    }
    assert body(HI, **sampling).keys() == body(HI).keys()
    sent = body(HI, VLLM, **sampling)
    assert (sent["top_k"], sent["min_p"], sent["repetition_penalty"]) == (5, 0.1, 1.2)
    assert (sent["logit_bias"], sent["stop_token_ids"]) == ({"7": -100.0}, [1, 2])
    assert sent["skip_special_tokens"] is False
    assert body(HI, LLAMA, **sampling)["repeat_penalty"] == 1.2


def test_stop_strings_are_sent_only_to_a_server_that_finds_the_same_ones() -> None:
    assert "stop" not in body(HI, VLLM, stop=("END",))
    assert "stop" not in body(HI, OURS)
    sent = body(HI, OURS, stop=("END",), stop_scope=StopScope())
    assert (sent["stop"], sent["include_stop_str_in_output"]) == (["END"], True)
    assert sent["stop_in_reasoning"] is False
    assert body(HI, OURS, stop=("END",))["stop_in_reasoning"] is True


def test_allowed_tokens_are_refused_by_name_where_they_would_be_ignored() -> None:
    assert body(HI, VLLM, allowed_token_ids=(1,))["allowed_token_ids"] == [1]
    with pytest.raises(UnsupportedParameter, match="allowed_token_ids"):
        body(HI, OTHER, allowed_token_ids=(1,))


def test_usage_is_asked_for_in_each_chunk_where_the_server_has_it() -> None:
    assert body(HI, VLLM)["stream_options"]["continuous_usage_stats"] is True
    assert body(HI, LLAMA)["timings_per_token"] is True


def test_logprobs_have_the_form_of_the_api() -> None:
    chat, text = body(HI, logprobs=3), body("Once", logprobs=3)
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 3)
    assert text["logprobs"] == 3


def test_schema_is_sent_as_a_response_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    sent = body(HI, json_schema=schema)["response_format"]
    assert sent["json_schema"] == {"name": "answer", "schema": schema, "strict": True}
    assert body(HI, json_schema={"type": "object"})["response_format"] == {"type": "json_object"}


def test_grammar_goes_to_servers_that_have_grammars() -> None:
    assert body(HI, LLAMA, grammar='root ::= "a"')["grammar"] == 'root ::= "a"'


def test_images_are_parts_of_their_message() -> None:
    message = Message("user", "left right", images=(ChatImage(PNG, 5), ChatImage("R0lGODlh", 5)))
    assert body(Chat((message,)))["messages"][0]["content"] == [
        {"type": "text", "text": "left "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lGODlh"}},
        {"type": "text", "text": "right"},
    ]


def test_reasoning_of_earlier_turns_goes_to_servers_that_read_it() -> None:
    chat = Chat((Message("assistant", "a", reasoning="r"), Message("user", "b")))
    assert body(chat, VLLM)["messages"][0]["reasoning_content"] == "r"
    assert body(chat)["messages"][0] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("required", "choice", "names"),
    [
        ((), None, ["weather", "time"]),
        (("weather", "time"), "required", ["weather", "time"]),
        (("time",), {"type": "function", "function": {"name": "time"}}, ["weather", "time"]),
    ],
    ids=["auto", "any", "one"],
)
def test_choice_of_functions_is_sent(required: tuple[str, ...], choice: Any, names: Any) -> None:
    sent = body(Chat(HI.messages, tools=TOOLS, required_calls=required))
    assert sent.get("tool_choice") == choice
    assert [tool["function"]["name"] for tool in sent["tools"]] == names
    assert "parallel_tool_calls" not in sent


def test_one_call_at_a_time_is_sent_with_tools_alone() -> None:
    assert (
        body(Chat(HI.messages, tools=TOOLS, parallel_calls=False))["parallel_tool_calls"] is False
    )
    assert "parallel_tool_calls" not in body(Chat(HI.messages, parallel_calls=False))


@pytest.mark.parametrize(
    ("variables", "effort"),
    [
        ({"reasoning_effort": "low", "enable_thinking": True}, "low"),
        ({"enable_thinking": False}, "none"),
        ({"enable_thinking": True}, None),
        ({"custom": 1}, None),
    ],
)
def test_variables_become_an_effort_where_the_server_has_no_variables(
    variables: dict[str, Any], effort: str | None
) -> None:
    chat = Chat(HI.messages, variables)
    assert body(chat).get("reasoning_effort") == effort
    assert body(chat, VLLM)["chat_template_kwargs"] == variables


def test_last_message_is_continued_or_refused() -> None:
    chat = Chat((*HI.messages, Message("assistant", "Once")), continues_last=True)
    sent = body(chat, VLLM)
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
    assert "continue_final_message" not in body(chat, LLAMA)
    with pytest.raises(UnsupportedParameter, match="messages: the last one"):
        body(chat)


def test_kind_is_that_of_the_owner_of_the_models() -> None:
    assert find_kind("vllm") is VLLM
    assert find_kind("worker-rkllm") is OURS
    assert find_kind("library") is OTHER
