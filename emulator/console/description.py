"""Describe the parameters that this server accepts, for the console's forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from emulator.openapi.schemas import Schema, fields_of
from emulator.settings.emulator_settings import EmulatorSettings
from engine import Capabilities, SamplingParams
from handler.apis.messages.api import MESSAGES
from handler.apis.openai.parameters import ChatInput, CompletionInput
from handler.apis.responses.api import RESPONSES
from handler.input.options import OptionsInput
from handler.input.sampling import JOB_DEFAULTS, SamplingDefaults, SamplingInput

# The parameters of a message, and their names in a chat.
_MESSAGE_PARAMETERS = {
    **{name: name for name in ("max_tokens", "temperature", "top_p", "top_k")},
    "stop_sequences": "stop",
}
# Has a value for each parameter that some engine does not support, to find those of this engine.
_PROBE = SamplingParams(
    min_p=0.1,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    seed=1,
    ignore_eos=True,
    logprobs=1,
    logit_bias={1: 1.0},
    draft_tokens=1,
    draft_threshold=0.5,
    truncate_prompt_tokens=1,
    skip_special_tokens=False,
)


def describe_console(
    settings: EmulatorSettings, capabilities: Capabilities | None, trouble: str | None = None
) -> dict[str, Any]:
    """Return the forms, their parameters and the engine's capabilities (None while it loads).

    `trouble` is the reason why the engine is being restarted or is dead.
    """
    openai = SamplingDefaults(max_tokens=settings.default_max_tokens)
    notes = _notes(capabilities)
    endpoint = settings.endpoint_id
    chat = _parameters(ChatInput, openai, notes)
    return {
        "model": settings.served_model,
        "endpoint": endpoint,
        "backend": settings.backend,
        "stream_mode": settings.stream_mode,
        "local_worker": settings.local_worker,
        "forms": {
            "job": {
                "path": f"/v2/{endpoint}/run",
                "parameters": _parameters(SamplingInput, JOB_DEFAULTS, notes),
            },
            "completion": {
                "path": "/v1/completions",
                "parameters": _parameters(CompletionInput, openai, notes),
            },
            "chat": {"path": "/v1/chat/completions", "parameters": chat},
            # The parameters of a chat, which responses take too.
            "response": {"path": RESPONSES, "parameters": chat},
            "message": {
                "path": MESSAGES,
                "parameters": {name: chat[key] for name, key in _MESSAGE_PARAMETERS.items()},
            },
        },
        "validation": {
            "default": settings.enable_validation,
            "options": fields_of(OptionsInput),
        },
        "chat_template": {"default": settings.apply_chat_template != "off"},
        "engine": None if capabilities is None else capabilities.to_wire(),
        "trouble": trouble,
        "warnings": list(notes.values()),
    }


def describe_handler_console(
    endpoint: str,
    endpoints: Sequence[str],
    handler: dict[str, Any] | None,
    examples: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the description of a server without an engine: the form of a job, without parameters.

    `endpoints` are those of the user's handlers, and `handler` is the state of this endpoint's;
    None if other workers take the jobs. The form offers the `examples`.
    """
    return {
        "model": None,
        "endpoint": endpoint,
        "endpoints": list(endpoints),
        "backend": None,
        "stream_mode": None,
        "local_worker": False,
        "forms": {"job": {"path": f"/v2/{endpoint}/run", "parameters": {}}},
        "validation": {"default": False, "options": {}},
        "chat_template": {"default": False},
        "engine": None,
        "trouble": None,
        "warnings": [],
        "handler": handler,
        "examples": examples,
    }


def _parameters(
    model: type[BaseModel], defaults: SamplingDefaults, notes: dict[str, str]
) -> dict[str, Schema]:
    """Return a body's parameters as schemas, with defaults and notes on the engine's limits."""
    values = {**asdict(SamplingParams()), **asdict(defaults), "n": 1, "best_of": None}
    parameters = fields_of(model)
    for name, field in parameters.items():
        value = values.get(name)
        field["default"] = value if isinstance(value, int | float | bool) else None
        if name in notes:
            field["note"] = notes[name]
    return parameters


def _notes(capabilities: Capabilities | None) -> dict[str, str]:
    """Return the engine's warnings by parameter."""
    if capabilities is None:
        return {}
    unsupported = {
        warning.partition(" ")[0]: warning.removesuffix(" and was ignored")
        for warning in capabilities.check("", _PROBE)
    }
    # These replace warnings that name a value of _PROBE, which no user has sent.
    fixed = {
        name: f"{name} is fixed at {value:g} while the model is loaded"
        for name, value in capabilities.fixed_sampling.items()
    }
    return {**unsupported, **fixed}
