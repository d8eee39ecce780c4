"""The known keys of a RunPod job, object by object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handler.options import OptionsInput
from handler.parameter_names import IGNORED, LABELS
from handler.sampling import SamplingInput
from handler.unknown_keys import KnownKeys

_SAMPLING = frozenset(SamplingInput.model_fields)
_VALIDATION = frozenset(OptionsInput.model_fields)
_POLICY = frozenset({"executionTimeout", "lowPriority", "ttl"})
_JOB = frozenset({"id", "input", "policy", "s3Config", "webhook", "webhookV2"})
_TEXT = frozenset({"messages", "prompt"})
_OF_TEXT = frozenset(
    {"apply_chat_template", "enable_validation", "lora", "model", "sampling_params", "validation"}
)
_OF_CALL = frozenset({"openai_input", "openai_route"})
_OPENAI_ALONE = frozenset(
    {
        "chat_template_kwargs",
        "enable_thinking",
        "parallel_tool_calls",
        "response_format",
        "stream_options",
        "tool_choice",
        "tools",
    }
)

_AT_INPUT = dict.fromkeys(_TEXT | _OF_TEXT | _OF_CALL, "input.")
_AT_SAMPLING = dict.fromkeys(_SAMPLING, "input.sampling_params.")
_AT_VALIDATION = dict.fromkeys(_VALIDATION, "input.validation.")
_AT_POLICY = dict.fromkeys(_POLICY, "policy.")
_AT_JOB = dict.fromkeys(_JOB - {"id"}, "")
_NOTES = dict.fromkeys(IGNORED, "is not supported and was ignored") | dict.fromkeys(
    _OPENAI_ALONE, "is only for OpenAI calls (input.openai_route) and was ignored"
)

JOB_KEYS = KnownKeys("", _JOB, elsewhere=_AT_INPUT | _AT_SAMPLING | _AT_POLICY, notes=_NOTES)
POLICY_KEYS = KnownKeys("policy.", _POLICY, elsewhere=_AT_INPUT | _AT_JOB)
INPUT_KEYS = KnownKeys(
    "input.",
    _TEXT | _OF_TEXT | _OF_CALL | LABELS | {"stream"},
    elsewhere=_AT_VALIDATION | _AT_SAMPLING | _AT_POLICY | _AT_JOB,
    notes=_NOTES,
)
# `read_sampling` has the warnings about the names that are ignored.
SAMPLING_KEYS = KnownKeys(
    "input.sampling_params.",
    _SAMPLING | LABELS,
    elsewhere=_AT_INPUT | _AT_POLICY | _AT_JOB,
    notes=_NOTES,
    ignored=IGNORED,
)
# With `openai_route`, every other parameter belongs in `openai_input`.
CALL_KEYS = KnownKeys(
    "input.",
    _OF_CALL,
    elsewhere=dict.fromkeys(
        _TEXT | _OF_TEXT | _SAMPLING | _OPENAI_ALONE - {"apply_chat_template"},
        "input.openai_input.",
    ),
    notes=_NOTES,
)


def job_warnings(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return warnings about the top-level keys of a job and the keys of its `policy`."""
    policy = job.get("policy")
    of_policy = POLICY_KEYS.warnings(policy) if isinstance(policy, Mapping) else ()
    return (*JOB_KEYS.warnings(job), *of_policy)
