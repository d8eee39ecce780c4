"""Parses the body of `/run` and `/runsync` into a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from common.value_description import describe_value
from emulator.http.request_body import encode_json
from emulator.runpod.webhook_loops import DEPTH_KEY
from emulator.settings.limits import PolicyLimits
from handler.delivery.bucket import check_target, describe_type
from handler.delivery.outbound_targets import OutboundPolicy
from handler.errors import InvalidRequest
from handler.input.sampling import as_integer
from jobs import NewJob, Policy

_MAX_POLICY_MS = 7 * 24 * 3600 * 1000
_MAX_URL_CHARS = 2_000
_ANY_TARGET = OutboundPolicy()


def parse_job(
    body: Mapping[str, Any],
    endpoint: str,
    limits: PolicyLimits,
    *,
    sync: bool,
    targets: OutboundPolicy = _ANY_TARGET,
    webhook_depth: int = 0,
) -> NewJob:
    """Return the job of a request body. Its webhook and bucket must be allowed by `targets`.

    Raises:
        InvalidRequest: a field is missing or wrong; the sentence names it.
    """
    if body.get("input") is None:
        raise InvalidRequest("input must be given: the job's own parameters", "input")
    webhook = body.get("webhook")
    if webhook is not None and not _is_url(webhook):
        raise InvalidRequest(
            f"webhook must be an http or https URL, got {describe_value(webhook)}", "webhook"
        )
    if webhook is not None:
        check_target(webhook, "webhook", targets)
    s3_config = body.get("s3Config")
    if s3_config is not None and not isinstance(s3_config, dict):
        # The message must not quote the value: it may contain secrets.
        raise InvalidRequest(
            f"s3Config must be an object, got {describe_type(s3_config)}", "s3Config"
        )
    if s3_config is not None and _is_url(s3_config.get("endpointUrl")):
        # The worker checks all other values of s3Config.
        check_target(s3_config["endpointUrl"], "s3Config.endpointUrl", targets)
    extra = {name: body[name] for name in ("webhook", "s3Config") if body.get(name) is not None}
    if webhook is not None and webhook_depth:
        extra[DEPTH_KEY] = webhook_depth
    return NewJob(
        endpoint=endpoint,
        input=encode_json(body["input"], "input", "input"),
        sync=sync,
        policy=_parse_policy(body.get("policy"), limits),
        webhook=webhook,
        extra=encode_json(extra, "s3Config", "s3Config") if extra else b"",
    )


def _is_url(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _MAX_URL_CHARS or not value.isprintable():
        return False
    try:
        url = urlsplit(value)
        # `port` raises ValueError if the URL's port is not valid.
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def _parse_policy(policy: Any, limits: PolicyLimits) -> Policy:
    if policy is None:
        return limits.default
    if not isinstance(policy, dict):
        raise InvalidRequest(f"policy must be an object, got {describe_value(policy)}", "policy")
    low_priority = policy.get("lowPriority")
    if low_priority is None:
        low_priority = False
    if not isinstance(low_priority, bool):
        raise InvalidRequest(
            f"policy.lowPriority must be true or false, got {describe_value(low_priority)}",
            "policy.lowPriority",
        )
    return Policy(
        execution_timeout_ms=_parse_milliseconds(
            policy,
            "executionTimeout",
            limits.default.execution_timeout_ms,
            limits.min_execution_timeout_ms,
        ),
        ttl_ms=_parse_milliseconds(policy, "ttl", limits.default.ttl_ms, limits.min_ttl_ms),
        low_priority=low_priority,
    )


def _parse_milliseconds(policy: Mapping[str, Any], name: str, default: int, minimum: int) -> int:
    value = policy.get(name)
    if value is None:
        return default
    number = as_integer(value)
    if type(number) is not int or not minimum <= number <= _MAX_POLICY_MS:
        raise InvalidRequest(
            f"policy.{name} must be a whole number of milliseconds from {minimum} to "
            f"{_MAX_POLICY_MS}, got {describe_value(value)}",
            f"policy.{name}",
        )
    return number
