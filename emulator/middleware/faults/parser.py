"""Parse the faults of a request: `status=429; retry-after=2`.

    faults = fault *( ( "," / ";" ) fault )
    fault  = name [ "=" value ]

Names are those of `FAULT_KINDS`, in lower case. Spaces around names, values and separators are
ignored, and so are empty elements. A name may occur once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from common.value_description import describe_value
from emulator.middleware.faults.catalogue import (
    EVENT_FAULT_NAMES,
    EXCLUSIVE_GROUPS,
    FAULT_KINDS,
    FaultKind,
    ValueKind,
)
from handler.apis.core.wire_format import WireFormat
from handler.errors import InvalidRequest

FAULT_PARAM = "x-fault"
MAX_FAULTS_CHARS = 1_000
_SEPARATOR = re.compile(r"[,;]")
_COUNT = re.compile(r"[0-9]{1,7}")
_SECONDS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?")

# The value of each fault by its name; 0 for a fault that takes none.
Faults = Mapping[str, float]


def parse_faults(text: str, param: str = FAULT_PARAM) -> Faults:
    """Return the faults in a text; `param` begins the error messages.

    Raises:
        InvalidRequest: a fault is unknown or malformed, or two exclude each other.
    """
    if len(text) > MAX_FAULTS_CHARS:
        raise InvalidRequest(
            f"{param} may have at most {MAX_FAULTS_CHARS} characters, got {len(text)}", param
        )
    faults: dict[str, float] = {}
    for element in _SEPARATOR.split(text):
        if not element.strip():
            continue
        name, has_value, value = (part.strip() for part in element.partition("="))
        kind = FAULT_KINDS.get(name)
        if kind is None:
            allowed = ", ".join(sorted(FAULT_KINDS))
            raise InvalidRequest(
                f"{param}: {describe_value(name)} is not a fault; the faults are {allowed}", param
            )
        if name in faults:
            raise InvalidRequest(f"{param}: {name} may be given only once", param)
        faults[name] = _parse_value(kind, value if has_value else None, param)
    if not faults:
        raise InvalidRequest(f"{param} must name a fault, for example status=503", param)
    _check_combination(faults, param)
    return faults


def format_faults(faults: Faults) -> str:
    """Return faults as a text that `parse_faults` accepts."""
    return "; ".join(
        name if FAULT_KINDS[name].value_kind is ValueKind.NONE else f"{name}={value:.10g}"
        for name, value in faults.items()
    )


def find_unsuitable(faults: Faults, wire_format: WireFormat) -> str | None:
    """Return the fault that has no meaning in a stream of this form; None if all have one."""
    if wire_format.stream != "lines":
        return None
    return next((name for name in faults if name in EVENT_FAULT_NAMES), None)


def _parse_value(kind: FaultKind, text: str | None, param: str) -> float:
    if kind.value_kind is ValueKind.NONE:
        if text is not None:
            raise InvalidRequest(f"{param}: {kind.name} takes no value", param)
        return 0
    if text is None and kind.default is not None:
        return kind.default
    pattern = _COUNT if kind.value_kind is ValueKind.COUNT else _SECONDS
    value = float(text) if text is not None and pattern.fullmatch(text) else None
    if value is None or not kind.minimum <= value <= kind.maximum:
        example = "" if text is None else f", got {describe_value(text)}"
        raise InvalidRequest(
            f"{param}: {kind.name} must be {kind.value_kind.value} from {kind.minimum:g} to "
            f"{kind.maximum:.10g}{example}",
            param,
        )
    return value


def _check_combination(faults: Faults, param: str) -> None:
    for group in EXCLUSIVE_GROUPS:
        names = [name for name in faults if name in group]
        if len(names) > 1:
            raise InvalidRequest(f"{param}: {names[0]} and {names[1]} exclude each other", param)
    if "retry-after" in faults and not faults.keys() & {"status", "html-502"}:
        raise InvalidRequest(f"{param}: retry-after needs status or html-502", param)
