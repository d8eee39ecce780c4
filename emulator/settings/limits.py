"""Plain limits and policies that the settings are converted to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from handler.input.json_values import MAX_JSON_VALUES
from jobs import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The time, connections and memory that clients may use.

    `head_s`: seconds until the headers of a request have been received, from the opening of the
    connection or the first byte of the request. `body_s`: seconds from there to the end of the
    body. `read_s`: seconds that a client may read nothing while data waits for it.
    `max_connections`: open connections, in total and per address. `max_pending_body_bytes`: the sum
    of all bodies that are being received, in total and per address. `max_json_values`: list
    elements, keys, lists and objects of one body.
    """

    head_s: float = 10.0
    body_s: float = 300.0
    read_s: float = 60.0
    max_connections: int = 4_096
    max_connections_per_address: int = 2_048
    max_pending_body_bytes: int = 200_000_000
    max_pending_body_bytes_per_address: int = 100_000_000
    max_json_values: int = MAX_JSON_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLimits:
    """The default policy of a job, and the lowest values that a job may set, in milliseconds."""

    default: Policy = field(default_factory=Policy)
    min_execution_timeout_ms: int = 5_000
    min_ttl_ms: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """RunPod's scaling settings of an endpoint, with RunPod's defaults.

    `delay` adds a worker when a job has waited for `queue_delay_s`, and another one after each
    further `queue_delay_s` in which a job still waits. `count` runs one worker for every
    `request_count` jobs, queued and running.
    """

    min_workers: int = 0
    max_workers: int = 3
    scaler: Literal["delay", "count"] = "delay"
    queue_delay_s: float = 4.0
    request_count: int = 4
    idle_timeout_s: float = 5.0
