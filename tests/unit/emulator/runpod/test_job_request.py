"""Accepted job bodies, and the error messages for refused ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emulator.runpod.job_request import parse_job
from emulator.settings.limits import PolicyLimits
from handler.errors import InvalidRequest
from jobs import Policy

WEEK_MS = 7 * 24 * 3600 * 1000
INPUT: dict[str, Any] = {"prompt": "hello"}


def refused(**body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_job({"input": INPUT} | body, "default", PolicyLimits(), sync=False)
    return caught.value


def policy(**values: Any) -> Policy:
    return parse_job({"input": INPUT, "policy": values}, "e", PolicyLimits(), sync=False).policy


def test_job_has_the_fields_of_the_body_and_runpods_defaults() -> None:
    job = parse_job({"input": INPUT, "more": 1}, "mine", PolicyLimits(), sync=True)
    assert (job.endpoint, job.sync, job.webhook, job.extra) == ("mine", True, None, b"")
    assert json.loads(job.input) == INPUT
    assert job.policy == Policy(execution_timeout_ms=600_000, ttl_ms=86_400_000, low_priority=False)


@pytest.mark.parametrize(
    "job_input", [{}, [], "", 0, False, 1.5, "text", [1], {"deep": [{"er": None}]}]
)
def test_input_may_be_any_json_except_null(job_input: Any) -> None:
    assert (
        json.loads(parse_job({"input": job_input}, "e", PolicyLimits(), sync=False).input)
        == job_input
    )


@pytest.mark.parametrize("body", [{}, {"input": None}, {"Input": {}}, {"prompt": "x"}])
def test_missing_input_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="input must be given") as caught:
        parse_job(body, "e", PolicyLimits(), sync=False)
    assert caught.value.param == "input"


@pytest.mark.parametrize("field", ["input", "s3Config"])
def test_value_that_cannot_be_re_encoded_is_refused(field: str) -> None:
    deep: Any = {"a": 1}
    for _ in range(300):
        deep = {"a": deep}
    error = refused(**{field: deep})
    assert (error.message, error.param) == (f"{field} is nested too deeply", field)


def test_webhook_and_bucket_are_sent_to_the_worker() -> None:
    bucket = {"accessId": "a", "accessSecret": "s", "bucketName": "b", "endpointUrl": "http://s3"}
    body = {"input": INPUT, "webhook": "http://here/", "s3Config": bucket, "policy": {}}
    job = parse_job(body, "e", PolicyLimits(), sync=False)
    assert json.loads(job.extra) == {"webhook": "http://here/", "s3Config": bucket}
    assert job.webhook == "http://here/"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/x",
        "https://example.com",
        "HTTP://example.com",
        "https://u:p@example.com:8443/a?b=c#d",
        "http://[::1]:8000/",
        "http://é.example/",
        "https://example.com/" + "x" * 1_980,
    ],
)
def test_webhook_url_is_accepted(url: str) -> None:
    job = parse_job({"input": INPUT, "webhook": url}, "e", PolicyLimits(), sync=False)
    assert job.webhook == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com",
        "file:///etc/passwd",
        "http://",
        "http:///path",
        "http://:80/",
        "http://[::1",
        "http://host:99999/",
        "http://host:x/",
        "http://host:0/",
        "http://host/\n",
        "http://ho\x00st/",
        "https://example.com/" + "x" * 1_981,
        5,
        True,
        ["http://example.com"],
        {"url": "http://example.com"},
    ],
)
def test_webhook_that_is_not_a_url_is_refused(url: Any) -> None:
    error = refused(webhook=url)
    assert error.message.startswith("webhook must be an http or https URL, got ")
    assert error.param == "webhook"
    assert len(error.message) < 200


@pytest.mark.parametrize(
    ("bucket", "got"),
    [("s3://a:secret@x", "a string"), ([], "an array"), (1, "a number"), (True, "true or false")],
)
def test_bucket_that_is_not_an_object_is_refused_without_quoting_it(bucket: Any, got: str) -> None:
    error = refused(s3Config=bucket)
    assert error.message == f"s3Config must be an object, got {got}"
    assert error.param == "s3Config"


def test_policy_within_its_bounds_is_accepted() -> None:
    assert policy(executionTimeout=5_000, ttl=10_000, lowPriority=True) == Policy(
        execution_timeout_ms=5_000, ttl_ms=10_000, low_priority=True
    )
    longest = policy(executionTimeout=WEEK_MS, ttl=WEEK_MS, lowPriority=False)
    assert (longest.execution_timeout_ms, longest.ttl_ms) == (WEEK_MS, WEEK_MS)


def test_null_in_a_policy_selects_the_default() -> None:
    assert policy(executionTimeout=None, ttl=None, lowPriority=None) == Policy()
    assert policy(executionTimeout=5_000.0) == Policy(execution_timeout_ms=5_000)  # R66
    body = {"input": INPUT, "policy": None, "webhook": None, "s3Config": None}
    job = parse_job(body, "e", PolicyLimits(), sync=False)
    assert (job.policy, job.webhook, job.extra) == (Policy(), None, b"")


def test_defaults_and_bounds_are_settings() -> None:
    limits = PolicyLimits(
        default=Policy(execution_timeout_ms=7, ttl_ms=8),
        min_execution_timeout_ms=1,
        min_ttl_ms=2,
    )
    body = {"input": INPUT, "policy": {"executionTimeout": 1}}
    assert parse_job(body, "e", limits, sync=False).policy == Policy(
        execution_timeout_ms=1, ttl_ms=8
    )


@pytest.mark.parametrize(
    ("name", "minimum"), [("executionTimeout", 5_000), ("ttl", 10_000)], ids=["execution", "ttl"]
)
@pytest.mark.parametrize("offset", [-1, None, "text", True, 5000.5, "5000", [5000]])
def test_time_out_of_bounds_is_refused(name: str, minimum: int, offset: Any) -> None:
    value = minimum - 1 if offset == -1 else (WEEK_MS + 1 if offset is None else offset)
    error = refused(policy={name: value})
    assert error.message.startswith(
        f"policy.{name} must be a whole number of milliseconds from {minimum} to {WEEK_MS}, got "
    )
    assert error.param == f"policy.{name}"


@pytest.mark.parametrize("value", [0, 1, "true", [], {}])
def test_low_priority_that_is_not_a_boolean_is_refused(value: Any) -> None:
    error = refused(policy={"lowPriority": value})
    assert error.message.startswith("policy.lowPriority must be true or false, got ")
    assert error.param == "policy.lowPriority"


@pytest.mark.parametrize("value", [[], "fast", 1, False])
def test_policy_that_is_not_an_object_is_refused(value: Any) -> None:
    error = refused(policy=value)
    assert error.message.startswith("policy must be an object, got ")
    assert error.param == "policy"
