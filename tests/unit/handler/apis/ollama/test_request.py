from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Chat, ChatImage, Message, SamplingParams
from engine.errors import RequestRejected
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.parsed_call import ParsedCall
from handler.apis.ollama.keep_alive import read_keep_alive
from handler.apis.ollama.options import read_options
from handler.apis.ollama.request import OllamaRequest, read_chat, read_generate
from handler.errors import InvalidRequest
from tests.unit.handler.apis.served_model import TINY
from tests.unit.handler.input.images import gif_header, png

USER = [{"role": "user", "content": "hi"}]
CALL = {"function": {"name": "add", "arguments": {"a": 1}}}


def read(body: dict[str, Any], reader: Callable[..., OllamaRequest] = read_chat) -> ParsedCall:
    call = reader(body, TINY, CallDefaults()).call
    assert call is not None
    return call


def chat_of(body: dict[str, Any], reader: Callable[..., OllamaRequest] = read_chat) -> Chat:
    (chat,) = read(body, reader).prompts
    assert isinstance(chat, Chat)
    return chat


def test_chat_has_the_defaults_of_ollama() -> None:
    call = read({"messages": USER})
    assert not call.streaming
    assert call.parameters.sampling == SamplingParams(temperature=0.8, top_k=40, top_p=0.9)


def test_options_are_parameters() -> None:
    options = {
        "temperature": 0,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.1,
        "num_predict": 7,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "seed": 3,
        "stop": ["a", "b"],
    }
    assert read_options(options, None, None) == (
        SamplingParams(
            temperature=0,
            top_k=5,
            top_p=0.5,
            min_p=0.1,
            max_tokens=7,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=0.4,
            seed=3,
            stop=("a", "b"),
        ),
        (),
    )


@pytest.mark.parametrize(
    "options",
    [{"num_predict": -1}, {"num_predict": -2}, {"num_predict": 0}, {"seed": -1}, {"stop": []}],
)
def test_option_without_a_limit_is_left_out(options: dict[str, Any]) -> None:
    assert read_options(options, 9, None) == read_options({}, 9, None)


@pytest.mark.parametrize("name", ["num_ctx", "mirostat", "num_gpu", "made_up"])
def test_option_without_effect_is_warned_about(name: str) -> None:
    _, warnings = read_options({name: 1}, None, None)
    assert len(warnings) == 1
    assert f"options.{name}" in warnings[0]


@pytest.mark.parametrize(
    ("think", "variables"),
    [
        (True, {"enable_thinking": True, "thinking": True}),
        (False, {"enable_thinking": False, "thinking": False}),
        ("low", {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}),
        ("max", {"enable_thinking": True, "thinking": True, "reasoning_effort": "xhigh"}),
        (None, {}),
    ],
)
def test_think_sets_the_reasoning(think: Any, variables: dict[str, Any]) -> None:
    assert chat_of({"messages": USER, "think": think}).template_kwargs == variables


def test_format_is_json_or_a_schema() -> None:
    schema = {"type": "string"}
    as_json = read({"messages": USER, "format": "json"})
    with_schema = read({"prompt": "hi", "format": schema}, read_generate)
    assert as_json.parameters.sampling.json_schema == {"type": "object"}
    assert with_schema.parameters.sampling.json_schema == schema


def test_calls_get_ids_and_results_find_them_by_name_and_order() -> None:
    multiply = {"function": {"name": "multiply", "arguments": {"b": "ü"}}}
    chat = chat_of(
        {
            "messages": [
                *USER,
                {"role": "assistant", "content": "", "tool_calls": [CALL, multiply]},
                {"role": "tool", "content": "2", "tool_name": "multiply"},
                {"role": "tool", "content": "1"},
                {"role": "assistant", "tool_calls": [{**CALL, "id": "own"}]},
                {"role": "tool", "content": "3", "tool_call_id": "own"},
            ]
        }
    )
    calls = chat.messages[1].tool_calls
    assert [call["id"] for call in calls] == ["call_0", "call_1"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"a": 1}, {"b": "ü"}]
    results = [each.tool_call_id for each in chat.messages if each.role == "tool"]
    assert results == ["call_1", "call_0", "own"]


