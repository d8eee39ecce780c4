"""A parsed call of an OpenAI route: its parameters, and how its response is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from common.json_object import JsonObject
from engine import Delta
from handler.apis.core.api import CallContext
from handler.apis.core.best_of import check_generation_count, select_best
from handler.apis.core.call_runner import CallDefaults
from handler.apis.core.parsed_call import ParsedCall, new_call_id
from handler.apis.openai.body_keys import BODY_KEYS
from handler.apis.openai.dialect import OPENAI, Dialect
from handler.apis.openai.echo import NO_ECHO, Echo
from handler.apis.openai.encoding.choice_encoder import encode_choice
from handler.apis.openai.encoding.chunk_encoder import ChunkEncoder
from handler.apis.openai.endpoint_spec import EndpointSpec
from handler.apis.openai.models import read_model
from handler.apis.openai.parameters import read_parameters
from handler.apis.openai.prompt_logprobs import PromptLogprobs
from handler.apis.openai.usage import read_include_usage, total_usage
from handler.errors import InvalidRequest
from handler.generation.completed_answer import CompletedAnswer
from handler.input.constraints import find_constraint_warnings
from handler.input.reasoning_budget import read_reasoning_budget
from handler.input.request import read_flag
from handler.response import encode_verdict

_DEFAULTS = CallDefaults()


class OpenAICall:
    """A call, from its body to its response, streamed or not.

    A response has a choice for each of the best candidates of each prompt. `echoes` and
    `starts_in_reasoning` depend on the engine; the service sets them. Not thread-safe; used by the
    task that answers the call.

    Raises:
        InvalidRequest: naming the parameter that is wrong.
        ModelNotFound: the requested model is neither the served model nor one of its adapters.
    """

    def __init__(
        self,
        spec: EndpointSpec,
        body: JsonObject,
        served: str,
        defaults: CallDefaults = _DEFAULTS,
        dialect: Dialect = OPENAI,
        *,
        adapters: Sequence[str] = (),
        aliases: Sequence[str] = (),
    ) -> None:
        self.spec = spec
        self.dialect = dialect
        model = read_model(body, served, dialect, adapters, aliases)
        content = spec.read_content(body, defaults.tool_form)
        parameters, warnings = read_parameters(
            spec.input_model, body, dialect, defaults.max_tokens, content.constraint
        )
        if model != served:
            sampling = replace(parameters.sampling, lora=model)
            parameters = replace(parameters, sampling=sampling)
        if parameters.streaming and len(content.prompts) > 1:
            raise InvalidRequest("Streaming is only supported for single prompts", "prompt")
        options, option_warnings = defaults.options.read(body.get("validation"))
        self.parsed = ParsedCall(
            id=new_call_id(spec.id_prefix),
            model=model,
            prompts=content.prompts,
            parameters=parameters,
            reply_format=content.reply_format,
            constraint=content.constraint,
            # Off by default, because validation is not part of OpenAI's API.
            validates=read_flag(body, "enable_validation", default=False),
            options=options,
            warnings=(
                *BODY_KEYS[spec.input_model].warnings(body),
                *content.warnings,
                *warnings,
                *find_constraint_warnings(body),
                *option_warnings,
            ),
            reasoning_budget=read_reasoning_budget(body),
            field_names=content.field_names,
        )
        self.parameters = parameters
        self.streaming = parameters.streaming
        check_generation_count(content.prompts, parameters)
        self._include_usage = read_include_usage(body, dialect, streaming=parameters.streaming)
        # One for each prompt; the service sets them if the call has `echo`.
        self.echoes: Sequence[Echo] = [NO_ECHO] * len(content.prompts)
        # One for each prompt; the service sets them if the call has `prompt_logprobs`.
        self.prompt_logprobs: Sequence[PromptLogprobs] = ()
        # Set by the service when the generations of a stream have started.
        self.starts_in_reasoning = False

    @property
    def request_count(self) -> int:
        """The number of answers to generate: one for each candidate of each prompt."""
        return len(self.parsed.prompts) * self.parameters.candidates

    def set_context(self, context: CallContext) -> None:
        """Give the call the priority, the time limit and the warnings of its context."""
        self.parsed = self.parsed.in_context(context)

    def add_warning(self, warning: str) -> None:
        """Add a warning to the response."""
        self.parsed = replace(self.parsed, warnings=(*self.parsed.warnings, warning))

    def encode_response(self, *answers: CompletedAnswer) -> JsonObject:
        """Return the response body of a call, from the answers to all its requests, in order."""
        selected: Sequence[CompletedAnswer] = answers
        if self.parameters.candidates > self.parameters.n:
            selected = select_best(answers, self.parameters)
        # The verdict of a single choice is a key of the body, otherwise each choice has its own.
        has_one_choice = len(selected) == 1
        choices = []
        for index, answer in enumerate(selected):
            echo = self.echoes[index // self.parameters.n]
            choice = {"index": index, **encode_choice(answer, echo, self.spec, self.parameters)}
            if self.prompt_logprobs and not self.spec.has_chat_prompt:
                choice["prompt_logprobs"] = self.prompt_logprobs[index // self.parameters.n]
            choices.append(choice if has_one_choice else choice | encode_verdict(answer))
        body: dict[str, Any] = {
            **self._envelope(self.spec.object, answers[0].created),
            "choices": choices,
            "usage": total_usage(answers, len(self.parsed.prompts)),
        }
        if self.prompt_logprobs and self.spec.has_chat_prompt:
            [body["prompt_logprobs"]] = self.prompt_logprobs
        warnings = [*dict.fromkeys(warning for answer in answers for warning in answer.warnings)]
        if warnings:
            body["warnings"] = warnings
        return body | encode_verdict(selected[0]) if has_one_choice else body

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
            self.parsed.reply_format,
            self.echoes,
            include_usage=self._include_usage,
            starts_in_reasoning=self.starts_in_reasoning,
        )

    def _envelope(self, kind: str, created: int) -> JsonObject:
        parsed = self.parsed
        return {"id": parsed.id, "object": kind, "created": created, "model": parsed.model}
