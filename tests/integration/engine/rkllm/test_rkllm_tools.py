"""Tools and reasoning with the RKLLM engine and both ABIs: prompts, calls and parsing.

Each test runs with the model's template, with a template without support for functions, or with
the runtime's own template, which renders the chat as one turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from common.json_object import JsonObject
from engine.errors import RequestRejected
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.errors import error_info
from handler.pipeline import Pipeline
from tests.fake_rkllm import quoted
from tests.fake_rkllm.tokenizer import CHATML, text_of, write_tokenizer
from tests.integration.engine.rkllm.conftest import RkllmMaker
from validation.rules import DEFAULT_RULES
from validation.rules_validator import RulesValidator

pytestmark = [
    pytest.mark.parametrize("isolation", ["thread"], indirect=True),
    pytest.mark.usefixtures("examined_once"),
]

ROUTE = "/v1/chat/completions"
# The beginning of Qwen's template.
WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}"
    "{% endfor %}\n</tools><|im_end|>\n{% endif %}" + CHATML
)
OPENS_REASONING = CHATML.replace("assistant\n{%", "assistant\n<think>\n{%")
# Qwen3's template, with the opposite default.
OPENS_REASONING_ON_REQUEST = CHATML.replace(
    "assistant\n{%", "assistant\n{% if enable_thinking %}<think>\n{% endif %}{%"
)
TEMPLATES: dict[str, Callable[[Path], object]] = {
    "template": lambda folder: write_tokenizer(folder, WITH_TOOLS),
    "template without a place": write_tokenizer,
    "runtime": lambda folder: None,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Köln?"}], "tools": [TOOL]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture(params=TEMPLATES)
def template_kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Write the files that this variant needs next to the model."""
    TEMPLATES[request.param](tmp_path)
    return str(request.param)


@pytest.fixture
def template(tmp_path: Path) -> None:
    """Write a template with tool support next to the model."""
    TEMPLATES["template"](tmp_path)


def answer_script(*texts: str) -> str:
    """Return a script that answers every prompt with these tokens."""
    return f"answer\n  say {' '.join(map(quoted, texts))}\n"


def answers_by_run(*answers: list[str]) -> str:
    """Return a script with one answer per run."""
    return "".join(
        answer_script(*texts).replace("answer", f"answer run={number}", 1)
        for number, texts in enumerate(answers, 1)
    )


def service_of(engine: Any) -> OpenAIService:
    return OpenAIService(Pipeline(engine, "fake", RulesValidator.from_file(DEFAULT_RULES)))


async def complete_chat(service: OpenAIService, body: dict[str, Any]) -> JsonObject:
    completion = await service.complete(service.parse_call(ROUTE, body))
    ChatCompletion.model_validate(completion, strict=True)
    return completion


async def get_message(service: OpenAIService, body: dict[str, Any]) -> dict[str, Any]:
    [choice] = (await complete_chat(service, body))["choices"]
    content_and_calls: dict[str, Any] = choice["message"]
    return content_and_calls


async def read_deltas(service: OpenAIService, body: dict[str, Any]) -> list[dict[str, Any]]:
    call = service.parse_call(ROUTE, body | {"stream": True})
    async with await service.open_stream(call) as running:
        content = b"".join([block async for block in stream_events(call, running)])
    lines = [line.removeprefix("data: ") for line in content.decode().split("\n\n") if line]
    return [json.loads(line)["choices"][0] for line in lines[:-1]]


async def read_stream(service: OpenAIService, body: dict[str, Any]) -> tuple[str, str]:
    """Return the reasoning and the answer of a stream."""
    deltas = [each["delta"] for each in await read_deltas(service, body)]
    reasoning, answer = (
        "".join(each.get(name, "") for each in deltas) for name in ("reasoning_content", "content")
    )
    return reasoning, answer


async def prompt_of(service: OpenAIService, body: dict[str, Any]) -> str:
    """Return the runtime's input as text."""
    run_input = json.loads((await get_message(service, body))["content"])
    if run_input["input_type"] == "token":
        return text_of([int(word) for word in run_input["prompt"].split()])
    return str(run_input["prompt"])


async def test_prompt_describes_the_functions(rkllm_of: RkllmMaker, template_kind: str) -> None:
    service = service_of(rkllm_of('answer\n  say "\\{seen}"\n'))
    prompt = await prompt_of(service, BODY)
    assert '"weather"' in prompt
    assert '"city"' in prompt
    # If the template supports tools, in its own format instead of ours.
    assert ("You may call functions" in prompt) is (template_kind != "template")
    assert "weather" not in await prompt_of(service, BODY | {"tool_choice": "none"})


async def test_one_turn_with_functions_causes_a_warning(
    rkllm_of: RkllmMaker, template_kind: str
) -> None:
    # R16
    service = service_of(rkllm_of(answer_script("a")))
    warnings = (await complete_chat(service, BODY)).get("warnings", [])
    assert any("as the text of one turn" in each for each in warnings) is (
        template_kind == "runtime"
    )


