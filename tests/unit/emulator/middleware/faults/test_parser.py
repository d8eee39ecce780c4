"""The grammar of `x-fault`, and its errors."""

from __future__ import annotations

import pytest

from emulator.middleware.faults.catalogue import FAULT_KINDS, ValueKind
from emulator.middleware.faults.parser import format_faults, parse_faults
from handler.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("status=503", {"status": 503}),
        ("status=429;retry-after=2", {"status": 429, "retry-after": 2}),
        (" delay = 0.5 , bom ;; ", {"delay": 0.5, "bom": 0}),
        ("drop-after", {"drop-after": 1}),
        ("drop-after=0", {"drop-after": 0}),
        ("stall=300", {"stall": 300}),
        ("slow=10,crlf,no-space", {"slow": 10, "crlf": 0, "no-space": 0}),
    ],
)
def test_parse_faults_returns_values_by_name(text: str, faults: dict[str, float]) -> None:
    parsed = parse_faults(text)
    assert parsed == faults
    assert parse_faults(format_faults(parsed)) == faults


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x-fault must name a fault, for example status=503"),
        (" ; ,", "x-fault must name a fault, for example status=503"),
        ("bom=1", "x-fault: bom takes no value"),
        ("bom=", "x-fault: bom takes no value"),
        ("bom, bom", "x-fault: bom may be given only once"),
        ("status", "x-fault: status must be a whole number from 400 to 599"),
        ("status=", 'x-fault: status must be a whole number from 400 to 599, got ""'),
        ("status=200", 'x-fault: status must be a whole number from 400 to 599, got "200"'),
        ("status=+503", 'x-fault: status must be a whole number from 400 to 599, got "+503"'),
        ("delay=301", 'x-fault: delay must be a number of seconds from 0 to 300, got "301"'),
        ("delay=-1", 'x-fault: delay must be a number of seconds from 0 to 300, got "-1"'),
        ("stall=nan", 'x-fault: stall must be a number of seconds from 0 to 300, got "nan"'),
        ("slow=1e1", 'x-fault: slow must be a number of seconds from 0 to 10, got "1e1"'),
        ("cut-inside=0", 'x-fault: cut-inside must be a whole number from 1 to 1000000, got "0"'),
        ("skip-event=٣", 'x-fault: skip-event must be a whole number from 1 to 1000000, got "٣"'),
        ("reset, status=503", "x-fault: reset and status exclude each other"),
        ("cr; crlf", "x-fault: cr and crlf exclude each other"),
        ("empty-body; truncated-json", "x-fault: empty-body and truncated-json exclude each other"),
        ("split-bytes,split-character", "x-fault: split-bytes and split-character exclude each "),
        ("retry-after=2", "x-fault: retry-after needs status or html-502"),
        ("x" * 1_001, "x-fault may have at most 1000 characters, got 1001"),
    ],
)
def test_invalid_faults_are_explained_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_faults(text)
    assert caught.value.message.startswith(message)
    assert caught.value.param == "x-fault"


@pytest.mark.parametrize("name", ["", "Status", "explode", "a\nb", "💥"])
def test_unknown_fault_names_all_that_are_allowed(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_faults(f"{name}=1")
    message = caught.value.message
    assert "\n" not in message
    assert message.endswith("the faults are " + ", ".join(sorted(FAULT_KINDS)))


@pytest.mark.parametrize("kind", FAULT_KINDS.values(), ids=lambda kind: kind.name)
def test_usage_shows_whether_a_value_is_needed(kind: object) -> None:
    [known] = [each for each in FAULT_KINDS.values() if each is kind]
    if known.value_kind is ValueKind.NONE:
        assert known.usage() == known.name
    else:
        assert known.usage().startswith(known.name)
        assert ("[=" in known.usage()) is (known.default is not None)
