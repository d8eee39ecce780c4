"""Parse a job's input into a request for the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from common.value_description import describe_value
from engine import Chat, GenerationRequest, Priority
from engine.reply.reply_format import REASONING_ONLY, ReplyFormat
from engine.request import Prompt, TemplateMode
from handler.errors import InvalidRequest
from handler.input.constraints import Constraint, find_constraint_warnings, read_constraint
from handler.input.job_keys import CALL_KEYS, INPUT_KEYS, SAMPLING_KEYS, find_job_warnings
from handler.input.messages import read_messages
from handler.input.options import NO_DEFAULTS, OptionsReader
from handler.input.reasoning_budget import read_reasoning_budget
from handler.input.sampling import JOB_DEFAULTS, read_sampling
from handler.input.text import check_text
from validation import NO_OPTIONS, Options

_INPUT = "input."
_SHAPES = "prompt, messages, openai_input with openai_route, or route with body and method"
_MAX_NAMED_KEYS = 5
_CHAT_ROUTE = "/v1/chat/completions"
# The one route that is read; all others are posted to.
_MODELS_ROUTE = "/v1/models"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One text to generate, from any entry point.

    `validation` states whether to validate the answer; `options` are checks beyond the rules.
    `warnings` are sentences for the client about ignored input. `returns_logprobs` is false if the
    log-probabilities only rank the answer among others. `model` is the model that a job names if
    there are several; None for the default. `reply_format` states what the output may have besides
    its text; None if all of it is text. `original_prompt` is the prompt that the answer is for if
    the engine gets a longer one. `reasoning_budget` is how many tokens the model may think; None
    for any number. `constraint` is what the answer must match; `sampling` has its grammar.
    `held_constraint` is the one that the engine was asked to hold, and there is no `constraint`
    then.
    """

    generation: GenerationRequest
    streaming: bool = False
    validation: bool = False
    options: Options = NO_OPTIONS
    warnings: tuple[str, ...] = ()
    returns_logprobs: bool = True
    model: str | None = None
    reply_format: ReplyFormat | None = REASONING_ONLY
    original_prompt: Prompt | None = None
    reasoning_budget: int | None = None
    constraint: Constraint | None = None
    held_constraint: Constraint | None = None

    @property
    def prompt_text(self) -> str:
        """The prompt that the answer is validated against: in a chat the last user turn."""
        prompt = self._validated_prompt
        if isinstance(prompt, Chat):
            turns = self._select_turns({"user"})
            return turns[-1] if turns else ""
        return prompt if isinstance(prompt, str) else ""

    @property
    def system_text(self) -> str:
        """The system prompt, which answers must not repeat."""
        return "\n".join(self._select_turns({"system", "developer"}))

    @property
    def user_text(self) -> str:
        """All text from the user and from tools, in all turns of a chat."""
        if isinstance(self._validated_prompt, Chat):
            return "\n".join(self._select_turns({"user", "tool", "function"}))
        return self.prompt_text

    @property
    def disables_reasoning(self) -> bool:
        """Whether the client has turned the reasoning off, by a variable of the chat template."""
        prompt = self.generation.prompt
        variables = prompt.template_kwargs if isinstance(prompt, Chat) else {}
        return any(variables.get(name) is False for name in ("enable_thinking", "thinking"))

    def with_timeout(self, timeout_s: float) -> TextRequest:
        """Return the same request with another time limit for its generation."""
        return replace(self, generation=replace(self.generation, timeout_s=timeout_s))

    @property
    def _validated_prompt(self) -> Prompt:
        return self.generation.prompt if self.original_prompt is None else self.original_prompt

    def _select_turns(self, roles: Set[str]) -> list[str]:
        prompt = self._validated_prompt
        messages = prompt.messages if isinstance(prompt, Chat) else ()
        return [message.content for message in messages if message.role in roles]


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """A job that carries an OpenAI call, as RunPod's OpenAI bridge sends it.

    `timeout_s` is the maximum duration of each of its generations; None for the engine's own limit.
    `warnings` are sentences about keys outside `openai_input`.
    """

    route: str
    body: Mapping[str, Any]
    job_id: str | None = None
    timeout_s: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def streaming(self) -> bool:
        """Whether the call asks for a stream of events."""
        return self.body.get("stream") is True

    def with_timeout(self, timeout_s: float) -> OpenAIRequest:
        """Return the same request with another time limit."""
        return replace(self, timeout_s=timeout_s)


