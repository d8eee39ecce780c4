"""Read what an answer is held to, by the names that clients use.

OpenAI has `response_format`, vLLM `structured_outputs` and before that `guided_…`, SGLang `regex`
and `ebnf`, llama.cpp `grammar` and `json_schema`. A request may have one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import orjson

from common.json_size import exceeds
from common.value_description import describe_value
from engine import SamplingParams
from engine.schema.client_grammar import (
    build_ban_grammar,
    build_choice_grammar,
    build_regex_grammar,
)
from engine.schema.grammar_cost import MAX_REPETITIONS, count_repetitions, find_cost_violation
from handler.errors import InvalidRequest
from handler.input.text import check_text
from handler.input.unknown_keys import KnownKeys
from validation.options.form import BadWordsCheck, ChoiceCheck, RegexCheck
from validation.verdict import AnswerCheck

# The size of the schema as JSON. The grammar that the engine builds from it grows with it.
MAX_SCHEMA_BYTES = 100_000
MAX_REGEX_CHARS = 10_000
MAX_CHOICES = 1_000
MAX_CHOICES_CHARS = 50_000
MAX_BAD_WORDS = 200
MAX_BAD_WORDS_CHARS = 5_000
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_FORMAT = "response_format"
_OUTPUTS = "structured_outputs"
# Parameters with one constraint as their value, and its kind.
_DIRECT = {
    "bad_words": "bad_words",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}
_OUTPUT_KINDS = ("json", "regex", "choice", "grammar", "json_object")
CONSTRAINT_KEYS = frozenset({_FORMAT, _OUTPUTS, "structural_tag", *_DIRECT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """The constraint that the text of an answer must satisfy: a schema, an expression, some texts
    or a grammar.

    `param` is the parameter of the request. `regex`, `choices` and `bad_words`, which the answer
    must not contain, are as the client wrote them; `grammar` is what the engine gets of them.
    `calls` are the schemas of the arguments by function, for an answer that is any text: a call
    follows them once the model begins one. With `holds_calls` the schema is that of a call, or of
    either a call or an answer that follows `answer_schema`.
    """

    param: str
    json_schema: Mapping[str, Any] | None = None
    regex: str | None = None
    choices: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    grammar: str | None = None
    calls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    holds_calls: bool = False
    answer_schema: Mapping[str, Any] | None = None

    def apply(self, sampling: SamplingParams) -> SamplingParams:
        """Return sampling that an engine holds to this."""
        return replace(sampling, json_schema=self.json_schema, grammar=self.grammar)


def read_constraint(body: Mapping[str, Any], path: str = "") -> Constraint | None:
    """Return what an answer is held to; None if any text is allowed.

    `path` is put before a parameter's name in messages.

    Raises:
        InvalidRequest: a value is wrong, there are several, or it cannot be enforced.
    """
    constraints: list[Constraint] = []
    # Most bodies have none of the parameters.
    for name in sorted(CONSTRAINT_KEYS & body.keys()):
        value = body[name]
        param = path + name
        if value is None or (name == "grammar" and value == ""):
            # llama.cpp's web page sends an empty grammar.
            continue
        if name == "bad_words" and value == []:
            continue
        if name == "structural_tag":
            raise _unsupported_tag(param)
        if name == _FORMAT:
            constraint = read_response_format(value, param)
        elif name == _OUTPUTS:
            constraint = _read_structured_outputs(value, param)
        else:
            constraint = _read(_DIRECT[name], value, param, param)
        if constraint is not None:
            constraints.append(constraint)
    if len(constraints) > 1:
        first, second, *_ = constraints
        raise InvalidRequest(
            f"{second.param} must not come with {first.param.removeprefix(path)}", second.param
        )
    return constraints[0] if constraints else None


def find_constraint_warnings(body: Mapping[str, Any], path: str = "") -> tuple[str, ...]:
    """Return a warning for each member of a constraint that has no effect."""
    warnings: list[str] = []
    for name in (_FORMAT, _OUTPUTS):
        if isinstance(value := body.get(name), Mapping):
            warnings += _known_members(path + name).warnings(value)
    return tuple(warnings)


@lru_cache(maxsize=4)
def _known_members(param: str) -> KnownKeys:
    if param.endswith(_FORMAT):
        return KnownKeys(f"{param}.", ("json_schema", "schema", "type"))
    # Any other member may be a constraint that is not enforced.
    return KnownKeys(f"{param}.", _OUTPUT_KINDS, warns_about_all=True)


def build_check(constraint: Constraint) -> AnswerCheck | None:
    """Return the check of answers that no engine holds to the constraint; None for a grammar.

    Raises:
        InvalidRequest: the expression cannot be checked.
    """
    if constraint.choices:
        return ChoiceCheck(constraint.choices)
    if constraint.bad_words:
        return BadWordsCheck(constraint.bad_words)
    if constraint.regex is None:
        return None
    try:
        return RegexCheck(constraint.regex)
    except ValueError as error:
        raise InvalidRequest(f"{constraint.param}: {error}", constraint.param) from None


def read_response_format(value: Any, param: str) -> Constraint | None:
    """Return what OpenAI's object for the form of an answer holds it to; None for any text.

    Raises:
        InvalidRequest: naming `param`, the client's field of the object.
    """
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = value.get("schema")
        if schema is None:
            return any_object(param)
        return _read_schema(schema, f"{param}.schema", param)
    if kind == "structural_tag":
        raise _unsupported_tag(param)
    if kind != "json_schema":
        raise InvalidRequest(
            f'{param} must be an object with type "text", "json_object" or "json_schema", '
            f"got {describe_value(value)}",
            param,
        )
    named = value.get("json_schema")
    if named is None and isinstance(value.get("schema"), Mapping):
        # As clients of llama.cpp send it.
        return _read_schema(value["schema"], f"{param}.schema", param)
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(schema, Mapping):
        raise InvalidRequest(
            f"{param}.json_schema must be an object with a schema, which is an object, "
            f"got {describe_value(named)}",
            param,
        )
    return _read_schema(schema, f"{param}.json_schema.schema", param)


def _read_structured_outputs(value: Any, param: str) -> Constraint | None:
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f"{param} must be an object with one of {', '.join(_OUTPUT_KINDS)}, "
            f"got {describe_value(value)}",
            param,
        )
    if value.get("structural_tag") is not None:
        raise _unsupported_tag(f"{param}.structural_tag")
    kinds = [kind for kind in _OUTPUT_KINDS if value.get(kind) not in (None, False)]
    if len(kinds) > 1:
        raise InvalidRequest(
            f"{param} must have only one of {', '.join(_OUTPUT_KINDS)}, got {' and '.join(kinds)}",
            param,
        )
    if not kinds:
        return None
    [kind] = kinds
    if kind == "json_object":
        if value[kind] is not True:
            raise InvalidRequest(
                f"{param}.{kind} must be true or false, got {describe_value(value[kind])}", param
            )
        return any_object(param)
    return _read(kind, value[kind], f"{param}.{kind}", param)


def _read(kind: str, value: Any, path: str, param: str) -> Constraint:
    if kind == "json":
        return _read_schema(value, path, param)
    if kind == "choice":
        return _read_choice(value, path, param)
    if kind == "bad_words":
        words = _read_texts(value, path, param, MAX_BAD_WORDS, MAX_BAD_WORDS_CHARS)
        return Constraint(param=param, bad_words=words, grammar=build_ban_grammar(words))
    if not isinstance(value, str) or not value:
        notation = "a grammar in GBNF or Lark" if kind == "grammar" else "a regular expression"
        raise InvalidRequest(f"{path} must be {notation}, got {describe_value(value)}", param)
    check_text(value, param)
    if kind == "grammar":
        return Constraint(param=param, grammar=value)
    if len(value) > MAX_REGEX_CHARS:
        raise InvalidRequest(
            f"{path} must have at most {MAX_REGEX_CHARS} characters, got {len(value)}", param
        )
    if (count := count_repetitions(value)) > MAX_REPETITIONS:
        raise InvalidRequest(
            f"{path} must repeat its parts at most {MAX_REPETITIONS} times, nested counts "
            f"multiplied, got {count}",
            param,
        )
    return Constraint(param=param, regex=value, grammar=build_regex_grammar(value))


def _read_choice(value: Any, path: str, param: str) -> Constraint:
    choices = _read_texts(value, path, param, MAX_CHOICES, MAX_CHOICES_CHARS)
    return Constraint(param=param, choices=choices, grammar=build_choice_grammar(choices))


def _read_texts(
    value: Any, path: str, param: str, max_count: int, max_chars: int
) -> tuple[str, ...]:
    is_list = isinstance(value, list) and 0 < len(value) <= max_count
    if not is_list or not all(isinstance(each, str) and each for each in value):
        raise InvalidRequest(
            f"{path} must be an array of 1 to {max_count} strings that are not empty, "
            f"got {describe_value(value)}",
            param,
        )
    if (chars := sum(map(len, value))) > max_chars:
        raise InvalidRequest(
            f"{path} must have at most {max_chars} characters together, got {chars}", param
        )
    for text in value:
        check_text(text, param)
    return tuple(value)


def _read_schema(value: Any, path: str, param: str) -> Constraint:
    schema = value
    if isinstance(schema, str) and len(schema) <= MAX_SCHEMA_BYTES:
        # vLLM and SGLang take the schema as JSON text too.
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError:
            schema = None
    if not isinstance(schema, Mapping):
        raise _no_schema(value, path, param)
    return read_schema(schema, path, param)


def read_schema(value: Any, path: str, param: str) -> Constraint:
    """Return the constraint to a schema, which is at `path` in the field `param`.

    Raises:
        InvalidRequest: it is no schema, or it is too large.
    """
    if not isinstance(value, Mapping):
        raise _no_schema(value, path, param)
    check_schema(value, path, param)
    check_cost(value, path, param)
    return Constraint(param=param, json_schema=value)


def any_object(param: str) -> Constraint:
    """Return the constraint to any JSON object."""
    return Constraint(param=param, json_schema=_ANY_OBJECT)


def _no_schema(value: Any, path: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{path} must be a JSON Schema, which is an object, got {describe_value(value)}", param
    )


def _unsupported_tag(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{param} is not supported: use json_schema, regex, choice or grammar instead", param
    )


def check_schema(schema: Mapping[str, Any], path: str, param: str) -> None:
    """Check that a schema is not too long and can be encoded for the engine process.

    Raises:
        InvalidRequest: it is too long, or orjson cannot encode it.
    """
    if exceeds(schema, MAX_SCHEMA_BYTES):
        raise InvalidRequest(
            f"{path} must have at most {MAX_SCHEMA_BYTES} bytes, and it has more", param
        )
    try:
        size = len(orjson.dumps(schema))
    except TypeError:
        raise InvalidRequest(
            f"{path} must be of Unicode text, numbers of up to 64 bits and not too many levels",
            param,
        ) from None
    if size > MAX_SCHEMA_BYTES:
        raise InvalidRequest(
            f"{path} must have at most {MAX_SCHEMA_BYTES} bytes, got {size}", param
        )


def check_cost(schema: Mapping[str, Any], path: str, param: str) -> None:
    """Check that a schema's grammar does not take the engine too much time or memory.

    Raises:
        InvalidRequest: the grammar is too large; the message names the field or the total size.
    """
    if (violation := find_cost_violation(schema)) is not None:
        raise InvalidRequest(f"{path} asks for too much: {violation}", param)
