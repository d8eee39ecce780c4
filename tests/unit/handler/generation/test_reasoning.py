"""Validation reads the answer, not the model's reasoning (R72): jobs and chats, streamed or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from engine import Chat
from handler.apis.openai.events import stream_events
from handler.apis.openai.service import OpenAIService
from handler.apis.openai.tools import read_tools
from handler.errors import InvalidRequest
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from tests.unit.handler.conftest import PipelineFactory
from validation.rules import DEFAULT_RULES
from validation.rules_validator import RulesValidator

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA = {"json_schema": CITY, "regenerate": True}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
MESSAGES = [{"role": "user", "content": "Where?"}]


@pytest.fixture
def thinker(pipeline_of: PipelineFactory) -> Any:
    """Builds a pipeline with the real rules, whose model writes these pieces."""

    def build(*pieces: str, **config: Any) -> Pipeline:
        validator = RulesValidator.from_file(DEFAULT_RULES)
        return pipeline_of({"pieces": list(pieces)}, validator=validator, **config)

    return build


async def run_job(pipeline: Pipeline, **fields: Any) -> dict[str, Any]:
    job_input = fields if "messages" in fields else {"prompt": "Where?", **fields}
    output = await JobHandler(pipeline).run({"id": "j", "input": job_input})
    assert "error" not in output, output
    assert isinstance(output, dict)
    return output


async def run_chat(pipeline: Pipeline, *, stream: bool, **fields: Any) -> dict[str, Any]:
    """The message, the finish reason and the verdict of a chat, however it was sent."""
    service = OpenAIService(pipeline)
    body = {"messages": MESSAGES, "temperature": 1, "enable_validation": True, **fields}
    call = service.parse_call("/v1/chat/completions", body | {"stream": stream})
    if not stream:
        full = await service.complete(call)
        [choice] = full["choices"]
        message = choice["message"]
        return {
            **full,
            "content": message["content"] or "",
            "reasoning": message.get("reasoning_content", ""),
            "calls": [called["function"] for called in message.get("tool_calls", ())],
        }
    async with await service.open_stream(call) as generation:
        blocks = b"".join([block async for block in stream_events(call, generation)])
    lines = [line.removeprefix(b"data: ") for line in blocks.split(b"\n\n") if line]
    chunks = [orjson.loads(line) for line in lines[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    merged = {
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning": "".join(delta.get("reasoning_content", "") for delta in deltas),
    }
    calls: list[dict[str, str]] = []
    for part in (part for delta in deltas for part in delta.get("tool_calls", ())):
        if part["index"] == len(calls):
            calls.append(part["function"])
        else:
            calls[-1]["arguments"] += part["function"]["arguments"]
    last: dict[str, Any] = chunks[-1]
    return last | merged | {"calls": calls}


THOUGHTS = [
    (["<think>hm</think>\n", '{"city": "Oslo"}'], {}),
    (["<think>", '{"city": 1}?', "</think>\n\n", '{"city": "Oslo"}'], {}),
    (["hm</think>", '{"city": "Oslo"}'], {"capabilities": {"starts_in_reasoning": True}}),
    (['<thinking>{"a": 1}</thinking>```json\n{"city": "Oslo"}\n```'], {}),
    (['{"city": "Oslo", "note": "</think>"}'], {}),
]


@pytest.mark.parametrize(("pieces", "config"), THOUGHTS)
async def test_schema_is_that_of_the_text_after_the_reasoning(
    pieces: Sequence[str], config: dict[str, Any], thinker: Any
) -> None:
    raw = "".join(pieces)
    for stream in (False, True):
        output = await run_job(
            thinker(*pieces, **config),
            messages=MESSAGES,
            stream=stream,
            sampling_params={"temperature": 1},
            validation=SCHEMA,
        )
        [choice] = output["choices"]
        assert output["validation"]["issues"] == []
        assert "regenerated" not in output
        assert '"city": "Oslo"' in choice["text"]
        assert ("reasoning" in choice) is (raw[0] != "{")
        if stream:
            assert "".join(choice["deltas"]) == "".join(choice["tokens"]) == raw
        else:
            assert choice["tokens"] == [choice["text"]]
        chat = await run_chat(thinker(*pieces, **config), stream=stream, validation=SCHEMA)
        assert chat["validation"]["valid"]
        assert '"city": "Oslo"' in chat["content"]
        assert chat["reasoning"] == choice.get("reasoning", "")


@pytest.mark.parametrize(
    "pieces", [["<think>hm</think>It is Oslo."], ['<think>{"city": "Oslo"}</think>{"city": 1}']]
)
async def test_schema_issues_of_the_text_are_reported(pieces: list[str], thinker: Any) -> None:
    output = await run_job(thinker(*pieces), validation={"json_schema": CITY})
    assert not output["validation"]["valid"]
    for stream in (False, True):
        chat = await run_chat(thinker(*pieces), stream=stream, validation={"json_schema": CITY})
        assert not chat["validation"]["valid"]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("Assistant: The city is Oslo.", "The city is Oslo."),
        ("Sure! Here is the answer you asked for:\n\nThe city is Oslo.", "The city is Oslo."),
    ],
)
async def test_text_after_the_reasoning_is_cleaned(text: str, cleaned: str, thinker: Any) -> None:
    plain = await run_job(thinker(text))
    output = await run_job(thinker(f"<think>hm</think>\n\n{text}"))
    [choice] = output["choices"]
    assert choice["text"] == plain["choices"][0]["text"] == cleaned
    assert choice["reasoning"] == "hm"
    assert output["validation"]["sanitized"]
    # Spans count characters of the whole output.
    raw = f"<think>hm</think>\n\n{text}"
    for removal in output["validation"]["details"]["removed"]:
        start, end = removal["span"]
        assert start >= raw.index(text)
        assert raw[start:end].strip()
        assert raw[start:end] not in cleaned
    chat = await run_chat(thinker(f"<think>hm</think>\n\n{text}"), stream=False)
    assert (chat["content"], chat["reasoning"]) == (cleaned, "hm")


async def test_long_reasoning_does_not_make_an_answer_long(thinker: Any) -> None:
    output = await run_job(thinker("<think>" + "word " * 4000 + "</think>", "It is Oslo."))
    assert output["validation"]["details"]["issues"] == []
    assert output["choices"][0]["text"] == "It is Oslo."
    assert "sanitized" in output["validation"]
    assert not output["validation"]["sanitized"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pieces", [["<think>", "It may", " be"], ["<think>Oslo?</think>", "\n\n"]])
async def test_reasoning_without_a_text_is_an_empty_answer(
    pieces: list[str], stream: bool, thinker: Any
) -> None:
    output = await run_job(
        thinker(*pieces), stream=stream, sampling_params={"max_tokens": len(pieces)}
    )
    [choice] = output["choices"]
    assert choice["text"] == ""
    assert choice["reasoning"]
    [issue] = output["validation"]["details"]["issues"]
    assert issue["rule"] == "empty"
    chat = await run_chat(thinker(*pieces), stream=stream, max_tokens=len(pieces))
    assert not chat["validation"]["valid"]


@pytest.mark.parametrize("stream", [False, True])
async def test_personal_data_in_the_reasoning_is_redacted(stream: bool, thinker: Any) -> None:
    pieces = ["<think>ask jo@exa", "mple.com</think>", "I wrote to jo@example.com about it."]
    output = await run_job(thinker(*pieces), stream=stream, validation={"redact_pii": True})
    assert "jo@" not in orjson.dumps(output).decode()
    assert output["choices"][0]["reasoning"] == "ask [email]"
    assert output["choices"][0]["text"] == "I wrote to [email] about it."
    assert output["redacted"] == {"email": 2}


# -- tool calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_call_without_a_text_is_not_an_empty_answer(stream: bool, thinker: Any) -> None:
    chat = await run_chat(thinker("<think>hm</think>", CALL), stream=stream, tools=[WEATHER])
    assert chat["validation"]["valid"]
    assert chat["choices"][0]["finish_reason"] == "tool_calls" or stream
    assert chat["calls"] == [{"name": "weather", "arguments": '{"city": "Oslo"}'}]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (CALL, True),
        (f"<think>Where?</think>\n{CALL}", True),
        (f"Let me see. {CALL}", True),
        (f"{CALL}\n{CALL}", True),
        ('[TOOL_CALLS][{"name": "weather", "parameters": {"city": "Oslo"}}]', True),
        (CALL.replace("city", "town"), False),
        (f"{CALL}\n{CALL.replace('city', 'town')}", False),
        (CALL.replace("weather", "other"), False),
        ("I will not.", False),
    ],
)
async def test_calls_that_are_required_are_checked(text: str, fits: bool, thinker: Any) -> None:
    # R39: on an engine that cannot be held to a schema.
    for stream in (False, True):
        chat = await run_chat(thinker(text), stream=stream, tools=[WEATHER], tool_choice="required")
        assert chat["validation"]["valid"] is fits
        assert len(set(chat["validation"]["issues"])) == len(chat["validation"]["issues"])


async def test_schema_of_a_text_is_not_that_of_its_calls(thinker: Any) -> None:
    parameters = {"tools": [WEATHER], "validation": {"json_schema": {"type": "array"}}}
    chat = await run_chat(thinker(CALL), stream=False, **parameters)
    assert chat["validation"]["valid"]
    chat = await run_chat(thinker(f"It is Oslo. {CALL}"), stream=False, **parameters)
    assert not chat["validation"]["valid"]


async def test_completions_are_checked_as_they_are(thinker: Any) -> None:
    service = OpenAIService(thinker('<think>Hm</think>{"city": "Oslo"}'))
    body = {"prompt": "x", "enable_validation": True, "validation": {"json_schema": CITY}}
    full = await service.complete(service.parse_call("/v1/completions", body))
    assert not full["validation"]["valid"]
    assert full["choices"][0]["text"] == '<think>Hm</think>{"city": "Oslo"}'


def test_reply_format_has_the_schemas_of_the_functions() -> None:
    tools = read_tools(
        {"tools": [WEATHER], "parallel_tool_calls": False, "tool_choice": "required"}
    )
    reply_format = tools.build_reply_format(None)
    assert reply_format.functions == {"weather": CITY}
    assert (reply_format.parallel_calls, reply_format.constrains_calls) == (False, True)


# -- reasoning that the prompt opens ------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_template_with_variables_decides_whether_reasoning_is_open(
    stream: bool, thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The template would open it, but not with these variables.
    monkeypatch.setattr("engine.preparation.starts_in_reasoning", lambda prompt: False)
    able = {"capabilities": {"starts_in_reasoning": True}}
    parameters = {"chat_template_kwargs": {"enable_thinking": False}}
    chat = await run_chat(thinker("Oslo it is.", **able), stream=stream, **parameters)
    assert (chat["content"], chat["reasoning"]) == ("Oslo it is.", "")
    chat = await run_chat(thinker("Hm.</think>Oslo it is.", **able), stream=stream)
    assert (chat["content"], chat["reasoning"]) == ("Oslo it is.", "Hm.")


async def test_prompt_that_opens_the_reasoning_itself(thinker: Any) -> None:
    prompt = "<|user|>Where?<|assistant|><think>\n"
    output = await run_job(thinker("Hm.</think>Oslo it is."), prompt=prompt)
    [choice] = output["choices"]
    assert (choice["text"], choice["reasoning"]) == ("Oslo it is.", "Hm.")


# -- the effort ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "variables"),
    [
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "thinking": False}),
        (
            {"reasoning_effort": "high"},
            {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
        ),
        ({"reasoning_effort": None}, {}),
        # The more specific parameter wins.
        (
            {"reasoning_effort": "none", "enable_thinking": True},
            {"enable_thinking": True, "thinking": False},
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}},
            {"enable_thinking": False, "thinking": True},
        ),
    ],
)
def test_effort_becomes_variables_of_the_template(
    body: dict[str, Any], variables: dict[str, Any], thinker: Any
) -> None:
    call = OpenAIService(thinker("a")).parse_call(
        "/v1/chat/completions", {"messages": MESSAGES, **body}
    )
    prompt = call.parsed.prompts[0]
    assert isinstance(prompt, Chat)
    assert prompt.template_kwargs == variables
    assert call.parsed.warnings == ()


@pytest.mark.parametrize("effort", ["max", "", 1, ["none"], True])
def test_unknown_effort_is_refused(effort: Any, thinker: Any) -> None:
    body = {"messages": MESSAGES, "reasoning_effort": effort}
    with pytest.raises(InvalidRequest, match="reasoning_effort must be one of none, minimal, low"):
        OpenAIService(thinker("a")).parse_call("/v1/chat/completions", body)


def test_effort_is_only_for_chats(thinker: Any) -> None:
    body = {"prompt": "x", "reasoning_effort": "none"}
    call = OpenAIService(thinker("a")).parse_call("/v1/completions", body)
    assert call.parsed.warnings == ("reasoning_effort is only for chats and was ignored",)
