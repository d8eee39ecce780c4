"""Prepare a call for the engine of its model: its requests, without what the engine cannot do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from engine import Capabilities, Chat, Engine, SamplingParams
from engine.request import Prompt
from engine.schema.grammar import find_schema_violation
from handler.apis.core.best_of import build_requests
from handler.apis.core.parsed_call import ParsedCall
from handler.errors import InvalidRequest
from handler.generation.offload import run_check
from handler.input.constraints import Constraint, build_check
from handler.input.options import add_schema_check
from handler.input.request import TextRequest


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call as its engine can run it, with a request for each candidate of each prompt."""

    call: ParsedCall
    requests: tuple[TextRequest, ...]


async def prepare_call(call: ParsedCall, engine: Engine) -> PreparedCall:
    """Complete a call with what depends on the engine.

    Raises:
        InvalidRequest: the call needs something that the engine does not have.
        EngineError: the engine failed or is not available.
    """
    parameters, constraint = call.parameters, call.constraint
    is_ranked = parameters.candidates > parameters.n
    if constraint or is_ranked or parameters.suffix or parameters.draft_param:
        capabilities = await engine.ready()
        schema_violation = None
        schema = constraint.json_schema if constraint is not None else None
        if schema is not None and capabilities.json_schema:
            # In a thread, because a large schema takes long to check.
            schema_violation = await asyncio.to_thread(find_schema_violation, schema)
        call = await run_check(partial(adapt_call, call, capabilities, schema_violation))
        if capabilities.infill and parameters.suffix:
            texts = [await prompt_text(prompt, engine) for prompt in call.prompts]
            prompts = [await engine.infill(text, parameters.suffix) for text in texts]
            call = replace(call, prompts=tuple(prompts))
    return PreparedCall(call, build_requests(call))


def adapt_call(
    call: ParsedCall, capabilities: Capabilities, schema_violation: str | None = None
) -> ParsedCall:
    """Return the call without what the engine does not support, with warnings about it.

    `schema_violation` is the reason why the engine cannot constrain answers to the schema of this
    call; None if it can.

    Raises:
        InvalidRequest: the call needs a draft model, and none is loaded.
    """
    parameters, constraint = call.parameters, call.constraint
    if (name := parameters.draft_param) is not None and not capabilities.draft:
        raise InvalidRequest(f"{name} needs a draft model, and none is loaded", name)
    if parameters.suffix and not capabilities.infill:
        call = _warn(call, f"suffix is not supported by {capabilities.model} and was ignored")
    if constraint is not None and constraint.json_schema is not None:
        if not capabilities.json_schema:
            call = _check_afterwards(call, constraint, "a schema")
        elif schema_violation is not None:
            call = _check_afterwards(call, constraint, f"this schema ({schema_violation})")
    elif constraint is not None and not capabilities.grammar:
        if constraint.regex is not None:
            call = _check_afterwards(call, constraint, "a regular expression")
        elif constraint.choices:
            call = _check_afterwards(call, constraint, "a choice")
        elif constraint.bad_words:
            call = _check_afterwards(call, constraint, "anything without bad_words")
    if parameters.candidates > parameters.n and not capabilities.max_logprobs:
        # Without log-probabilities `select_best` keeps the first candidates.
        call = _warn(call, "best_of was not ranked, because the engine returns no logprobs")
        if parameters.logprobs is None:
            call = _change_sampling(call, lambda sampling: replace(sampling, logprobs=None))
    return call


async def prompt_text(prompt: Prompt, engine: Engine) -> str:
    """Return a prompt as text. Raises EngineError if token ids cannot be converted."""
    if isinstance(prompt, Chat):
        return await engine.render(prompt)
    return prompt if isinstance(prompt, str) else await engine.detokenize(prompt)


def _check_afterwards(call: ParsedCall, constraint: Constraint, what: str) -> ParsedCall:
    """Check answers against a constraint that the engine cannot hold them to.

    An answer that does not match is generated once more, unless it was streamed.

    Raises:
        InvalidRequest: answers cannot be checked against it either.
    """
    options, warnings = replace(call.options, regenerate=True), tuple[str, ...]()
    if constraint.json_schema is not None:
        options, warnings = add_schema_check(options, constraint.json_schema, constraint.param)
    if (check := build_check(constraint)) is not None:
        options = replace(options, checks={**options.checks, "form": check})
    call = _warn(
        replace(call, validates=True, options=options),
        *warnings,
        f"the engine cannot constrain its answers to {what}: they are checked against it",
    )
    return _change_sampling(
        call, lambda sampling: replace(sampling, json_schema=None, grammar=None)
    )


def _warn(call: ParsedCall, *warnings: str) -> ParsedCall:
    return replace(call, warnings=tuple(dict.fromkeys((*call.warnings, *warnings))))


def _change_sampling(
    call: ParsedCall, change: Callable[[SamplingParams], SamplingParams]
) -> ParsedCall:
    sampling = change(call.parameters.sampling)
    return replace(call, parameters=replace(call.parameters, sampling=sampling))
