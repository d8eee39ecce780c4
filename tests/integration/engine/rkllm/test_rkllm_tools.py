"""Tools and reasoning with the RKLLM engine and both ABIs: prompts, calls and parsing.

In each way a prompt can come about: by the model's template, by one without a place for functions,
and by the runtime's own, where everything is one turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from engine.errors import RequestRejected
from handler.errors import error_info
from handler.input.options import NO_DEFAULTS
from handler.openai.events import stream_events
from handler.openai.service import OpenAIService
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
OPENS = CHATML.replace("assistant\n{%", "assistant\n<think>\n{%")
# Qwen3's template, with the opposite default.
MAY_OPEN = CHATML.replace(
    "assistant\n{%", "assistant\n{% if enable_thinking %}<think>\n{% endif %}{%"
)
WAYS: dict[str, Callable[[Path], object]] = {
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


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Write the files that this variant needs next to the model."""
    WAYS[request.param](tmp_path)
    return str(request.param)


@pytest.fixture
def template(tmp_path: Path) -> None:
    """Write a template with tool support next to the model."""
    WAYS["template"](tmp_path)


def says(*texts: str) -> str:
    """Return a script that answers every prompt with these tokens."""
    return f"answer\n  say {' '.join(map(quoted, texts))}\n"


def in_turn(*answers: list[str]) -> str:
    """Return a script with one answer per run."""
    return "".join(
        says(*texts).replace("answer", f"answer run={number}", 1)
        for number, texts in enumerate(answers, 1)
    )


def service_of(engine: Any) -> OpenAIService:
    return OpenAIService(
        Pipeline(engine, "fake", RulesValidator.from_file(DEFAULT_RULES)), NO_DEFAULTS
    )


async def whole(service: OpenAIService, body: dict[str, Any]) -> dict[str, Any]:
    told = await service.complete(service.parse_call(ROUTE, body))
    ChatCompletion.model_validate(told, strict=True)
    return told


async def message(service: OpenAIService, body: dict[str, Any]) -> dict[str, Any]:
    [choice] = (await whole(service, body))["choices"]
    said: dict[str, Any] = choice["message"]
    return said


async def deltas(service: OpenAIService, body: dict[str, Any]) -> list[dict[str, Any]]:
    call = service.parse_call(ROUTE, body | {"stream": True})
    async with await service.open_stream(call) as running:
        said = b"".join([block async for block in stream_events(call, running)])
    lines = [line.removeprefix("data: ") for line in said.decode().split("\n\n") if line]
    return [json.loads(line)["choices"][0] for line in lines[:-1]]


async def streamed(service: OpenAIService, body: dict[str, Any]) -> tuple[str, str]:
    """Return the reasoning and the answer of a stream."""
    told = [each["delta"] for each in await deltas(service, body)]
    thoughts, answer = (
        "".join(each.get(name, "") for each in told) for name in ("reasoning_content", "content")
    )
    return thoughts, answer


async def prompt_of(service: OpenAIService, body: dict[str, Any]) -> str:
    """Return the runtime's input as text."""
    given = json.loads((await message(service, body))["content"])
    if given["input_type"] == "token":
        return text_of([int(word) for word in given["prompt"].split()])
    return str(given["prompt"])


async def test_prompt_describes_the_functions(rkllm_of: RkllmMaker, way: str) -> None:
    service = service_of(rkllm_of('answer\n  say "\\{seen}"\n'))
    told = await prompt_of(service, BODY)
    assert '"weather"' in told
    assert '"city"' in told
    # If the template supports tools, in its own format instead of ours.
    assert ("You may call functions" in told) is (way != "template")
    assert "weather" not in await prompt_of(service, BODY | {"tool_choice": "none"})


async def test_one_turn_with_functions_causes_a_warning(rkllm_of: RkllmMaker, way: str) -> None:
    # R16
    service = service_of(rkllm_of(says("a")))
    warnings = (await whole(service, BODY)).get("warnings", [])
    assert any("as the text of one turn" in each for each in warnings) is (way == "runtime")


