"""The known keys of the JSON objects of a RunPod job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handler.input.constraints import CONSTRAINT_KEYS
from handler.input.options import OptionsInput
from handler.input.parameter_names import IGNORED, LABELS
from handler.input.reasoning_budget import BUDGET_KEYS
from handler.input.sampling import SamplingInput
from handler.input.unknown_keys import KnownKeys

_SAMPLING_KEYS = frozenset(SamplingInput.model_fields)
_VALIDATION_KEYS = frozenset(OptionsInput.model_fields)
_POLICY_KEYS = frozenset({"executionTimeout", "lowPriority", "ttl"})
_JOB_KEYS = frozenset({"id", "input", "policy", "s3Config", "webhook", "webhookV2"})
_PROMPT_KEYS = frozenset({"messages", "prompt"})
_TEXT_JOB_KEYS = frozenset(
    {"apply_chat_template", "enable_validation", "lora", "model", "sampling_params", "validation"}
)
_CALL_KEYS = frozenset({"body", "method", "openai_input", "openai_route", "route"})
_OPENAI_ONLY_KEYS = frozenset(
    {
        "chat_template_kwargs",
        "enable_thinking",
        "parallel_tool_calls",
        "reasoning_effort",
        "stream_options",
        "tool_choice",
        "tools",
    }
)

_AT_INPUT = dict.fromkeys(_PROMPT_KEYS | _TEXT_JOB_KEYS | _CALL_KEYS, "input.")
_AT_SAMPLING = dict.fromkeys(
    _SAMPLING_KEYS | CONSTRAINT_KEYS | BUDGET_KEYS, "input.sampling_params."
)
_AT_VALIDATION = dict.fromkeys(_VALIDATION_KEYS, "input.validation.")
_AT_POLICY = dict.fromkeys(_POLICY_KEYS, "policy.")
_AT_JOB = dict.fromkeys(_JOB_KEYS - {"id"}, "")
_NOTES = dict.fromkeys(IGNORED, "is not supported and was ignored") | dict.fromkeys(
    _OPENAI_ONLY_KEYS, "is only for OpenAI calls (input.openai_route) and was ignored"
)

JOB_KEYS = KnownKeys("", _JOB_KEYS, misplaced=_AT_INPUT | _AT_SAMPLING | _AT_POLICY, notes=_NOTES)
POLICY_KEYS = KnownKeys("policy.", _POLICY_KEYS, misplaced=_AT_INPUT | _AT_JOB)
INPUT_KEYS = KnownKeys(
    "input.",
    _PROMPT_KEYS | _TEXT_JOB_KEYS | _CALL_KEYS | LABELS | {"stream"},
    misplaced=_AT_VALIDATION | _AT_SAMPLING | _AT_POLICY | _AT_JOB,
    notes=_NOTES,
)
# `read_sampling` returns the warnings about the ignored parameters.
SAMPLING_KEYS = KnownKeys(
    "input.sampling_params.",
    _SAMPLING_KEYS | CONSTRAINT_KEYS | BUDGET_KEYS | LABELS,
    misplaced=_AT_INPUT | _AT_POLICY | _AT_JOB,
    notes=_NOTES,
    ignored=IGNORED,
)
# With `openai_route`, every other parameter belongs in `openai_input`.
CALL_KEYS = KnownKeys(
    "input.",
    _CALL_KEYS | {"stream"},
    misplaced=dict.fromkeys(
        _PROMPT_KEYS
        | _TEXT_JOB_KEYS
        | _SAMPLING_KEYS
        | CONSTRAINT_KEYS
        | BUDGET_KEYS
        | _OPENAI_ONLY_KEYS - {"apply_chat_template"},
        "input.openai_input.",
    ),
    notes=_NOTES,
)


def find_job_warnings(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return warnings about the top-level keys of a job and the keys of its `policy`."""
    policy = job.get("policy")
    policy_warnings = POLICY_KEYS.warnings(policy) if isinstance(policy, Mapping) else ()
    return (*JOB_KEYS.warnings(job), *policy_warnings)
