"""One OpenAI call: its requests to the engine, and the encoding of its response."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from engine import Capabilities, Delta, Priority, SamplingParams
from handler.apis.core.field_names import FieldNames
from handler.apis.openai.best_of import (
    build_requests,
    check_generation_count,
    select_best,
)
from handler.apis.openai.body_keys import BODY_KEYS
from handler.apis.openai.choice_encoder import encode_choice
from handler.apis.openai.chunk_encoder import ChunkEncoder
from handler.apis.openai.dialect import OPENAI, Dialect
from handler.apis.openai.echo import NO_ECHO, Echo
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.apis.openai.models import read_model
from handler.apis.openai.parameters import read_parameters
from handler.apis.openai.usage import read_include_usage, total_usage
from handler.errors import InvalidRequest
from handler.generation.completed_answer import CompletedAnswer
from handler.input.constraints import Constraint, build_check, find_constraint_warnings
from handler.input.options import NO_DEFAULTS, OptionsReader
from handler.input.reasoning_budget import read_reasoning_budget
from handler.input.request import TextRequest, read_flag
from handler.reply.reply_format import ToolForm
from handler.response import encode_verdict
from validation import Options


class OpenAICall:
    """A call, from its parsed body to its response, streamed or not.

    There is one of the `requests` for each candidate of each prompt, in order, and a choice for
    each of the best candidates. `echoes` and `starts_in_reasoning` depend on the engine; the
    service sets them. Not thread-safe; used by the task that answers the call.

    Raises:
        InvalidRequest: naming the parameter that is wrong.
        ModelNotFound: the requested model is neither the served model nor one of its adapters.
    """

    def __init__(
        self,
        spec: EndpointSpec,
        body: Mapping[str, Any],
        served: str,
        max_tokens: int | None,
        options: OptionsReader = NO_DEFAULTS,
        dialect: Dialect = OPENAI,
        *,
        stream_multi_prompt: bool = False,
        tool_form: ToolForm | None = None,
        priority: Priority = Priority.INTERACTIVE,
        adapters: Sequence[str] = (),
        aliases: Sequence[str] = (),
    ) -> None:
        self.spec = spec
        self.dialect = dialect
        self._model = read_model(body, served, dialect, adapters, aliases)
        self.prompts = spec.read_prompts(body)
        self.response_mode = spec.read_response_mode(body)
        reply_format = self.response_mode.reply_format
        if reply_format is not None:
            reply_format = replace(reply_format, tool_form=tool_form)
        self.parameters = read_parameters(
            spec.input_model, body, dialect, max_tokens, self.response_mode.constraint
        )
        if self._model != served:
            sampling = replace(self.parameters.sampling, lora=self._model)
            self.parameters = replace(self.parameters, sampling=sampling)
        self.streaming = self.parameters.streaming
        if self.streaming and len(self.prompts) > 1 and not stream_multi_prompt:
            raise InvalidRequest("Streaming is only supported for single prompts", "prompt")
        self.id = f"{spec.id_prefix}-{os.urandom(16).hex()}"
        self._options = options
        self._validation = body.get("validation")
        options_read, option_warnings = self._read_options(self._validation)
        self._create_request = partial(
            TextRequest,
            streaming=self.streaming,
            # Off by default, because validation is not part of OpenAI's API.
            validation=read_flag(body, "enable_validation", default=False),
            options=options_read,
            warnings=(
                *BODY_KEYS[spec.input_model].warnings(body),
                *self.parameters.warnings,
                *find_constraint_warnings(body),
                *option_warnings,
            ),
            returns_logprobs=self.parameters.logprobs is not None,
            reply_format=reply_format,
            reasoning_budget=read_reasoning_budget(body),
        )
        self.priority = priority
        # Timeout of each generation; None for the engine's own.
        self.timeout_s: float | None = None
        self._requests: tuple[TextRequest, ...] | None = None
        check_generation_count(self.prompts, self.parameters)
        self._include_usage = read_include_usage(body, dialect, streaming=self.streaming)
        # One for each prompt; the service sets them if the call has `echo`.
        self.echoes: Sequence[Echo] = [NO_ECHO] * len(self.prompts)
        # Set by the service when the generations of a stream have started.
        self.starts_in_reasoning = False

    @property
    def requests(self) -> tuple[TextRequest, ...]:
        """One request for each candidate of each prompt; built on first use."""
        if self._requests is None:
            self._requests = build_requests(
                self.id,
                self._create_request,
                self.prompts,
                self.parameters,
                self.priority,
                self.timeout_s,
            )
        return self._requests

    @property
    def model(self) -> str:
        """The name of the model that the call is for."""
        return self._model

    @property
    def request(self) -> TextRequest:
        """The first request; the only one of a call with one candidate."""
        return self.requests[0]

    @property
    def needs_capabilities(self) -> bool:
        """Whether the requests depend on the engine's capabilities: see `adapt_to`."""
        parameters = self.parameters
        return (
            self.response_mode.constraint is not None
            or parameters.candidates > parameters.n
            or bool(parameters.suffix)
            or self._unavailable_draft_parameter is not None
        )

    def adapt_to(self, capabilities: Capabilities, schema_violation: str | None = None) -> None:
        """Remove what the engine does not support from the requests, and add warnings about it.

        `schema_violation` is the reason why the engine cannot constrain answers to the schema of
        this call; None if it can.

        Raises:
            InvalidRequest: the call sets a parameter of a draft model, no draft model is loaded,
                and the dialect refuses such calls.
        """
        if (name := self._unavailable_draft_parameter) is not None and not capabilities.draft:
            raise InvalidRequest(f"{name} needs a draft model, and none is loaded", name)
        if self.parameters.suffix and not capabilities.infill:
            self._update_requests(
                _keep_sampling, f"suffix is not supported by {capabilities.model} and was ignored"
            )
        constraint = self.response_mode.constraint
        if constraint is not None and constraint.json_schema is not None:
            if not capabilities.json_schema:
                self._check_afterwards(constraint, "a schema")
            elif schema_violation is not None:
                self._check_afterwards(constraint, f"this schema ({schema_violation})")
        elif constraint is not None and not capabilities.grammar:
            if constraint.regex is not None:
                self._check_afterwards(constraint, "a regular expression")
            elif constraint.choices:
                self._check_afterwards(constraint, "a choice")
            elif constraint.bad_words:
                self._check_afterwards(constraint, "anything without bad_words")
        if self.parameters.candidates > self.parameters.n and not capabilities.max_logprobs:
            # Without log-probabilities `select_best` keeps the first candidates.
            warning = "best_of was not ranked, because the engine returns no logprobs"
            change = _keep_sampling if self.parameters.logprobs is not None else _without_logprobs
            self._update_requests(change, warning)

    @property
    def _unavailable_draft_parameter(self) -> str | None:
        """The parameter that the dialect refuses if there is no draft model; None if unset."""
        sampling = self.parameters.sampling
        if not self.dialect.rejects_unavailable_draft:
            return None
        if sampling.draft_tokens is not None:
            return "num_assistant_tokens"
        return "assistant_confidence_threshold" if sampling.draft_threshold is not None else None

    def add_warnings(self, *warnings: str) -> None:
        """Add warnings to the response."""
        if warnings:
            self._update_requests(_keep_sampling, *warnings)

    def replace_prompts(self, prompts: Sequence[str]) -> None:
        """Send other prompts to the engine. Answers still echo the original ones."""
        candidates = self.parameters.candidates
        self._requests = tuple(
            replace(
                request, generation=replace(request.generation, prompt=prompts[index // candidates])
            )
            for index, request in enumerate(self.requests)
        )

    def _check_afterwards(self, constraint: Constraint, what: str) -> None:
        """Check answers against a constraint that the engine cannot hold them to.

        An answer that does not match is generated once more, unless it was streamed.

        Raises:
            InvalidRequest: answers cannot be checked against it either.
        """
        validation = dict(self._validation or {}) | {"regenerate": True}
        if constraint.json_schema is not None:
            validation["json_schema"] = dict(constraint.json_schema)
        with FieldNames({"validation.json_schema": constraint.param}).in_errors():
            options, option_warnings = self._read_options(validation)
        if (check := build_check(constraint)) is not None:
            options = replace(options, checks={**options.checks, "form": check})
        warning = f"the engine cannot constrain its answers to {what}: they are checked against it"
        self._update_requests(_without_constraint, *option_warnings, warning)
        self._requests = tuple(
            replace(request, validation=True, options=options) for request in self.requests
        )

    def _read_options(self, validation: Any) -> tuple[Options, tuple[str, ...]]:
        """Return the validation options of a call, with warnings about unavailable ones.

        Raises:
            InvalidRequest: an option is wrong.
        """
        return self._options.read(validation)

    def _update_requests(
        self, change: Callable[[SamplingParams], SamplingParams], *warnings: str
    ) -> None:
        """Change the sampling of all requests, and add warnings to their answers."""
        self._requests = tuple(
            replace(
                request,
                warnings=tuple(dict.fromkeys((*request.warnings, *warnings))),
                generation=replace(
                    request.generation,
                    sampling=change(request.generation.sampling),
                ),
            )
            for request in self.requests
        )

    def encode_response(self, *answers: CompletedAnswer) -> dict[str, Any]:
        """Return the response body of a call, from the answers to all its requests, in order."""
        selected = select_best(answers, self.parameters)
        # The verdict of a single choice is a key of the body, otherwise each choice has its own.
        verdicts = [encode_verdict(answer) for answer in selected]
        has_one_choice = len(selected) == 1
        body: dict[str, Any] = {
            **self._envelope(self.spec.object, answers[0].created),
            "choices": [
                {
                    "index": index,
                    **self._encode_choice(index, answer),
                    **({} if has_one_choice else verdict),
                }
                for index, (answer, verdict) in enumerate(zip(selected, verdicts, strict=True))
            ],
            "usage": total_usage(answers, len(self.prompts)),
        }
        warnings = [*dict.fromkeys(warning for answer in answers for warning in answer.warnings)]
        if warnings:
            body["warnings"] = warnings
        return body | verdicts[0] if has_one_choice else body

    def encode_opening(self, created: int, index: int = 0) -> bytes:
        """Return the events before a choice's first text, possibly none. Call it first."""
        return self._chunks.encode_opening(self._envelope(self.spec.chunk_object, created), index)

    def encode_delta(self, batch: list[Delta], index: int = 0) -> bytes:
        """Return the events with the new text of a batch: usually one, possibly none."""
        return self._chunks.encode_delta(batch, index)

    def encode_closing(self, answer: CompletedAnswer, index: int = 0) -> bytes:
        """Return a choice's last event, without text; after the last choice, also the usage."""
        return self._chunks.encode_closing(answer, index)

    @cached_property
    def _chunks(self) -> ChunkEncoder:
        """The encoder of the stream, created when the engine has started the answer.

        Only then are `echoes` and `starts_in_reasoning` known, which it needs.
        """
        return ChunkEncoder(
            self.spec,
            self.dialect,
            self.parameters,
            self.request.reply_format,
            self.echoes,
            include_usage=self._include_usage,
            starts_in_reasoning=self.starts_in_reasoning,
        )

    def _encode_choice(self, index: int, answer: CompletedAnswer) -> dict[str, Any]:
        echo = self.echoes[index // self.parameters.n]
        return encode_choice(answer, echo, self.spec, self.parameters)

    def _envelope(self, kind: str, created: int) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": created, "model": self._model}


def _keep_sampling(sampling: SamplingParams) -> SamplingParams:
    return sampling


def _without_logprobs(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, logprobs=None)


def _without_constraint(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, json_schema=None, grammar=None)
