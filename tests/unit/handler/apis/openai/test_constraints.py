"""Constraints of answers, under every name that clients use (R39, R61)."""

from __future__ import annotations

from typing import Any

import pytest

from engine.schema.client_grammar import (
    build_ban_grammar,
    build_choice_grammar,
    build_regex_grammar,
)
from handler.apis.openai.service import OpenAIService
from handler.errors import InvalidRequest
from handler.input.constraints import (
    MAX_SCHEMA_BYTES,
    Constraint,
    find_constraint_warnings,
    read_constraint,
)
from handler.job.job_handler import JobHandler
from tests.unit.handler.apis.openai.calls import (
    COMPLETIONS,
    Complete,
    complete,
    complete_streamed,
)
from tests.unit.handler.conftest import PipelineFactory
from validation.rules import DEFAULT_RULES
from validation.rules_validator import RulesValidator

SCHEMA = {"type": "object", "required": ["a"]}
UNCHECKED_GRAMMAR = (
    ": the scripted engine cannot constrain its answers to a grammar, and they are not checked "
    "against it"
)


def of(schema: Any) -> dict[str, Any]:
    named = {"name": "x", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def schema_of(body: dict[str, Any]) -> Any:
    constraint = read_constraint(body)
    return None if constraint is None else constraint.json_schema


def test_response_format_is_read() -> None:
    assert schema_of({}) is None
    assert schema_of({"response_format": None, "structured_outputs": None, "grammar": ""}) is None
    assert schema_of({"response_format": {"type": "text"}}) is None
    assert schema_of({"response_format": {"type": "json_object"}}) == {"type": "object"}
    assert schema_of(of(SCHEMA)) == SCHEMA
    # As llama.cpp's and Together's clients send it.
    for kind in ("json_object", "json_schema"):
        assert schema_of({"response_format": {"type": kind, "schema": SCHEMA}}) == SCHEMA


JSON_TEXT = '{"type": "object", "required": ["a"]}'
REGEX, CHOICES, GRAMMAR = r"\d+", ["yes", "no"], 'root ::= "yes" | "no"'
NAMES: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: schema}, "json")
        for name in ("guided_json", "json_schema")
        for schema in (SCHEMA, JSON_TEXT)
    ),
    *(({"structured_outputs": {"json": schema}}, "json") for schema in (SCHEMA, JSON_TEXT)),
    *(({name: REGEX}, "regex") for name in ("guided_regex", "regex")),
    ({"structured_outputs": {"regex": REGEX, "json_object": False}}, "regex"),
    ({"guided_choice": CHOICES}, "choice"),
    ({"structured_outputs": {"choice": CHOICES}}, "choice"),
    *(({name: GRAMMAR}, "grammar") for name in ("guided_grammar", "grammar", "ebnf")),
    ({"structured_outputs": {"grammar": GRAMMAR}}, "grammar"),
    ({"structured_outputs": {"json_object": True}}, "object"),
    ({"bad_words": CHOICES}, "bad words"),
]


