"""The facts that the library prints about itself, the driver and the model when it loads one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "rkllm-runtime version": ("runtime_version", str),
        "rknpu driver version": ("driver_version", str),
        "platform": ("platform", str),
        "rkllm-toolkit version": ("toolkit_version", str),
        "max_context_limit": ("max_context_limit", int),
        "npu_core_num": ("npu_core_num", int),
        "target_platform": ("target_platform", str),
        "model_dtype": ("model_dtype", str),
    }
)
_INFO_LINE = re.compile(r"^I rkllm: (?P<text>.+)$")
_FIELD = re.compile(r"(?P<name>[\w -]+): (?P<value>[^,\s]+)(?:, |$)")
_CPUS = re.compile(r"^I rkllm: Enabled cpus: \[(?P<cpus>[\d, ]+)\]")
_WARNING = re.compile(r"^W rkllm: *(?P<text>.+)$")


def read_facts(lines: Sequence[str]) -> dict[str, Any]:
    """Return the facts in the lines of a load, by names that are stable; unknown lines have none.

    Real libraries print, for example: `I rkllm: rkllm-runtime version: 1.2.3, rknpu driver version:
    0.9.8, platform: RK3588` and `I rkllm: rkllm-toolkit version: 1.2.1b1, max_context_limit: 4096,
    npu_core_num: 3, target_platform: RK3588, model_dtype: W8A8`. `warnings` are its lines of that
    level, such as one on a driver that is too old.
    """
    facts: dict[str, Any] = {}
    warnings = []
    for line in lines:
        if (cpus := _CPUS.match(line)) is not None:
            facts["enabled_cpus"] = [int(cpu) for cpu in cpus["cpus"].split(",") if cpu.strip()]
        elif (warning := _WARNING.match(line)) is not None:
            warnings.append(warning["text"])
        elif (info := _INFO_LINE.match(line)) is not None:
            facts |= _read_fields(info["text"])
    if warnings:
        facts["warnings"] = list(dict.fromkeys(warnings))
    return facts


def _read_fields(text: str) -> dict[str, Any]:
    fields = {}
    for match in _FIELD.finditer(text):
        name, value = match["name"].strip(), match["value"]
        if name in _FIELDS:
            fact, parse = _FIELDS[name]
            try:
                fields[fact] = parse(value)
            except ValueError:
                # A number in a form that is not known: as text it is still of use.
                fields[fact] = value
    return fields


def describe_facts(facts: Mapping[str, Any]) -> str:
    """Return the facts as one line for the log; empty without any."""
    parts = [f"{name} {value}" for name, value in facts.items() if name != "warnings"]
    return ", ".join([*parts, *facts.get("warnings", ())])