JobRequest = TextRequest | OpenAIRequest


def parse_job(
    job: Mapping[str, Any],
    options: OptionsReader = NO_DEFAULTS,
    *,
    validation: bool = True,
    chat_template: TemplateMode = "auto",
    chooses_model: bool = False,
) -> JobRequest:
    """Return the request in a job.

    `validation` is the default of `enable_validation`, and `chat_template` that of
    `apply_chat_template`. The job's `model` is read only if `chooses_model` is set.

    Raises:
        InvalidRequest: one sentence with the field, its value and the allowed values.
    """
    job_input = job.get("input")
    if not isinstance(job_input, Mapping):
        raise InvalidRequest(
            f"input must be an object with {_SHAPES}, got {describe_value(job_input)}", "input"
        )
    warnings_about_job = find_job_warnings(job)
    if (call := _parse_call(job_input)) is not None:
        job_id = None if job.get("id") is None else str(job["id"])
        warnings = (*warnings_about_job, *CALL_KEYS.warnings(job_input))
        return replace(call, job_id=job_id, warnings=warnings)
    params = job_input.get("sampling_params")
    if params is None:
        params = {}
    if not isinstance(params, Mapping):
        raise InvalidRequest(
            f"input.sampling_params must be an object, got {describe_value(params)}",
            "input.sampling_params",
        )
    sampling, streaming, warnings = read_sampling(params, JOB_DEFAULTS, f"{_INPUT}sampling_params.")
    if (constraint := read_constraint(params, f"{_INPUT}sampling_params.")) is not None:
        sampling = constraint.apply(sampling)
    if (adapter := _parse_adapter(job_input)) is not None:
        sampling = replace(sampling, lora=adapter)
    options_, option_warnings = options.read(job_input.get("validation"), f"{_INPUT}validation")
    job_id = str(job.get("id") or "local")
    prompt, prompt_warnings = _parse_prompt(job_input)
    return TextRequest(
        generation=GenerationRequest(
            prompt=prompt,
            sampling=sampling,
            request_id=job_id,
            priority=Priority.JOB,
            chat_template=_parse_template_mode(job_input, chat_template),
        ),
        streaming=streaming or read_flag(job_input, "stream", default=False, path=_INPUT),
        validation=read_flag(job_input, "enable_validation", default=validation, path=_INPUT),
        options=options_,
        warnings=(
            *warnings_about_job,
            *INPUT_KEYS.warnings(job_input),
            *prompt_warnings,
            *SAMPLING_KEYS.warnings(params),
            *find_constraint_warnings(params, f"{_INPUT}sampling_params."),
            *warnings,
            *option_warnings,
        ),
        model=_parse_model(job_input) if chooses_model else None,
        reasoning_budget=read_reasoning_budget(params, f"{_INPUT}sampling_params."),
        constraint=constraint,
    )


def _parse_model(job_input: Mapping[str, Any]) -> str | None:
    model = job_input.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest(
            f"input.model must be a string, got {describe_value(model)}", "input.model"
        )
    return model


