"""One OpenAI call: how to run it, and how to tell what comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from engine import Capabilities, Delta, Priority, SamplingParams
from handler.completed_answer import CompletedAnswer
from handler.errors import InvalidRequest
from handler.openai.best_of import (
    build_requests,
    check_generation_count,
    select_best,
)
from handler.openai.body_keys import BODY_KEYS
from handler.openai.choice_encoder import encode_choice
from handler.openai.chunk_encoder import ChunkEncoder
from handler.openai.content_check import ContentCheck
from handler.openai.dialect import OPENAI, Dialect
from handler.openai.echo import NO_ECHO, Echo
from handler.openai.endpoint_spec import EndpointSpec
from handler.openai.models import read_model
from handler.openai.parameters import read_parameters
from handler.openai.structured import format_warnings
from handler.openai.usage import read_include_usage, total_usage
from handler.options import NO_DEFAULTS, OptionsReader
from handler.request import TextRequest, read_flag
from handler.response import encode_verdict
from validation import Options


class OpenAICall:
    """Holds one call from its body to its answers, whole or as server-sent events.

    There are `requests` for all candidates of all prompts, in order, and a choice for each of the
    best. What only the engine knows of a call, its `echoes` and its `manner`, is put right before
    it is answered. Owned by whoever answers it.

    Raises:
        InvalidRequest: naming the parameter that is wrong.
        ModelNotFound: the model asked for is neither the one that is served nor an adapter of it.
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
        stream_several: bool = False,
        priority: Priority = Priority.INTERACTIVE,
        adapters: Sequence[str] = (),
        aliases: Sequence[str] = (),
    ) -> None:
        self.spec = spec
        self.dialect = dialect
        self._model = read_model(body, served, dialect, adapters, aliases)
        self.prompts = spec.read_prompts(body)
        self.response_mode = spec.read_response_mode(body)
        self.parameters = read_parameters(
            spec.input_model, body, dialect, max_tokens, self.response_mode.schema
        )
        if self._model != served:
            sampling = replace(self.parameters.sampling, lora=self._model)
            self.parameters = replace(self.parameters, sampling=sampling)
        self.streaming = self.parameters.streaming
        if self.streaming and len(self.prompts) > 1 and not stream_several:
            raise InvalidRequest("Streaming is only supported for single prompts", "prompt")  # R28
        self.id = f"{spec.id_prefix}-{os.urandom(16).hex()}"
        self._options = options
        self._validation = body.get("validation")
        wanted, missing = self._wanted(self._validation)
        self._of_call = partial(
            TextRequest,
            streaming=self.streaming,
            # Not OpenAI's: its clients are told only if they ask.
            validation=read_flag(body, "enable_validation", default=False),
            options=wanted,
            warnings=(
                *BODY_KEYS[spec.input_model].warnings(body),
                *self.parameters.warnings,
                *format_warnings(body),
                *missing,
            ),
            tells_logprobs=self.parameters.logprobs is not None,
        )
        self._priority = priority
        # Of each generation; None is the engine's own.
        self.timeout_s: float | None = None
        self._requests: tuple[TextRequest, ...] | None = None
        check_generation_count(self.prompts, self.parameters)
        self._include_usage = read_include_usage(body, dialect, streaming=self.streaming)
        # One for each prompt, once it is known how its text is written.
        self.echoes: Sequence[Echo] = [NO_ECHO] * len(self.prompts)

    @property
    def requests(self) -> tuple[TextRequest, ...]:
        """One for each candidate of each prompt; not made of a call that is only looked over."""
        if self._requests is None:
            self._requests = build_requests(
                self.id,
                self._of_call,
                self.prompts,
                self.parameters,
                self._priority,
                self.timeout_s,
            )
        return self._requests

    @property
    def model(self) -> str:
        """The name of the model that the call is for."""
        return self._model

    @property
    def request(self) -> TextRequest:
        """The only request of a call that has one, the first of another's."""
        return self.requests[0]

    @property
    def needs_capabilities(self) -> bool:
        """Whether it depends on the engine how the call is to be put: see `suit`."""
        parameters = self.parameters
        return (
            self.response_mode.schema is not None
            or parameters.candidates > parameters.n
            or bool(parameters.suffix)
            or self._unavailable_draft_parameter is not None
        )

    def adapt_to(self, capabilities: Capabilities, unheld: str | None = None) -> None:
        """Ask no more than the engine can do, and have the client told what became of the rest.

        `unheld` is why no answer can be held to the schema of this call, if that is so.

        Raises:
            InvalidRequest: there is no draft model to set up, and the dialect wants that known.
        """
        if (name := self._unavailable_draft_parameter) is not None and not capabilities.draft:
            raise InvalidRequest(f"{name} needs a draft model, and none is loaded", name)  # R17
        if self.parameters.suffix and not capabilities.infill:
            self._change(
                _unchanged, f"suffix is not supported by {capabilities.model} and was ignored"
            )
        if self.response_mode.schema is not None:
            if not capabilities.json_schema:
                self._unconstrain("to a schema")
            elif unheld is not None:
                self._unconstrain(f"to this schema ({unheld})")
        if self.parameters.candidates > self.parameters.n and not capabilities.max_logprobs:
            # Without anything to rank them by, the first ones are taken.
            warning = "best_of was not ranked, because the engine returns no logprobs"
            unasked = _unchanged if self.request.tells_logprobs else _without_logprobs
            self._change(unasked, warning)

    @property
    def _unavailable_draft_parameter(self) -> str | None:
        """The parameter that must not come where there is no draft model."""
        sampling = self.parameters.sampling
        if not self.dialect.rejects_unavailable_draft:
            return None
        if sampling.draft_tokens is not None:
            return "num_assistant_tokens"
        return "assistant_confidence_threshold" if sampling.draft_threshold is not None else None

    def add_warnings(self, *warnings: str) -> None:
        """Add sentences to the warnings of the answer."""
        if warnings:
            self._change(_unchanged, *warnings)

    def replace_prompts(self, prompts: Sequence[str]) -> None:
        """Have these fed to the model instead of the prompts, which answers still echo."""
        each = self.parameters.candidates
        self._requests = tuple(
            replace(request, generation=replace(request.generation, prompt=prompts[at // each]))
            for at, request in enumerate(self.requests)
        )

    def _unconstrain(self, what: str) -> None:
        """Have answers compared with the schema that the engine cannot hold them to (R39).

        One that does not fit is generated once more, where it has not been streamed.
        """
        given = dict(self._validation or {})
        given |= {"json_schema": dict(self.response_mode.schema or {}), "regenerate": True}
        wanted, missing = self._wanted(given)
        warning = f"the engine cannot constrain its answers {what}: they are checked against it"
        self._change(_without_schema, *missing, warning)
        self._requests = tuple(
            replace(request, validation=True, options=wanted) for request in self.requests
        )

    def _wanted(self, given: Any) -> tuple[Options, tuple[str, ...]]:
        """Return what answers are checked for, and what of it cannot be. Raises InvalidRequest."""
        wanted, missing = self._options.read(given)
        if wanted.checks and self.response_mode.parses_reply:
            tools = self.response_mode.tools
            checks = {name: ContentCheck(check, tools) for name, check in wanted.checks.items()}
            wanted = replace(wanted, checks=checks)
        return wanted, missing

    def _change(self, change: Callable[[SamplingParams], SamplingParams], *warnings: str) -> None:
        """Have every request ask for something else of the engine, and its answer warn."""
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
        """Return the body of a call that is not streamed, from the answers to all its requests."""
        chosen = select_best(answers, self.parameters)
        # Of several, each tells its own verdict.
        verdicts = [encode_verdict(answer) for answer in chosen]
        alone = len(chosen) == 1
        body: dict[str, Any] = {
            **self._envelope(self.spec.object, answers[0].created),
            "choices": [
                {"index": index, **self._choice(index, answer), **({} if alone else verdict)}
                for index, (answer, verdict) in enumerate(zip(chosen, verdicts, strict=True))
            ],
            "usage": total_usage(answers, len(self.prompts)),
        }
        warnings = [*dict.fromkeys(warning for answer in answers for warning in answer.warnings)]
        if warnings:
            body["warnings"] = warnings
        return body | verdicts[0] if alone else body

    def encode_opening(self, created: int, index: int = 0) -> bytes:
        """Return what comes before a choice's first text, perhaps nothing; first of its events."""
        return self._chunks.encode_opening(self._envelope(self.spec.chunk_object, created), index)

    def encode_delta(self, batch: list[Delta], index: int = 0) -> bytes:
        """Return one event with the new text of a batch."""
        return self._chunks.encode_delta(batch, index)

    def encode_closing(self, answer: CompletedAnswer, index: int = 0) -> bytes:
        """Return a choice's last event, without text, and after the last choice's the usage."""
        return self._chunks.encode_closing(answer, index)

    @cached_property
    def _chunks(self) -> ChunkEncoder:
        """Made when the first event is: by then the call is known in full."""
        return ChunkEncoder(
            self.spec,
            self.dialect,
            self.parameters,
            self.response_mode,
            self.echoes,
            include_usage=self._include_usage,
        )

    def _choice(self, index: int, answer: CompletedAnswer) -> dict[str, Any]:
        echo = self.echoes[index // self.parameters.n]
        return encode_choice(answer, echo, self.spec, self.parameters, self.response_mode)

    def _envelope(self, kind: str, created: int) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": created, "model": self._model}


def _unchanged(sampling: SamplingParams) -> SamplingParams:
    return sampling


def _without_logprobs(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, logprobs=None)


def _without_schema(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, json_schema=None)
