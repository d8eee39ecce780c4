"""Rules: which requests they concern, how often they apply, and their errors."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.middleware.faults.rules import MAX_RULES, OPERATIONS_WITH_FAULTS, FaultRules
from handler.errors import HandlerError, InvalidRequest, NotFound
from tests.unit.emulator.server_routes import with_route

STATUS = {"status": 503.0}


def request(path: str = "/run") -> dict[str, Any]:
    return with_route({"type": "http", "path": path})


@pytest.fixture
def rules() -> FaultRules:
    return FaultRules("default", seed=7)


def applied(rules: FaultRules, count: int = 100) -> list[bool]:
    return [rules.choose(request()) is not None for _ in range(count)]


@pytest.mark.parametrize(
    ("rule", "path", "is_applied"),
    [
        ({}, "/run", True),
        ({}, "/v1/chat/completions", True),
        ({}, "/v2/other/run", True),
        ({}, "/console/jobs", False),
        ({"operation": "console"}, "/console/jobs", True),
        ({}, "/v2/default/job-done/w/j", False),
        ({"operation": "job-done"}, "/v2/default/job-done/w/j", True),
        ({"operation": "job-done"}, "/v2/default/job-stream/w/j", False),
        ({"operation": "chat"}, "/v1/chat/completions", True),
        ({"operation": "chat"}, "/v2/other/openai/v1/chat/completions", True),
        ({"operation": "chat"}, "/v1/completions", False),
        ({"endpoint": "default"}, "/run", True),
        ({"endpoint": "default"}, "/v1/models", True),
        ({"endpoint": "default"}, "/v2/other/run", False),
        ({"endpoint": "other"}, "/v2/other/run", True),
        ({"endpoint": "other", "operation": "status"}, "/v2/other/run", False),
        ({"endpoint": None, "operation": None, "times": None}, "/run", True),
        ({"probability": 0}, "/run", False),
    ],
)
def test_rule_concerns_an_endpoint_and_an_operation(
    rules: FaultRules, rule: dict[str, Any], path: str, is_applied: bool
) -> None:
    rules.add({"fault": "status=503", **rule})
    assert rules.choose(request(path)) == (STATUS if is_applied else None)


def test_first_matching_rule_is_applied(rules: FaultRules) -> None:
    rules.add({"fault": "bom", "times": 1})
    rules.add({"fault": "crlf", "times": 1})
    assert [rules.choose(request()) for _ in range(3)] == [{"bom": 0}, {"crlf": 0}, None]


def test_probability_is_the_fraction_of_the_requests(rules: FaultRules) -> None:
    rules.add({"fault": "bom", "probability": 0.3})
    assert 15 < sum(applied(rules)) < 45


def test_seed_makes_rules_reproducible(rules: FaultRules) -> None:
    rule = {"fault": "bom", "probability": 0.5}
    rules.add(rule)
    first = applied(rules)
    rules.clear()
    rules.add(rule)
    assert applied(rules) == first
    other = FaultRules("default", seed=8)
    other.add(rule)
    assert applied(other) != first


def test_rules_are_random_without_a_seed() -> None:
    several = [FaultRules("default") for _ in range(2)]
    for rules in several:
        rules.add({"fault": "bom", "probability": 0.5})
    assert applied(several[0]) != applied(several[1])


def test_number_of_rules_is_bounded(rules: FaultRules) -> None:
    for _ in range(MAX_RULES):
        rules.add({"fault": "bom"})
    with pytest.raises(HandlerError, match="there are already 100 rules; delete one of them first"):
        rules.add({"fault": "bom"})
    rules.remove("rule-1")
    assert rules.add({"fault": "bom"}).rule_id == "rule-101"


def test_removed_rule_is_unknown(rules: FaultRules) -> None:
    rules.add({"fault": "bom"})
    rules.remove("rule-1")
    with pytest.raises(NotFound, match='there is no rule "rule-1"'):
        rules.remove("rule-1")
    assert rules.choose(request()) is None


@pytest.mark.parametrize(
    ("rule", "param", "message"),
    [
        ({}, "fault", "fault must be a text such as status=503, got null"),
        ({"fault": 5}, "fault", "fault must be a text such as status=503, got 5"),
        ({"fault": ""}, "fault", "fault must name a fault, for example status=503"),
        ({"fault": "boom"}, "fault", 'fault: "boom" is not a fault; the faults are bad-chunk, '),
        ({"endpoint": ""}, "endpoint", 'endpoint must be the id of an endpoint, got ""'),
        ({"endpoint": 5}, "endpoint", "endpoint must be the id of an endpoint, got 5"),
        ({"operation": "ping"}, "operation", "operation must be one of run, runsync, status, "),
        ({"operation": []}, "operation", "operation must be one of run, runsync, status, "),
        (
            {"fault": "lose-lease", "operation": "run"},
            "operation",
            'operation must be one of job-take, job-take-batch for lose-lease, got "run"',
        ),
        ({"probability": 2}, "probability", "probability must be a number from 0 to 1, got 2"),
        ({"probability": True}, "probability", "probability must be a number from 0 to 1, got tr"),
        ({"probability": None}, "probability", "probability must be a number from 0 to 1, got nu"),
        ({"times": 0}, "times", "times must be a whole number from 1 to 1000000, got 0"),
        ({"times": 1.0}, "times", "times must be a whole number from 1 to 1000000, got 1.0"),
        ({"times": True}, "times", "times must be a whole number from 1 to 1000000, got true"),
        (
            {"time": 1},
            None,
            '"time" is not a field of a rule; the fields are fault, endpoint, operation, '
            "probability, times",
        ),
    ],
)
def test_invalid_rule_is_explained_in_one_sentence(
    rules: FaultRules, rule: dict[str, Any], param: str | None, message: str
) -> None:
    body = rule if param == "fault" else {"fault": "bom", **rule}
    with pytest.raises(InvalidRequest) as caught:
        rules.add(body)
    assert caught.value.message.startswith(message)
    assert caught.value.param == param
    assert rules.list_rules() == []


def test_pings_and_the_servers_own_operations_have_no_faults() -> None:
    assert {"run", "chat", "console", "health", "job-done"} <= set(OPERATIONS_WITH_FAULTS)
    assert not {"faults", "ping", "job-stop", "metrics", "docs"} & set(OPERATIONS_WITH_FAULTS)
