"""The page's modules for the parts of an answer and the turns of a chat, in Node.js."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.emulator.console.scripts import copy_modules, run_program

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "One and one?"},
    {"role": "assistant", "content": "I add.", "tool_calls": [CALL, {**CALL, "id": "c2"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "user", "content": "And?"},
]
# The marks of reasoning, each with the reasoning between them, before an answer.
MARKED = (
    "<think>\nhm\n</think>\n\nfour",
    "hm</think>four",
    "[THINK]hm[/THINK]four",
    "<|channel>thought\nhm<channel|>four",
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>four",
    "<seed:think>hm</seed:think>four",
)


def test_turns_keep_calls_and_results_in_every_api(tmp_path: Path) -> None:
    program = f"""
        import {{ turnsOf, turnsToBody }} from "./answer/turns.js";
        const turns = {json.dumps(TURNS)};
        const bodies = ["chat", "response", "message"].map((kind) => turnsToBody(kind, turns));
        console.log(JSON.stringify([bodies, bodies.map(turnsOf)]));
    """
    (chat, response, message), read = run_program(copy_modules(tmp_path), program)
    assert chat == {"messages": TURNS}
    assert [item.get("call_id") for item in response["input"] if "type" in item] == [
        *("c1", "c2"),
        *("c1", "c2"),
    ]
    assert message["system"] == "Be short."
    # Both results are in one turn, as the API demands it.
    assert [each["tool_use_id"] for each in message["messages"][2]["content"]] == ["c1", "c2"]
    text, *calls = message["messages"][1]["content"]
    assert text == {"type": "text", "text": "I add."}
    assert calls[0]["input"] == {"a": 1}
    for turns in read:
        assert [turn["role"] for turn in turns] == [turn["role"] for turn in TURNS]
        assert [turn.get("tool_call_id") for turn in turns[3:5]] == ["c1", "c2"]
        assert [json.loads(call["function"]["arguments"]) for call in turns[2]["tool_calls"]] == [
            {"a": 1},
            {"a": 1},
        ]


def test_reasoning_of_a_job_is_separated_from_its_deltas(tmp_path: Path) -> None:
    program = f"""
        import {{ JobOutput }} from "./jobs/job_output.js";
        const parts = {json.dumps(MARKED)}.map((raw) => {{
          const output = new JobOutput(true);
          const deltas = [...raw];
          for (const text of deltas) output.say(text);
          const choice = {{ text: "four", reasoning: "hm", deltas }};
          output.end({{ output: {{ choices: [choice], usage: {{ input: 1, output: 2 }} }} }});
          const {{ text, reasoning, log }} = output.answer;
          return [reasoning.text(), text.texts, log.text() === raw, output.outcome.raw];
        }});
        console.log(JSON.stringify(parts));
    """
    parts = run_program(copy_modules(tmp_path), program)
    assert parts == [["hm", [*"four"], True, "four"]] * len(MARKED)


def test_answers_of_every_api_are_read_alike(tmp_path: Path) -> None:
    answers = {
        "ofOpenAI": {
            "choices": [
                {"message": {"content": "four", "reasoning_content": "hm", "tool_calls": [CALL]}}
            ]
        },
        "ofResponse": {
            "output": [
                {"type": "reasoning", "summary": [], "content": [{"text": "hm"}]},
                {"type": "message", "content": [{"text": "four"}]},
                {
                    "type": "function_call",
                    "id": "fc",
                    "call_id": "c1",
                    "name": "add",
                    "arguments": '{"a": 1}',
                },
            ]
        },
        "ofMessage": {
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "four"},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            ]
        },
    }
    program = f"""
        import * as outcomes from "./answer/outcome.js";
        const results = Object.entries({json.dumps(answers)}).map(([name, json]) => {{
          const {{ reasoning, text, calls }} = outcomes[name](json, null);
          return [reasoning, text, calls];
        }});
        console.log(JSON.stringify(results));
    """
    for reasoning, text, calls in run_program(copy_modules(tmp_path), program):
        assert (reasoning, text) == ("hm", "four")
        (call,) = calls
        assert (call["id"], call["name"], json.loads(call["arguments"])) == ("c1", "add", {"a": 1})
