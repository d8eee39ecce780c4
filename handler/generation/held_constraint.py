"""Hold the answers of a request to its constraint as far as the engine can, and check the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from engine import Capabilities, Engine
from engine.errors import RequestRejected
from engine.reply.reply import ToolCall
from engine.reply.reply_format import REASONING_ONLY
from engine.schema.call_grammar import build_call_grammar
from engine.schema.client_grammar import prepare_grammar
from engine.schema.grammar import find_schema_violation
from engine.schema.held_schema import HeldSchema, find_held_schema
from handler.errors import InvalidRequest
from handler.input.constraints import Constraint, build_check
from handler.input.options import add_call_check, add_schema_check
from handler.input.request import TextRequest


async def hold_constraint(request: TextRequest, engine: Engine) -> TextRequest:
    """Return the request with the part of its constraint that the engine can hold.

    The rest is named in a warning, and the whole is checked afterwards: an answer that does not
    match is generated once more, unless it is streamed. A grammar cannot be checked; the warning
    says so.

    Raises:
        InvalidRequest: the engine cannot hold any of it, and answers cannot be checked either.
        EngineError: the engine failed or is not available.
    """
    if request.constraint is None:
        return request
    capabilities = await engine.ready()
    # In a thread, because a large schema takes long to try.
    held = await asyncio.to_thread(hold_with, capabilities, request)
    generation = held.generation
    violation = await engine.find_grammar_violation(generation.sampling, generation.priority)
    if violation is None:
        return held
    return await asyncio.to_thread(check_instead, request, request.constraint, violation)


def check_broken(request: TextRequest, after_chars: int) -> TextRequest:
    """Return the request with a check of its answer, which has left the grammar in the middle.

    The answer is there already, so what cannot be checked is only a warning.
    """
    constraint = request.held_constraint
    if constraint is None:
        return request
    reason = f"its library could not follow the grammar after {after_chars} characters"
    try:
        return check_instead(request, constraint, reason)
    except InvalidRequest as error:
        return _warn(request, error.message)


def check_free_calls(request: TextRequest, calls: Sequence[ToolCall]) -> TextRequest:
    """Return the request with a check of its calls if one of them does not fit its strict schema.

    The grammar holds calls in the form that the chat template asks for, and other forms are read
    too. A call that a limit has cut is not looked at.
    """
    constraint = request.held_constraint
    if constraint is None or request.options.call_check is not None:
        return request
    names = constraint.calls.keys() & {call.name for call in calls}
    schemas = {name: constraint.calls[name] for name in names}
    try:
        options, _ = add_call_check(request.options, schemas, constraint.param)
    except InvalidRequest:
        return request
    check = options.call_check
    complete_calls = [call.to_json() for call in calls if call.read_arguments() is not None]
    if check is None or not any(map(check.find_issues, complete_calls)):
        return request
    return check_instead(request, constraint, "the answer has one that does not fit")


def check_instead(request: TextRequest, constraint: Constraint, violation: str) -> TextRequest:
    """Return the request with a check of its answer, because the engine refuses the grammar.

    Raises:
        InvalidRequest: answers cannot be checked against the constraint.
    """
    request = replace(request, constraint=None, held_constraint=None)
    if constraint.calls:
        return _check_calls(request, constraint, violation)
    what = "this schema" if constraint.json_schema is not None else constraint.param
    return _check_afterwards(request, constraint, f"{what} ({violation})")


def hold_with(capabilities: Capabilities, request: TextRequest) -> TextRequest:
    """Return the request for an engine with these capabilities; may take a second."""
    constraint = request.constraint
    if constraint is None:
        return request
    request = replace(request, constraint=None, held_constraint=constraint)
    if constraint.holds_calls and capabilities.tool_choice:
        return _leave_calls(request, constraint)
    if constraint.calls:
        return _hold_calls(capabilities, request, constraint)
    if constraint.json_schema is None:
        if capabilities.grammar:
            return request
        if (what := _name_checkable(constraint)) is not None:
            return _check_afterwards(request, constraint, what)
        return _warn(
            _set_schema(request, None),
            f"{constraint.param}: the {capabilities.backend} engine cannot constrain its answers "
            "to a grammar, and they are not checked against it",
        )
    if not capabilities.json_schema:
        return _check_afterwards(request, constraint, "a schema")
    held = find_held_schema(constraint.json_schema)
    if (violation := find_schema_violation(held.schema)) is not None:
        return _check_afterwards(request, constraint, f"this schema ({violation})")
    return _hold_schema(request, constraint, held)


def _leave_calls(request: TextRequest, constraint: Constraint) -> TextRequest:
    """Leave calls to the engine, which gets the choice of them with the chat.

    An answer that must be a call is checked, and another one is held to its own schema.
    """
    if (schema := constraint.answer_schema) is not None:
        answer = Constraint(param=constraint.param, json_schema=schema)
        return _hold_schema(request, answer, find_held_schema(schema))
    assert constraint.json_schema is not None  # noqa: S101 - the schema of a call
    options, warnings = add_schema_check(request.options, constraint.json_schema, constraint.param)
    request = _set_schema(replace(request, validation=True, options=options), None)
    return _warn(request, *warnings)


def _hold_calls(
    capabilities: Capabilities, request: TextRequest, constraint: Constraint
) -> TextRequest:
    """Hold the calls that a model begins to the schemas of their functions."""
    reply_format = request.reply_format or REASONING_ONLY
    form = reply_format.tool_form or capabilities.call_form
    if not capabilities.grammar:
        return _check_calls(
            request, constraint, f"the {capabilities.backend} engine has no grammars"
        )
    if form is None:
        return _check_calls(
            request, constraint, "there is no grammar for the model's form of calls"
        )
    several = reply_format.parallel_calls
    grammar = build_call_grammar(constraint.calls, form, several=several)
    if grammar is None:
        return _check_calls(
            request, constraint, f"there is no grammar for calls of the form {form}"
        )
    try:
        prepare_grammar(grammar.text)
    except RequestRejected as error:
        return _check_calls(request, constraint, error.message)
    sampling = replace(request.generation.sampling, grammar=grammar.text)
    request = replace(request, generation=replace(request.generation, sampling=sampling))
    if not grammar.left_out:
        return request
    return _check_calls(request, constraint, f"not held: {', '.join(grammar.left_out)}")


def _check_calls(request: TextRequest, constraint: Constraint, reason: str) -> TextRequest:
    sentence = f"{constraint.param}: calls cannot be held to all strict schemas ({reason})"
    try:
        options, warnings = add_call_check(request.options, constraint.calls, constraint.param)
    except InvalidRequest as error:
        return _warn(request, f"{sentence}, and they are not checked: {error.message}")
    return _warn(
        replace(request, validation=True, options=options),
        f"{sentence}: their arguments are checked afterwards",
        *warnings,
    )


def _name_checkable(constraint: Constraint) -> str | None:
    """Return what answers can be checked against afterwards; None for a grammar of the client."""
    if constraint.regex is not None:
        return "a regular expression"
    if constraint.choices:
        return "a choice"
    return "anything without bad_words" if constraint.bad_words else None


def _hold_schema(request: TextRequest, constraint: Constraint, held: HeldSchema) -> TextRequest:
    """Hold answers to a part of a schema, and check the whole if that is less."""
    request = _set_schema(request, held)
    if not held.left_out or constraint.json_schema is None:
        return request
    names = ", ".join(held.left_out)
    try:
        options, warnings = add_schema_check(
            request.options, constraint.json_schema, constraint.param
        )
    except InvalidRequest as error:
        sentence = f"the engine cannot hold answers to {names}, and they are not checked"
        return _warn(request, f"{constraint.param}: {sentence}: {error.message}")
    return _warn(
        replace(request, validation=True, options=options),
        f"{constraint.param}: the engine cannot hold answers to {names}: they are checked "
        "afterwards",
        *warnings,
    )


def _check_afterwards(request: TextRequest, constraint: Constraint, what: str) -> TextRequest:
    """Check answers against a constraint that the engine cannot hold them to.

    Raises:
        InvalidRequest: answers cannot be checked against it either.
    """
    options, warnings = replace(request.options, regenerate=True), tuple[str, ...]()
    if constraint.json_schema is not None:
        options, warnings = add_schema_check(options, constraint.json_schema, constraint.param)
    elif (check := build_check(constraint)) is not None:
        options = replace(options, checks={**options.checks, "form": check})
    else:
        raise InvalidRequest(
            f"{constraint.param}: the engine cannot constrain its answers to {what}, and they "
            "cannot be checked against it",
            constraint.param,
        )
    request = _set_schema(replace(request, validation=True, options=options), None)
    return _warn(
        request,
        *warnings,
        f"the engine cannot constrain its answers to {what}: they are checked against it",
    )


def _set_schema(request: TextRequest, held: HeldSchema | None) -> TextRequest:
    """Return the request with another schema, without a grammar; None for neither."""
    schema = None if held is None else held.schema
    sampling = replace(request.generation.sampling, json_schema=schema, grammar=None)
    return replace(request, generation=replace(request.generation, sampling=sampling))


def _warn(request: TextRequest, *warnings: str) -> TextRequest:
    return replace(request, warnings=tuple(dict.fromkeys((*request.warnings, *warnings))))