@pytest.mark.usefixtures("template")
async def test_tool_call_is_returned_complete_and_streamed(rkllm_of: RkllmMaker) -> None:
    # R39: split at token boundaries, here between any two characters.
    at_once, bit_by_bit = ["Let me see. ", CALL], ["Let me see. ", *CALL]
    service = service_of(rkllm_of(in_turn(at_once, at_once, bit_by_bit, bit_by_bit)))
    for _ in range(2):
        [choice] = (await whole(service, BODY))["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == (
            "tool_calls",
            "Let me see.",
        )
        [called] = choice["message"]["tool_calls"]
        assert called["function"] == {"name": "weather", "arguments": '{"city": "Köln"}'}

        told = await deltas(service, BODY)
        assert "".join(each["delta"].get("content") or "" for each in told) == "Let me see."
        parts = [call for each in told for call in each["delta"].get("tool_calls", ())]
        assert [part["function"].get("name") for part in parts] == [
            "weather",
            *[None] * (len(parts) - 1),
        ]
        arguments = "".join(part["function"]["arguments"] for part in parts)
        assert arguments == called["function"]["arguments"]
        assert [each["finish_reason"] for each in told][-1] == "tool_calls"


async def test_tool_result_is_sent_to_the_model(rkllm_of: RkllmMaker, way: str) -> None:
    service = service_of(rkllm_of('answer\n  say "\\{seen}"\n'))
    called = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
    }
    turns = [
        *BODY["messages"],
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"celsius": 9}'},
    ]
    told = await prompt_of(service, BODY | {"messages": turns})
    assert '{"celsius": 9}' in told
    assert ("<tool_response>" in told) is (way != "template")


@pytest.mark.usefixtures("template")
async def test_required_tool_call_is_validated(rkllm_of: RkllmMaker) -> None:
    # R39: the answer cannot be constrained, so it is validated and retried once.
    body = BODY | {"tool_choice": "required"}
    refuses, calls = ["I will not."], ['{"name": "weather", "arguments": {}}']
    service = service_of(rkllm_of(in_turn(refuses, refuses, calls)))
    refused = await whole(service, body)
    assert refused["validation"]["valid"] is False
    assert refused["regenerated"]
    assert any("cannot constrain its answers to a schema" in each for each in refused["warnings"])
    assert (await whole(service, body))["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.usefixtures("template")
async def test_reasoning_is_returned_separately(rkllm_of: RkllmMaker) -> None:
    # R39
    text = "<think>\nHm, <b>.\n</think>\n\nYes"
    service = service_of(rkllm_of(in_turn([text], [text], [*text], [*text])))
    body = {"messages": BODY["messages"]}
    for _ in range(2):
        said = await message(service, body)
        assert (said["reasoning_content"], said["content"]) == ("Hm, <b>.\n", "Yes")
        assert await streamed(service, body) == ("Hm, <b>.\n", "Yes")


async def test_template_that_starts_in_reasoning_is_detected(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    # As in DeepSeek-R1: the opening marker is in the prompt, only the closing one is generated.
    write_tokenizer(tmp_path, OPENS)
    service = service_of(rkllm_of(says("Hm.", "</th", "ink>", "Yes")))
    body = {"messages": BODY["messages"]}
    for asked in (body, body | {"n": 2}, body | {"chat_template_kwargs": {"a": 1}}):
        for choice in (await whole(service, asked))["choices"]:
            assert choice["message"]["reasoning_content"] == "Hm."
            assert choice["message"]["content"] == "Yes"
    assert await streamed(service, body) == ("Hm.", "Yes")


async def test_reasoning_requested_by_a_call_is_detected(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, MAY_OPEN)
    service = service_of(rkllm_of(says("Hm.</think>Yes")))
    body = {"messages": BODY["messages"]}
    said = await message(service, body | {"enable_thinking": True})
    assert (said["reasoning_content"], said["content"]) == ("Hm.", "Yes")
    for asked in (body, body | {"enable_thinking": False}):
        assert (await message(service, asked))["content"] == "Hm.</think>Yes"


async def test_template_that_refuses_one_turn_does_not_start_in_reasoning(
    rkllm_of: RkllmMaker, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, "{{ raise_exception('system first') }}")
    assert not (await rkllm_of(says("a")).ready()).starts_in_reasoning


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
    told = await prompt_of(service, {"messages": turns})
    assert "system\nBe kind.\n\nBe short.<|im_end|>" in told
    full = await whole(service, {"messages": turns})
    assert any("at the start, so all of them were joined" in each for each in full["warnings"])
    # A template that takes nothing says so in one sentence.
    write_tokenizer(tmp_path, "{{ raise_exception('no chats') }}")
    with pytest.raises(RequestRejected) as raised:
        await whole(service_of(rkllm_of(says("a"))), {"messages": turns[1:2]})
    failure = error_info(raised.value)
    assert failure.message == "messages: the model's chat template cannot take them: no chats"
    assert failure.param == "messages"
