"""Rules that make requests fail, which a test sets while the server runs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from common.value_description import describe_value
from emulator.http.route_facts import OperationName, read_route
from emulator.middleware.faults.parser import (
    Faults,
    find_unsuitable,
    format_faults,
    parse_faults,
)
from handler.apis.core.wire_format import WireFormat
from handler.errors import HandlerError, InvalidRequest, NotFound

MAX_RULES = 100
MAX_TIMES = 1_000_000
_MAX_ENDPOINT_CHARS = 200
_FIELDS = ("fault", "endpoint", "operation", "probability", "times")
# Operations of the server itself, and those of workers for which a failure tests nothing.
_WITHOUT_FAULTS = frozenset({"docs", "openapi.json", "metrics", "faults", "job-stop", "ping"})
OPERATIONS_WITH_FAULTS = tuple(name for name in OperationName if name not in _WITHOUT_FAULTS)
_TAKE_OPERATIONS = ("job-take", "job-take-batch")
WORKER_OPERATIONS = frozenset({*_TAKE_OPERATIONS, "job-stream", "job-done"})
# Only a rule that names them concerns them. The console and the workers repeat their requests all
# the time, and would use up the rules.
_NAMED_OPERATIONS = frozenset({"console", *WORKER_OPERATIONS})


@dataclass(slots=True, kw_only=True)
class FaultRule:
    """Faults for the requests to an endpoint and of an operation; None stands for all of them.

    `remaining` counts down the requests that the rule may still be applied to; None if it has no
    limit. `applied` counts the requests that it was applied to.
    """

    rule_id: str
    faults: Faults
    generator: random.Random = field(repr=False)
    endpoint: str | None = None
    operation: str | None = None
    probability: float = 1.0
    remaining: int | None = None
    applied: int = 0

    def matches(self, endpoint: str, operation: str, wire_format: WireFormat) -> bool:
        """Return whether the rule concerns a request and may still be applied."""
        if self.remaining == 0 or self.endpoint not in (None, endpoint):
            return False
        if find_unsuitable(self.faults, wire_format) is not None:
            return False
        return operation == self.operation or (
            self.operation is None and operation not in _NAMED_OPERATIONS
        )

    def draw(self) -> bool:
        """Return whether the rule is applied to a request that it concerns, and count that."""
        if self.generator.random() >= self.probability:
            return False
        self.applied += 1
        if self.remaining is not None:
            self.remaining -= 1
        return True

    def to_wire(self) -> dict[str, Any]:
        """Return the rule as JSON."""
        return {
            "id": self.rule_id,
            "fault": format_faults(self.faults),
            "endpoint": self.endpoint,
            "operation": self.operation,
            "probability": self.probability,
            "remaining": self.remaining,
            "applied": self.applied,
        }


class FaultRules:
    """The rules of a server, in the order in which they were added. Owned by the event loop.

    Each rule has its own random generator, so that adding a rule does not change when the others
    are applied. With a `seed`, the same rules apply to the same requests after every start, and
    again after `clear`.
    """

    def __init__(self, default_endpoint: str, seed: int | None = None) -> None:
        self.default_endpoint = default_endpoint
        self._seed = seed
        self._rules: dict[str, FaultRule] = {}
        self._last_number = 0

    def add(self, body: Mapping[str, Any]) -> FaultRule:
        """Add the rule that a request body describes.

        Raises:
            InvalidRequest: a field is unknown or invalid.
            HandlerError: there are too many rules.
        """
        fields = _read_fields(body)
        if len(self._rules) >= MAX_RULES:
            raise HandlerError(f"there are already {MAX_RULES} rules; delete one of them first")
        self._last_number += 1
        rule_id = f"rule-{self._last_number}"
        # Reproducible on purpose: these numbers protect no secret.
        generator = random.Random(None if self._seed is None else f"{self._seed} {rule_id}")  # noqa: S311
        rule = FaultRule(rule_id=rule_id, generator=generator, **fields)
        self._rules[rule_id] = rule
        return rule

    def list_rules(self) -> list[FaultRule]:
        """Return all rules, the oldest first."""
        return list(self._rules.values())

    def remove(self, rule_id: str) -> FaultRule:
        """Remove a rule and return it. Raises NotFound."""
        rule = self._rules.pop(rule_id, None)
        if rule is None:
            raise NotFound(f"there is no rule {describe_value(rule_id)}")
        return rule

    def clear(self) -> int:
        """Remove all rules and return how many there were; the next one is `rule-1` again."""
        count = len(self._rules)
        self._rules.clear()
        self._last_number = 0
        return count

    def choose(self, scope: Scope) -> Faults | None:
        """Return the faults of the first rule that applies to a request; None without one."""
        if not self._rules:
            return None
        request_route = read_route(scope)
        endpoint = request_route.endpoint or self.default_endpoint
        wire_format = request_route.facts.wire_format
        for rule in self._rules.values():
            if rule.matches(endpoint, request_route.operation, wire_format) and rule.draw():
                return rule.faults
        return None


def _read_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a rule. Raises InvalidRequest."""
    for name in body:
        if name not in _FIELDS:
            raise InvalidRequest(
                f"{describe_value(name)} is not a field of a rule; the fields are "
                f"{', '.join(_FIELDS)}"
            )
    faults, endpoint = body.get("fault"), body.get("endpoint")
    operation, times = body.get("operation"), body.get("times")
    probability = body.get("probability", 1.0)
    if not isinstance(faults, str):
        raise InvalidRequest(
            f"fault must be a text such as status=503, got {describe_value(faults)}", "fault"
        )
    if endpoint is not None and not (
        isinstance(endpoint, str) and 0 < len(endpoint) <= _MAX_ENDPOINT_CHARS
    ):
        raise InvalidRequest(
            f"endpoint must be the id of an endpoint, got {describe_value(endpoint)}", "endpoint"
        )
    if operation is not None and operation not in OPERATIONS_WITH_FAULTS:
        raise InvalidRequest(
            f"operation must be one of {', '.join(OPERATIONS_WITH_FAULTS)}, got "
            f"{describe_value(operation)}",
            "operation",
        )
    if not _is_number(probability) or not 0 <= probability <= 1:
        raise InvalidRequest(
            f"probability must be a number from 0 to 1, got {describe_value(probability)}",
            "probability",
        )
    if times is not None and not (
        isinstance(times, int) and not isinstance(times, bool) and 1 <= times <= MAX_TIMES
    ):
        raise InvalidRequest(
            f"times must be a whole number from 1 to {MAX_TIMES}, got {describe_value(times)}",
            "times",
        )
    parsed = parse_faults(faults, "fault")
    if "lose-lease" in parsed and operation not in _TAKE_OPERATIONS:
        raise InvalidRequest(
            f"operation must be one of {', '.join(_TAKE_OPERATIONS)} for lose-lease, got "
            f"{describe_value(operation)}",
            "operation",
        )
    return {
        "faults": parsed,
        "endpoint": endpoint,
        "operation": operation,
        "probability": float(probability),
        "remaining": times,
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
