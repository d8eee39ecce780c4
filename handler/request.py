"""A job's input to a request for the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from engine import Chat, GenerationRequest, Priority
from engine.request import Prompt, TemplateMode
from handler.errors import InvalidRequest
from handler.job_keys import CALL_KEYS, INPUT_KEYS, SAMPLING_KEYS, job_warnings
from handler.messages import check_text, read_messages
from handler.options import NO_DEFAULTS, OptionsReader
from handler.sampling import JOB_DEFAULTS, describe_value, read_sampling
from validation import NO_OPTIONS, Options

_INPUT = "input."


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One text to generate, whichever door it came in by.

    `validation` asks for a verdict, `options` for more than the rules look at; `warnings` are
    sentences for the client about what was ignored on the way here. `tells_logprobs` is false where
    log-probabilities are asked of the engine only to rank the answer among others. `model` is the
    one that a job names where there are several, None for the default.
    """

    generation: GenerationRequest
    streaming: bool = False
    validation: bool = False
    options: Options = NO_OPTIONS
    warnings: tuple[str, ...] = ()
    tells_logprobs: bool = True
    model: str | None = None

    @property
    def prompt_text(self) -> str:
        """The prompt as validation sees it: the last user turn of a chat."""
        prompt = self.generation.prompt
        if isinstance(prompt, Chat):
            turns = self._turns({"user"})
            return turns[-1] if turns else ""
        return prompt if isinstance(prompt, str) else ""

    @property
    def system_text(self) -> str:
        """What the operator told the model, which its answers must not repeat."""
        return "\n".join(self._turns({"system", "developer"}))

    @property
    def user_text(self) -> str:
        """All that the user said, in a chat in any of its turns."""
        if isinstance(self.generation.prompt, Chat):
            return "\n".join(self._turns({"user", "tool", "function"}))
        return self.prompt_text

    def within(self, timeout_s: float) -> TextRequest:
        """Return the same with a limit of its own for its generation."""
        return replace(self, generation=replace(self.generation, timeout_s=timeout_s))

    def _turns(self, roles: Set[str]) -> list[str]:
        prompt = self.generation.prompt
        messages = prompt.messages if isinstance(prompt, Chat) else ()
        return [message.content for message in messages if message.role in roles]


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """A job that carries an OpenAI call, as RunPod's OpenAI bridge sends it.

    `timeout_s` is how long each of its generations may take, None for the engine's own limit.
    `warnings` are sentences about the keys beside the call.
    """

    route: str
    body: Mapping[str, Any]
    timeout_s: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def streaming(self) -> bool:
        """Whether the call asks for a stream of events."""
        return self.body.get("stream") is True

    def within(self, timeout_s: float) -> OpenAIRequest:
        """Return the same with a limit of its own."""
        return replace(self, timeout_s=timeout_s)


def parse_job(
    job: Mapping[str, Any],
    options: OptionsReader = NO_DEFAULTS,
    *,
    validation: bool = True,
    chat_template: TemplateMode = "auto",
    chooses_model: bool = False,
) -> TextRequest | OpenAIRequest:
    """Return the request that a job holds (R44).

    `validation` is the default of `enable_validation`, `chat_template` that of
    `apply_chat_template`. The job's `model` is read only if there are several.

    Raises:
        InvalidRequest: one sentence naming the field, its value and what is allowed.
    """
    given = job.get("input")
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"input must be an object with prompt, messages or openai_route, got {describe_value(given)}",
            "input",
        )
    about_job = job_warnings(job)
    if given.get("openai_route") is not None:
        return replace(_openai(given), warnings=(*about_job, *CALL_KEYS.warnings(given)))
    params = given.get("sampling_params")
    if params is None:
        params = {}
    if not isinstance(params, Mapping):
        raise InvalidRequest(
            f"input.sampling_params must be an object, got {describe_value(params)}",
            "input.sampling_params",
        )
    sampling, streaming, warnings = read_sampling(params, JOB_DEFAULTS, f"{_INPUT}sampling_params.")
    if (adapter := _adapter(given)) is not None:
        sampling = replace(sampling, lora=adapter)
    wanted, missing = options.read(given.get("validation"), f"{_INPUT}validation")
    job_id = str(job.get("id") or "local")
    return TextRequest(
        generation=GenerationRequest(
            prompt=_prompt(given),
            sampling=sampling,
            request_id=job_id,
            priority=Priority.JOB,
            chat_template=_template_mode(given, chat_template),
        ),
        streaming=streaming or read_flag(given, "stream", default=False, path=_INPUT),
        validation=read_flag(given, "enable_validation", default=validation, path=_INPUT),
        options=wanted,
        warnings=(
            *about_job,
            *INPUT_KEYS.warnings(given),
            *SAMPLING_KEYS.warnings(params),
            *warnings,
            *missing,
        ),
        model=_model(given) if chooses_model else None,
    )


def _model(given: Mapping[str, Any]) -> str | None:
    model = given.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest(
            f"input.model must be a string, got {describe_value(model)}", "input.model"
        )
    return model


def _prompt(given: Mapping[str, Any]) -> Prompt:
    if given.get("messages") is not None:
        if given.get("prompt") is not None:
            raise InvalidRequest("input must have prompt or messages, not both", "input")
        return Chat(read_messages(given["messages"], _INPUT))
    prompt = given.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        got = describe_value(prompt) if "prompt" in given else "none"
        raise InvalidRequest(f"input.prompt must be a non-empty string, got {got}", "input.prompt")
    check_text(prompt, "input.prompt")
    return prompt


def _template_mode(given: Mapping[str, Any], default: TemplateMode) -> TemplateMode:
    """Return whether the prompt becomes a user turn (R58); the engine knows the template."""
    if given.get("apply_chat_template") is None:
        return default
    return "on" if read_flag(given, "apply_chat_template", default=False, path=_INPUT) else "off"


def _adapter(given: Mapping[str, Any]) -> str | None:
    """Return the adapter to generate with; whether there is one of that name, the engine knows."""
    name = given.get("lora")
    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            f"input.lora must be an adapter's name, got {describe_value(name)}", "input.lora"
        )
    check_text(name, "input.lora")
    return name


def read_flag(given: Mapping[str, Any], name: str, *, default: bool, path: str = "") -> bool:
    """Return a field that is true, false or unset. Raises InvalidRequest."""
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidRequest(
            f"{path}{name} must be true or false, got {describe_value(value)}", f"{path}{name}"
        )
    return value


def _openai(given: Mapping[str, Any]) -> OpenAIRequest:
    route, body = given["openai_route"], given.get("openai_input")
    if not isinstance(route, str):
        raise InvalidRequest(
            f"input.openai_route must be a string, got {describe_value(route)}",
            "input.openai_route",
        )
    if body is None:
        body = {}
    if not isinstance(body, Mapping):
        raise InvalidRequest(
            f"input.openai_input must be an object, got {describe_value(body)}",
            "input.openai_input",
        )
    return OpenAIRequest(route, body)


def asks_to_stream(job_input: Any) -> bool:
    """Return whether a job's input asks to stream, in any of its forms; false for a bad input."""
    if not isinstance(job_input, Mapping):
        return False
    if job_input.get("openai_route") is not None:
        flags = [job_input.get("openai_input")]
    else:
        flags = [job_input, job_input.get("sampling_params")]
    return any(isinstance(each, Mapping) and each.get("stream") is True for each in flags)