@pytest.mark.parametrize(("body", "kind"), NAMES)
async def test_constraint_reaches_the_engine_under_every_name(
    body: dict[str, Any], kind: str, pipeline_of: PipelineFactory
) -> None:
    [param] = body
    expected = {
        "json": Constraint(param=param, json_schema=SCHEMA),
        "object": Constraint(param=param, json_schema={"type": "object"}),
        "regex": Constraint(param=param, regex=REGEX, grammar=build_regex_grammar(REGEX)),
        "choice": Constraint(
            param=param, choices=("yes", "no"), grammar=build_choice_grammar(CHOICES)
        ),
        "grammar": Constraint(param=param, grammar=GRAMMAR),
        "bad words": Constraint(
            param=param, bad_words=("yes", "no"), grammar=build_ban_grammar(CHOICES)
        ),
    }[kind]
    assert read_constraint(body) == expected
    able = {"json_schema": True, "grammar": True}
    pipeline = pipeline_of({"pieces": ['{"a": 1}']}, capabilities=able)
    for route, rest in (
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ):
        service = OpenAIService(pipeline)
        call = service.parse_call(route, rest | body)
        full = await service.complete(call)
        sampling = call.parameters.sampling
        assert (sampling.json_schema, sampling.grammar) == (expected.json_schema, expected.grammar)
        assert "warnings" not in full
    job = {"input": {"prompt": "hi", "sampling_params": body}}
    output = await JobHandler(pipeline).run(job)
    assert "error" not in output, output
    assert "warnings" not in output


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"response_format": "json"}, "response_format must be an object with type"),
        ({"response_format": {}}, "response_format must be an object with type"),
        ({"response_format": {"type": "xml"}}, "response_format must be an object with type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema must be"),
        (
            {"response_format": {"type": "json_object", "schema": 5}},
            "response_format.schema must be a JSON Schema, which is an object, got 5",
        ),
        (
            {"response_format": {"type": "structural_tag", "structures": []}},
            "response_format is not supported: use json_schema, regex, choice or grammar",
        ),
        ({"structural_tag": "{}"}, "structural_tag is not supported"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag is"),
        (
            {"structured_outputs": []},
            "structured_outputs must be an object with one of json, regex",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs must have only one of json, regex, choice, grammar, json_object, "
            "got regex and choice",
        ),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object must be true"),
        ({"guided_json": "{"}, "guided_json must be a JSON Schema, which is an object"),
        ({"json_schema": [1]}, "json_schema must be a JSON Schema, which is an object"),
        ({"regex": ""}, 'regex must be a regular expression, got ""'),
        ({"guided_regex": 5}, "guided_regex must be a regular expression, got 5"),
        ({"regex": "a" * 10_001}, "regex must have at most 10000 characters, got 10001"),
        ({"regex": "a{1000000}"}, "regex must repeat its parts at most 10000 times"),
        ({"guided_choice": []}, "guided_choice must be an array of 1 to 1000 strings"),
        ({"guided_choice": ["a", ""]}, "guided_choice must be an array of 1 to 1000 strings"),
        ({"guided_choice": ["a", 1]}, "guided_choice must be an array of 1 to 1000 strings"),
        ({"guided_choice": "ab"}, "guided_choice must be an array of 1 to 1000 strings"),
        ({"guided_choice": ["x" * 50_001]}, "guided_choice must have at most 50000 characters"),
        ({"bad_words": "no"}, "bad_words must be an array of 1 to 200 strings that are not empty"),
        ({"bad_words": ["a", ""]}, "bad_words must be an array of 1 to 200 strings"),
        ({"bad_words": ["a"], "regex": "b"}, "regex must not come with bad_words"),
        ({"regex": "\ud800"}, "regex must be Unicode text"),
        ({"grammar": "\ud800"}, "grammar must be Unicode text"),
        ({"guided_choice": ["a", "\ud800"]}, "guided_choice must be Unicode text"),
        ({"bad_words": ["\ud800"]}, "bad_words must be Unicode text"),
        ({"grammar": {"a": 1}}, "grammar must be a grammar in GBNF or Lark, got"),
        ({"ebnf": GRAMMAR, "regex": "a"}, "regex must not come with ebnf"),
        (
            {"response_format": {"type": "json_object"}, "guided_choice": ["a"]},
            "response_format must not come with guided_choice",
        ),
        (of({"enum": ["x" * MAX_SCHEMA_BYTES]}), "response_format.json_schema.schema must have at"),
        ({"guided_json": {"enum": ["x" * MAX_SCHEMA_BYTES]}}, "guided_json must have at most"),
    ],
)
def test_constraint_that_is_wrong_is_refused(body: dict[str, Any], message: str) -> None:
    for path in ("", "input.sampling_params."):
        with pytest.raises(InvalidRequest) as raised:
            read_constraint(body, path)
        assert raised.value.message.startswith(path + message)
        assert str(raised.value.param).startswith(path)


def test_endless_schema_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"not": deep}
    with pytest.raises(InvalidRequest, match="levels"):
        read_constraint(of(deep))


def test_members_without_an_effect_cause_warnings() -> None:
    body = {
        "structured_outputs": {"regex": "a", "whitespace_pattern": " "},
        "response_format": {"type": "text", "strict": True},
    }
    warnings = find_constraint_warnings(body)
    assert [warning.split()[0] for warning in warnings] == ["structured_outputs.whitespace_pattern"]


