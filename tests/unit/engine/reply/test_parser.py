"""A model's output taken apart: the same parts however the output was cut (R24, R39, R72)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

import pytest

from engine.reply.calls.formats import CALL_FORMS
from engine.reply.parser import ReplyParser
from engine.reply.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from engine.reply.reply import Reply
from engine.reply.reply_format import REASONING_ONLY, ReplyFormat, ToolForm
from tests.written_calls import FUNCTIONS, WRITERS

FORMAT = ReplyFormat(functions=FUNCTIONS)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TIME_CALL = '<tool_call>{"name": "time", "parameters": {}}</tool_call>'


def parse(
    pieces: Sequence[str], reply_format: ReplyFormat = FORMAT, *, starts_in_reasoning: bool = False
) -> tuple[Reply, list[Part]]:
    """Return the reply and its parts, which must add up to it."""
    parser = ReplyParser(reply_format, starts_in_reasoning=starts_in_reasoning)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.close()
    reply = parser.reply()
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    assert "".join(texts) == reply.text
    thoughts = [part.text for part in parts if isinstance(part, ReasoningPart)]
    assert "".join(thoughts) == reply.reasoning
    starts = [part for part in parts if isinstance(part, CallStart)]
    assert [(part.index, part.id, part.name) for part in starts] == [
        (index, call.id, call.name) for index, call in enumerate(reply.calls)
    ]
    for index, call in enumerate(reply.calls):
        pieces = [p.text for p in parts if isinstance(p, CallArguments) and p.index == index]
        assert "".join(pieces) == call.arguments
    return reply, parts


def read(output: str, reply_format: ReplyFormat = FORMAT, **options: bool) -> Reply:
    """Return the reply of an output, which must not change if the output comes by characters."""
    reply, _ = parse([output], reply_format, **options)
    single, _ = parse(list(output), reply_format, **options)
    assert summary(single) == summary(reply)
    for at, character in enumerate(reply.text):
        assert output[reply.output_position(at)] == character
    return reply


def summary(reply: Reply) -> tuple[str, str, list[tuple[str, str]]]:
    return reply.reasoning, reply.text, [(call.name, call.arguments) for call in reply.calls]


def calls_of(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.calls]


# -- forms of calls -----------------------------------------------------------------------------

TWO_CALLS = [
    ("weather", {"city": 'Köln "a" \\ {[<', "days": 3, "exact": True, "places": ["a", 1.5, None]}),
    ("time", {}),
]
NESTED = [("weather_at", {"limits": {"a": [{"b": False}], "c": {}}, "text": "two\nlines"})]


@pytest.mark.parametrize("calls", [TWO_CALLS, NESTED, TWO_CALLS[1:]], ids=["two", "nested", "none"])
@pytest.mark.parametrize("form", WRITERS)
def test_calls_of_each_form_are_read(form: str, calls: list[tuple[str, Any]]) -> None:
    family, write = WRITERS[form]
    reply = read(write(calls))
    assert (calls_of(reply), reply.text) == (calls, "")
    # Text around them stays.
    around = read(f"Let me see.\n\n{write(calls)}\n\nThat is all.")
    assert calls_of(around) == calls
    assert around.text.split() == ["Let", "me", "see.", "That", "is", "all."]
    # TOOL_PARSER can name the family.
    named = ReplyFormat(functions=FUNCTIONS, tool_form=family)
    assert calls_of(read(write(calls), named)) == calls


@pytest.mark.parametrize("form", WRITERS)
def test_calls_of_unknown_functions_are_text(form: str) -> None:
    output = WRITERS[form][1]([("unknown", {"city": "Oslo"})])
    reply = read(output)
    assert (reply.text, reply.calls) == (output, ())


@pytest.mark.parametrize("form", WRITERS)
def test_calls_are_text_without_functions(form: str) -> None:
    output = WRITERS[form][1](TWO_CALLS)
    assert read(output, REASONING_ONLY).text == output


@pytest.mark.parametrize("form", WRITERS)
def test_arguments_are_returned_while_they_are_written(form: str) -> None:
    if form in ("arguments_first", "arguments_as_string"):
        # The parser returns such a call only at its end.
        return
    long_text = "word " * 200
    output = WRITERS[form][1]([("weather", {"text": long_text})])
    parser = ReplyParser(FORMAT)
    parts = parser.push(output[: len(output) // 2])
    assert isinstance(parts[0], CallStart)
    if form not in ("llama_pythonic", "llama_4"):
        assert len(parts[-1].text) > 300  # type: ignore[union-attr]


@pytest.mark.parametrize("form", WRITERS)
def test_call_that_a_limit_cuts_has_partial_arguments(form: str) -> None:
    output = WRITERS[form][1]([("weather", {"city": "Köln am Rhein", "days": 3})])
    reply = read(output[: output.index("am Rhein")])
    if form in ("arguments_first", "arguments_as_string"):
        # The parser returns such a call only at its end.
        assert not reply.calls
        return
    [call] = reply.calls
    assert call.name == "weather"
    assert call.arguments.startswith('{"city"')
    assert "days" not in call.arguments
    assert reply.text == ""


def test_only_one_family_is_read_if_one_is_named() -> None:
    assert {form.family for form in CALL_FORMS} == set(get_args(ToolForm))
    for family in get_args(ToolForm):
        reply_format = ReplyFormat(functions=FUNCTIONS, tool_form=family)
        for form_family, write in WRITERS.values():
            output = write(TWO_CALLS)
            calls = read(output, reply_format).calls
            if form_family == family:
                assert len(calls) == 2
            elif family not in ("json", "llama", "mistral"):
                # An array of JSON follows some marks, and is a call without them too.
                assert not calls or form_family in ("hermes", "qwen_xml", "phi4")
    constrains_calls = ReplyFormat(functions=FUNCTIONS, tool_form="qwen_xml", constrains_calls=True)
    assert calls_of(read('{"name": "time", "arguments": {}}', constrains_calls)) == [("time", {})]


@pytest.mark.parametrize(
    ("output", "arguments"),
    [
        ('{"name": "weather", "arguments": {"city": "Oslo",}}', '{"city": "Oslo"}'),
        ('{"name": "weather", "arguments": {"places": [1, 2, ],},}', '{"places": [1, 2]}'),
        ('{"name": "weather", "arguments": {"city": "a,}"}}', '{"city": "a,}"}'),
        ('<tool_call>{"name": "weather", "arguments": {"a": 1}</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "weather", "arguments": {"a": [1</tool_call>', '{"a": [1'),
        ('{"name": "time"}', "{}"),
        ('{"name": "time", "arguments": null}', "{}"),
        ('{"id": "c1", "name": "time", "parameters": {"a": 1}, "index": 0}', '{"a": 1}'),
        ('{"function": "time", "arguments": {"a": 1}}', '{"a": 1}'),
        ("<function=weather><parameter=days>3</parameter></function>", '{"days":3}'),
        ("<function=weather><parameter=days>three</parameter></function>", '{"days":"three"}'),
        ("<function=weather><parameter=exact>True</parameter></function>", '{"exact":true}'),
        ("<function=weather>\n<parameter=city>\n7\n</parameter>\n</function>", '{"city":"7"}'),
        ("<function=weather><parameter=unit>\nnull\n</parameter></function>", '{"unit":null}'),
        ("<function=time></function>", "{}"),
        (
            "<function=odd><parameter=a>1</parameter><parameter=b>1</parameter></function>",
            '{"a":1,"b":"1"}',
        ),
        ("<tool_call><function=weather><parameter=city>a</tool_call>", '{"city":"a"}'),
        ("[time(a=-1, b=(1, 2), c=true)]", '{"a":-1,"b":[1,2],"c":true}'),
        ('<|tool_call>call:time{"a":"b",c:<|"|>d<|"|>,}<tool_call|>', '{"a":"b","c":"d"}'),
    ],
)
def test_arguments_are_made_valid_where_models_are_careless(output: str, arguments: str) -> None:
    odd = {"properties": {"a": {"type": [{}, "integer"], "anyOf": 5}, "b": {"oneOf": [7]}}}
    reply = read(output, ReplyFormat(functions=FUNCTIONS | {"odd": odd}))
    assert [call.arguments for call in reply.calls] == [arguments]
    assert reply.text == ""


@pytest.mark.parametrize(
    "output",
    [
        " a {b} <c>\n",
        "<tool_call>{broken}</tool_call> and more",
        "<tool_call> never closed",
        '{"answer": 42}',
        '{"name": "Bob", "age": 3}',
        '{"name": "weather", "age": 3}',
        '{"name": "wea',
        '{"name": "weather", "argum',
        "{not json",
        "[TOOL_CALLS] nothing",
        "[time(the clock)]",
        "[1, 2]",
        "time[0]",
        "```json\n[1]\n```",
        "functools.partial",
        "call:weather{}",
        "The mark is </think>.",
        "Say <think> to think.",
    ],
)
def test_text_that_is_no_call_stays_as_it_is(output: str) -> None:
    reply = read(output)
    assert (reply.text, reply.reasoning, reply.calls) == (output, "", ())


def test_text_between_and_after_calls_stays() -> None:
    reply = read(f"One {CALL} two {TIME_CALL} three ")
    assert reply.text == "One two three "
    assert calls_of(reply) == [("weather", {"city": "Köln"}), ("time", {})]


def test_only_one_call_without_parallel_tool_calls() -> None:
    single = ReplyFormat(functions=FUNCTIONS, parallel_calls=False)
    reply = read(f"{CALL}{TIME_CALL}", single)
    assert calls_of(reply) == [("weather", {"city": "Köln"})]


def test_text_is_returned_immediately() -> None:
    parser = ReplyParser(FORMAT)
    assert parser.push("Hello") == [TextPart("Hello", 0)]
    assert parser.push(" there <tool") == [TextPart(" there", 5)]
    assert parser.push("s>") == [TextPart(" <tools>", 11)]


# -- reasoning ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "reasoning", "text"),
    [
        ("<think>\nHm, <b>\n</think>\n\nYes.", "Hm, <b>\n", "Yes."),
        ("\n<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("<think>Hm.", "Hm.", ""),
        ("<thinking>Hm.</thinking> Yes.", "Hm.", "Yes."),
        ("[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        ("<|channel>thought\nHm.<channel|>Yes.", "Hm.", "Yes."),
        (
            "<|channel|>analysis<|message|>Hm.<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Yes.",
            "Hm.",
            "Yes.",
        ),
        ("<|channel|>final<|message|>Yes.", "", "Yes."),
        (f"<think>Use {TIME_CALL}?</think>{TIME_CALL}", f"Use {TIME_CALL}?", ""),
        ("<think>Hm.</think>Say <think>.", "Hm.", "Say <think>."),
    ],
)
def test_reasoning_is_separated_from_the_text(output: str, reasoning: str, text: str) -> None:
    for reply_format in (FORMAT, REASONING_ONLY):
        reply = read(output, reply_format)
        if TIME_CALL not in output:
            assert (reply.reasoning, reply.text) == (reasoning, text)
    assert (read(output).reasoning, read(output).text) == (reasoning, text)


@pytest.mark.parametrize(
    "output", ["Hm.</think>Yes.", "\nHm.</think>\n\nYes.", "<think>Hm.</think>Yes."]
)
def test_reasoning_that_the_prompt_has_opened(output: str) -> None:
    reply = read(output, starts_in_reasoning=True)
    assert (reply.reasoning, reply.text) == ("Hm.", "Yes.")


def test_output_span_locates_text_in_the_output() -> None:
    output = f"<think>Hm.</think>\n\nOne {CALL} two"
    reply = read(output)
    assert reply.text == "One two"
    start, end = reply.output_span(reply.text.index("two"), len(reply.text))
    assert output[start:end] == "two"
    assert reply.output_span(0, 0) == (output.index("One"), output.index("One"))