def test_text_of_the_assistant_at_the_end_is_continued() -> None:
    messages = [*USER, {"role": "assistant", "content": "Once upon"}]
    assert chat_of({"messages": messages}).continues_last


def test_generate_is_a_chat_with_a_system_message() -> None:
    body = {"prompt": "hi", "system": "Be brief."}
    call = read(body, read_generate)
    messages = chat_of(body, read_generate).messages
    assert messages == (Message("system", "Be brief."), Message("user", "hi"))
    error = RequestRejected("messages: no template", param="messages")
    assert call.name_field(error).message == "prompt: no template"


@pytest.mark.parametrize("more", [{"raw": True}, {"suffix": "end"}])
def test_raw_prompts_and_suffixes_are_completions(more: dict[str, Any]) -> None:
    call = read({"prompt": "hi", "think": True, **more}, read_generate)
    assert call.prompts == ("hi",)
    assert call.parameters.suffix == more.get("suffix", "")
    assert call.reply_format is None


@pytest.mark.parametrize(
    ("reader", "body"), [(read_chat, {"messages": []}), (read_generate, {"keep_alive": "5m"})]
)
def test_request_without_a_prompt_only_loads(
    reader: Callable[..., OllamaRequest], body: dict[str, Any]
) -> None:
    assert reader(body, TINY, CallDefaults()).call is None


def test_images_come_before_the_text() -> None:
    images = [base64.b64encode(each).decode() for each in (gif_header(2, 2), png(2, 2))]
    message = {"role": "user", "content": "what?", "images": images}
    [read_message] = chat_of({"messages": [message]}).messages
    assert read_message.content == "what?"
    assert read_message.images == tuple(ChatImage(image) for image in images)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": USER, "options": []}, "options"),
        ({"messages": USER, "options": {"stop": ["x"] * 17}}, "options.stop"),
        ({"messages": USER, "think": "hard"}, "think"),
        ({"messages": USER, "format": "yaml"}, "format"),
        ({"messages": USER, "keep_alive": "soon"}, "keep_alive"),
        ({"messages": USER, "stream": "no"}, "stream"),
        ({"messages": [{"role": "user", "images": "x"}]}, "messages[0].images"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [*USER, 1]}, "messages[1]"),
        ({"messages": [{"role": "tool", "tool_call_id": 1}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]},
            "messages[0].tool_calls[0]",
        ),
    ],
)
def test_wrong_field_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.param == param
    assert caught.value.message.startswith(param)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        (300, 300.0),
        (0, 0.0),
        (-1, math.inf),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        ("100ms", 0.1),
        ("0", 0.0),
        ("-1s", math.inf),
        ("-1", math.inf),
        (10**30, math.inf),
        ("99999999h", math.inf),
    ],
)
def test_keep_alive_is_read_as_go_durations(value: Any, seconds: float | None) -> None:
    keep_alive_s = read_keep_alive(value)
    assert keep_alive_s == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("value", ["5 m", "m", "5x", "1h-2m", "--1", True, [], math.nan])
def test_keep_alive_refuses_other_values(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="keep_alive"):
        read_keep_alive(value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_MESSAGE = st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "images", "tool_name", "tool_call_id"]), _JSON
)
_BODY = st.dictionaries(
    st.sampled_from(
        ["options", "think", "format", "keep_alive", "prompt", "images", "raw", "suffix", "system"]
    ),
    _JSON,
)


@given(_BODY, st.lists(_MESSAGE | _JSON, max_size=4) | _JSON)
def test_any_body_is_read_or_refused(body: dict[str, Any], messages: Any) -> None:
    for reader in (read_chat, read_generate):
        error = _find_error(partial(reader, {**body, "messages": messages}, TINY, CallDefaults()))
        assert error is None or error.param is not None


def _find_error(read_body: Callable[[], object]) -> InvalidRequest | None:
    try:
        read_body()
    except InvalidRequest as error:
        return error
    return None