@pytest.mark.parametrize("complete_call", [complete, complete_streamed])
async def test_grammar_that_cannot_be_held_causes_a_warning(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    # R16, R77: neither a failure nor an answer without a warning.
    service = OpenAIService(pipeline_of({"pieces": ["maybe"]}))
    for name in ("guided_grammar", "ebnf", "grammar"):
        response = await complete_call(service, COMPLETIONS, {"prompt": "hi", name: GRAMMAR})
        assert response.choices[0].text == "maybe"
        assert response.warnings == [f"{name}{UNCHECKED_GRAMMAR}"]


async def test_job_with_a_grammar_that_cannot_be_held_has_a_warning(
    pipeline_of: PipelineFactory,
) -> None:
    job = {"input": {"prompt": "hi", "sampling_params": {"grammar": GRAMMAR}}}
    output = await JobHandler(pipeline_of({"pieces": ["maybe"]})).run(job)
    assert f"grammar{UNCHECKED_GRAMMAR}" in str(output["warnings"])


@pytest.mark.parametrize("complete_call", [complete, complete_streamed])
async def test_allowed_tokens_that_cannot_be_held_cause_a_warning(
    pipeline_of: PipelineFactory, complete_call: Complete
) -> None:
    # R16
    service = OpenAIService(pipeline_of({"pieces": ["maybe"]}))
    response = await complete_call(service, COMPLETIONS, {"prompt": "hi", "allowed_token_ids": [1]})
    assert response.warnings == [
        "allowed_token_ids is not supported by the scripted engine and was ignored"
    ]


@pytest.mark.parametrize(
    ("constraint", "piece", "issue"),
    [
        ({"regex": r"\d+"}, "42", None),
        ({"regex": r"^\d+$"}, " 42\n", None),
        ({"guided_regex": r"\d+"}, "about 42", r"The answer does not match \d+."),
        ({"guided_choice": ["yes", "no"]}, "no", None),
        ({"guided_choice": ["yes", "no"]}, "No way", "The answer is not one of yes, no."),
        (
            {"structured_outputs": {"choice": list("abcdefg")}},
            "x",
            "The answer is not one of a, b, c, d, e or 2 others.",
        ),
        ({"bad_words": ["no"]}, "yes", None),
        ({"bad_words": ["yes", "no"]}, "I know", "The answer contains 'no'."),
    ],
)
async def test_answer_is_checked_by_an_engine_without_a_grammar(
    constraint: dict[str, Any], piece: str, issue: str | None, pipeline_of: PipelineFactory
) -> None:
    validator = RulesValidator.from_file(DEFAULT_RULES)
    for route, rest in (
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ):
        service = OpenAIService(pipeline_of({"pieces": [piece]}, validator=validator))
        full = await service.complete(service.parse_call(route, rest | constraint))
        [warning] = full["warnings"]
        assert warning.startswith("the engine cannot constrain its answers to a")
        issues = [each for each in full["validation"]["issues"] if "The answer" in each]
        assert issues == ([] if issue is None else [issue])
        assert ("regenerated" in full) is not full["validation"]["valid"]


async def test_expression_that_cannot_be_checked_is_refused(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of())
    call = service.parse_call("/v1/completions", {"prompt": "hi", "regex": r"(?=a)b"})
    with pytest.raises(InvalidRequest, match=r"^regex: The regular expression cannot be used: "):
        await service.complete(call)


@pytest.mark.parametrize(("text", "valid"), [('{"a": 1}', True), ('{"b": 1}', False)])
async def test_answer_is_checked_without_a_grammar(
    text: str, valid: bool, pipeline_of: PipelineFactory
) -> None:
    service = OpenAIService(
        pipeline_of({"pieces": [text]}, validator=RulesValidator.from_file(DEFAULT_RULES))
    )
    body = {"prompt": "hi", **of(SCHEMA)}
    full = await service.complete(service.parse_call("/v1/completions", body))
    assert full["choices"][0]["text"] == text
    assert full["validation"]["valid"] is valid
    assert ("regenerated" in full) is not valid
    assert full["warnings"]


async def test_engine_with_a_grammar_gets_the_schema(pipeline_of: PipelineFactory) -> None:
    service = OpenAIService(pipeline_of({"pieces": ["{}"]}, capabilities={"json_schema": True}))
    call = service.parse_call("/v1/completions", {"prompt": "hi", **of(SCHEMA)})
    full = await service.complete(call)
    assert call.parameters.sampling.json_schema == SCHEMA
    assert "validation" not in full
    assert "warnings" not in full