@pytest.mark.usefixtures("template")
async def test_tool_call_is_returned_complete_and_streamed(rkllm_of: RkllmMaker) -> None:
    # R39: split at token boundaries, here between any two characters.
    in_one_token, by_character = ["Let me see. ", CALL], ["Let me see. ", *CALL]
    service = service_of(
        rkllm_of(answers_by_run(in_one_token, in_one_token, by_character, by_character))
    )
    for _ in range(2):
        [choice] = (await complete_chat(service, BODY))["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == (
            "tool_calls",
            "Let me see.",
        )
        [tool_call] = choice["message"]["tool_calls"]
        assert tool_call["function"] == {"name": "weather", "arguments": '{"city": "Köln"}'}

        deltas = await read_deltas(service, BODY)
        assert "".join(each["delta"].get("content") or "" for each in deltas) == "Let me see."
        parts = [call for each in deltas for call in each["delta"].get("tool_calls", ())]
        assert [part["function"].get("name") for part in parts] == [
            "weather",
            *[None] * (len(parts) - 1),
        ]
        arguments = "".join(part["function"]["arguments"] for part in parts)
        assert arguments == tool_call["function"]["arguments"]
        assert [each["finish_reason"] for each in deltas][-1] == "tool_calls"


async def test_tool_result_is_sent_to_the_model(rkllm_of: RkllmMaker, template_kind: str) -> None:
    service = service_of(rkllm_of('answer\n  say "\\{seen}"\n'))
    tool_call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
    }
    turns = [
        *BODY["messages"],
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"celsius": 9}'},
    ]
    prompt = await prompt_of(service, BODY | {"messages": turns})
    assert '{"celsius": 9}' in prompt
    assert ("<tool_response>" in prompt) is (template_kind != "template")


@pytest.mark.usefixtures("template")
async def test_required_tool_call_is_validated(rkllm_of: RkllmMaker) -> None:
    # R39: the answer cannot be constrained, so it is validated and retried once.
    body = BODY | {"tool_choice": "required"}
    refusal, calls = ["I will not."], ['{"name": "weather", "arguments": {}}']
    service = service_of(rkllm_of(answers_by_run(refusal, refusal, calls)))
    refused = await complete_chat(service, body)
    assert refused["validation"]["valid"] is False
    assert refused["regenerated"]
    assert any("cannot constrain its answers to a schema" in each for each in refused["warnings"])
    assert (await complete_chat(service, body))["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.usefixtures("template")
async def test_reasoning_is_returned_separately(rkllm_of: RkllmMaker) -> None:
    # R39
    text = "<think>\nHm, <b>.\n</think>\n\nYes"
    service = service_of(rkllm_of(answers_by_run([text], [text], [*text], [*text])))
    body = {"messages": BODY["messages"]}
    for _ in range(2):
        answer = await get_message(service, body)
        assert (answer["reasoning_content"], answer["content"]) == ("Hm, <b>.\n", "Yes")
        assert await read_stream(service, body) == ("Hm, <b>.\n", "Yes")


async def test_template_that_starts_in_reasoning_is_detected(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    # As in DeepSeek-R1: the opening marker is in the prompt, only the closing one is generated.
    write_tokenizer(tmp_path, OPENS_REASONING)
    service = service_of(rkllm_of(answer_script("Hm.", "</th", "ink>", "Yes")))
    body = {"messages": BODY["messages"]}
    for variant in (body, body | {"n": 2}, body | {"chat_template_kwargs": {"a": 1}}):
        for choice in (await complete_chat(service, variant))["choices"]:
            assert choice["message"]["reasoning_content"] == "Hm."
            assert choice["message"]["content"] == "Yes"
    assert await read_stream(service, body) == ("Hm.", "Yes")


async def test_reasoning_requested_by_a_call_is_detected(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, OPENS_REASONING_ON_REQUEST)
    service = service_of(rkllm_of(answer_script("Hm.</think>Yes")))
    body = {"messages": BODY["messages"]}
    answer = await get_message(service, body | {"enable_thinking": True})
    assert (answer["reasoning_content"], answer["content"]) == ("Hm.", "Yes")
    for variant in (body, body | {"enable_thinking": False}):
        assert (await get_message(service, variant))["content"] == "Hm.</think>Yes"


async def test_template_that_refuses_one_turn_does_not_start_in_reasoning(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, "{{ raise_exception('system first') }}")
    assert not (await rkllm_of(answer_script("a")).ready()).starts_in_reasoning


STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


async def test_late_system_messages_are_joined_for_a_strict_template(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    # R64: agents send instructions late.
    write_tokenizer(tmp_path, STRICT)
    engine = rkllm_of('answer\n  say "\\{seen}"\n')
    assert not (await engine.ready()).late_system
    service = service_of(engine)
    turns = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be short."},
    ]
    prompt = await prompt_of(service, {"messages": turns})
    assert "system\nBe kind.\n\nBe short.<|im_end|>" in prompt
    completion = await complete_chat(service, {"messages": turns})
    assert any(
        "at the start, so all of them were joined" in each for each in completion["warnings"]
    )
    # A template that refuses every chat causes a one-sentence error.
    write_tokenizer(tmp_path, "{{ raise_exception('no chats') }}")
    with pytest.raises(RequestRejected) as raised:
        await complete_chat(service_of(rkllm_of(answer_script("a"))), {"messages": turns[1:2]})
    failure = error_info(raised.value)
    assert failure.message == "messages: the model's chat template cannot take them: no chats"
    assert failure.param == "messages"