def _parse_prompt(job_input: Mapping[str, Any]) -> tuple[Prompt, tuple[str, ...]]:
    """Return the prompt, and warnings about parts of it that were left out."""
    if job_input.get("messages") is not None:
        if job_input.get("prompt") is not None:
            raise InvalidRequest("input must have prompt or messages, not both", "input")
        messages, warnings = read_messages(job_input["messages"], _INPUT)
        return Chat(messages), warnings
    if "prompt" not in job_input:
        names = ", ".join(sorted(map(str, job_input))[:_MAX_NAMED_KEYS])
        raise InvalidRequest(
            f"input must have {_SHAPES}, got {f'only {names}' if names else 'an empty object'}",
            "input.prompt",
        )
    prompt = job_input["prompt"]
    if not isinstance(prompt, str) or not prompt:
        raise InvalidRequest(
            f"input.prompt must be a non-empty string, got {describe_value(prompt)}", "input.prompt"
        )
    check_text(prompt, "input.prompt")
    return prompt, ()


def _parse_template_mode(job_input: Mapping[str, Any], default: TemplateMode) -> TemplateMode:
    """Return whether the prompt becomes a user turn; the engine decides for `auto`."""
    if job_input.get("apply_chat_template") is None:
        return default
    return (
        "on" if read_flag(job_input, "apply_chat_template", default=False, path=_INPUT) else "off"
    )


def _parse_adapter(job_input: Mapping[str, Any]) -> str | None:
    """Return the name of the LoRA adapter, or None; the engine checks whether it exists."""
    name = job_input.get("lora")
    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            f"input.lora must be an adapter's name, got {describe_value(name)}", "input.lora"
        )
    check_text(name, "input.lora")
    return name


def read_flag(job_input: Mapping[str, Any], name: str, *, default: bool, path: str = "") -> bool:
    """Return an optional boolean field, or `default` if it is unset. Raises InvalidRequest."""
    value = job_input.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidRequest(
            f"{path}{name} must be true or false, got {describe_value(value)}", f"{path}{name}"
        )
    return value


def _parse_call(job_input: Mapping[str, Any]) -> OpenAIRequest | None:
    """Return the OpenAI call of a job; None if its input is a prompt or messages.

    `openai_input` with `openai_route` is what RunPod's OpenAI bridge sends; `route`, `body` and
    `method` are another form that worker-vllm takes. Without a route, the call is a chat.
    """
    if job_input.get("openai_route") is not None or job_input.get("openai_input") is not None:
        route_key, body_key = "openai_route", "openai_input"
    elif job_input.get("route") is not None:
        route_key, body_key = "route", "body"
    else:
        return None
    route, body = job_input.get(route_key), job_input.get(body_key)
    if route is None:
        route = _CHAT_ROUTE
    if not isinstance(route, str):
        raise InvalidRequest(
            f"input.{route_key} must be a string, got {describe_value(route)}",
            f"input.{route_key}",
        )
    if body is None:
        body = {}
    if not isinstance(body, Mapping):
        raise InvalidRequest(
            f"input.{body_key} must be an object, got {describe_value(body)}", f"input.{body_key}"
        )
    method, expected = job_input.get("method"), "GET" if route == _MODELS_ROUTE else "POST"
    if method is not None and (not isinstance(method, str) or method.upper() != expected):
        raise InvalidRequest(
            f"input.method must be {expected} for {route}, got {describe_value(method)}",
            "input.method",
        )
    if "stream" not in body and read_flag(job_input, "stream", default=False, path=_INPUT):
        body = {**body, "stream": True}
    return OpenAIRequest(route, body)


def is_openai_call(job_input: Mapping[str, Any]) -> bool:
    """Return whether a job's input is an OpenAI call, in any of its forms."""
    return any(job_input.get(key) is not None for key in ("openai_route", "openai_input", "route"))


def asks_to_stream(job_input: Any) -> bool:
    """Return whether a job's input asks to stream, in any form; false for an invalid input."""
    if not isinstance(job_input, Mapping):
        return False
    parts = [
        job_input,
        *(job_input.get(key) for key in ("openai_input", "body", "sampling_params")),
    ]
    return any(isinstance(part, Mapping) and part.get("stream") is True for part in parts)
