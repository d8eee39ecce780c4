from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.apis.ollama.keep_alive import read_keep_alive
from handler.apis.ollama.options import DEFAULTS, translate_options
from handler.apis.ollama.request import (
    CHAT,
    COMPLETION,
    TranslatedRequest,
    translate_chat,
    translate_generate,
)
from handler.errors import InvalidRequest
from tests.unit.handler.input.images import gif_header, png

USER = [{"role": "user", "content": "hi"}]
CALL = {"function": {"name": "add", "arguments": {"a": 1}}}


def body_of(translated: TranslatedRequest) -> dict[str, Any]:
    assert translated.body is not None
    return dict(translated.body)


def test_chat_has_the_defaults_of_ollama() -> None:
    assert body_of(translate_chat({"messages": USER})) == {
        **DEFAULTS,
        "stream": False,
        "messages": USER,
    }


def test_options_get_the_names_of_openai() -> None:
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
    parameters, warnings = translate_options(options)
    assert parameters == {
        "temperature": 0,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.1,
        "max_tokens": 7,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "seed": 3,
        "stop": ["a", "b"],
    }
    assert warnings == ()


@pytest.mark.parametrize(
    "options",
    [{"num_predict": -1}, {"num_predict": -2}, {"num_predict": 0}, {"seed": -1}, {"stop": []}],
)
def test_option_without_a_limit_is_left_out(options: dict[str, Any]) -> None:
    assert translate_options(options) == (dict(DEFAULTS), ())


@pytest.mark.parametrize("name", ["num_ctx", "mirostat", "num_gpu", "made_up"])
def test_option_without_effect_is_warned_about(name: str) -> None:
    _, warnings = translate_options({name: 1})
    assert len(warnings) == 1
    assert f"options.{name}" in warnings[0]


@pytest.mark.parametrize(
    ("think", "fields"),
    [
        (True, {"enable_thinking": True, "chat_template_kwargs": {"thinking": True}}),
        (False, {"enable_thinking": False, "chat_template_kwargs": {"thinking": False}}),
        ("low", {"reasoning_effort": "low"}),
        ("max", {"reasoning_effort": "xhigh"}),
        (None, {}),
    ],
)
def test_think_sets_the_reasoning(think: Any, fields: dict[str, Any]) -> None:
    body = body_of(translate_chat({"messages": USER, "think": think}))
    names = ("enable_thinking", "chat_template_kwargs", "reasoning_effort")
    assert {name: body[name] for name in names if name in body} == fields


def test_format_is_json_or_a_schema() -> None:
    schema = {"type": "object"}
    as_json = body_of(translate_chat({"messages": USER, "format": "json"}))
    with_schema = body_of(translate_generate({"prompt": "hi", "format": schema}))
    assert as_json["response_format"] == {"type": "json_object"}
    assert with_schema["response_format"]["json_schema"]["schema"] == schema


def test_calls_get_ids_and_results_find_them_by_name_and_order() -> None:
    multiply = {"function": {"name": "multiply", "arguments": {"b": "ü"}}}
    body = body_of(
        translate_chat(
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
    )
    calls = body["messages"][1]["tool_calls"]
    assert [call["id"] for call in calls] == ["call_0", "call_1"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"a": 1}, {"b": "ü"}]
    results = [each["tool_call_id"] for each in body["messages"] if each["role"] == "tool"]
    assert results == ["call_1", "call_0", "own"]


def test_text_of_the_assistant_at_the_end_is_continued() -> None:
    messages = [*USER, {"role": "assistant", "content": "Once upon"}]
    assert body_of(translate_chat({"messages": messages}))["continue_final_message"] is True


def test_generate_is_a_chat_with_a_system_message() -> None:
    translated = translate_generate({"prompt": "hi", "system": "Be brief."})
    assert translated.route == CHAT
    assert body_of(translated)["messages"] == [{"role": "system", "content": "Be brief."}, *USER]
    with pytest.raises(InvalidRequest) as caught, translated.field_names.in_errors():
        raise InvalidRequest("messages[1].content must be", "messages[1].content")
    assert (caught.value.message, caught.value.param) == ("prompt must be", "prompt")


@pytest.mark.parametrize("more", [{"raw": True}, {"suffix": "end"}])
def test_raw_prompts_and_suffixes_are_completions(more: dict[str, Any]) -> None:
    translated = translate_generate({"prompt": "hi", "think": True, **more})
    assert translated.route == COMPLETION
    body = body_of(translated)
    assert body["prompt"] == "hi"
    assert body.get("suffix") == more.get("suffix")
    assert "enable_thinking" not in body


@pytest.mark.parametrize(
    "translated", [translate_chat({"messages": []}), translate_generate({"keep_alive": "5m"})]
)
def test_request_without_a_prompt_only_loads(translated: TranslatedRequest) -> None:
    assert translated.body is None


def test_images_become_data_urls() -> None:
    images = [base64.b64encode(each).decode() for each in (gif_header(2, 2), png(2, 2))]
    message = {"role": "user", "content": "what?", "images": images}
    content = body_of(translate_chat({"messages": [message]}))["messages"][0]["content"]
    urls = [part["image_url"] for part in content if part["type"] == "image_url"]
    assert urls == [
        f"data:image/gif;base64,{images[0]}",
        f"data:image/png;base64,{images[1]}",
    ]
    assert content[-1] == {"type": "text", "text": "what?"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": USER, "options": []}, "options"),
        ({"messages": USER, "think": "hard"}, "think"),
        ({"messages": USER, "format": "yaml"}, "format"),
        ({"messages": USER, "keep_alive": "soon"}, "keep_alive"),
        ({"messages": USER, "stream": "no"}, "stream"),
        ({"messages": [{"role": "user", "images": "x"}]}, "messages[0].images"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"messages": [*USER, 1]}, None),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]},
            "messages[0].tool_calls[0]",
        ),
    ],
)
def test_wrong_field_is_named(body: dict[str, Any], param: str | None) -> None:
    if param is None:
        # The reader of chats names it.
        translate_chat(body)
        return
    with pytest.raises(InvalidRequest) as caught:
        translate_chat(body)
    assert caught.value.param == param
    assert caught.value.message.startswith(param)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
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
    read = read_keep_alive(value)
    assert read == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("value", ["", "5 m", "m", "5x", "1h-2m", "--1", True, [], math.nan])
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
def test_any_body_is_translated_or_refused(body: dict[str, Any], messages: Any) -> None:
    for translate in (translate_chat, translate_generate):
        error = _find_error(translate, {**body, "messages": messages})
        assert error is None or error.param is not None


def _find_error(translate: Callable[[dict[str, Any]], object], body: Any) -> InvalidRequest | None:
    try:
        translate(body)
    except InvalidRequest as error:
        return error
    return None
