"""List the endpoints of the server in the shape of RunPod's REST API v2."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from emulator.autoscaling.autoscaler import Autoscaler
from emulator.settings.limits import ScalingPolicy
from emulator.status.rfc3339 import format_time

# Of an endpoint whose workers are started by hand.
_UNSCALED = ScalingPolicy(max_workers=0)


class EndpointList:
    """Describes the endpoints whose workers this server starts, and endpoints with jobs.

    The shape: https://docs.runpod.io/api-reference-v2/serverless/get-a-serverless-endpoint. There
    are no GPUs and data centers here, and the variables of workers are left out, as they may be
    secret.
    """

    def __init__(
        self,
        autoscalers: Mapping[str, Autoscaler],
        list_used: Callable[[], Iterable[str]],
        execution_timeout_ms: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._autoscalers = autoscalers
        self._list_used = list_used
        self._execution_timeout_ms = execution_timeout_ms
        self._created_at = format_time(clock())

    def describe(self) -> dict[str, Any]:
        """Return the response of `GET /v2/serverless`."""
        names = dict.fromkeys([*self._autoscalers, *sorted(self._list_used())])
        return {"endpoints": [self._describe(name) for name in names]}

    def find(self, endpoint: str) -> dict[str, Any] | None:
        """Return the response of `GET /v2/serverless/{endpoint}`; None if there is none."""
        if endpoint in self._autoscalers or endpoint in self._list_used():
            return self._describe(endpoint)
        return None

    def _describe(self, endpoint: str) -> dict[str, Any]:
        autoscaler = self._autoscalers.get(endpoint)
        policy = _UNSCALED if autoscaler is None else autoscaler.policy
        scaling: dict[str, Any] = {"type": "QUEUE_DELAY", "queueDelay": policy.queue_delay_s}
        if policy.scaler == "count":
            scaling = {"type": "REQUEST_COUNT", "requestCount": policy.request_count}
        return {
            "id": endpoint,
            "name": endpoint,
            "type": "QUEUE",
            "image": "" if autoscaler is None else autoscaler.command_line,
            "workers": {
                "min": policy.min_workers,
                "max": policy.max_workers,
                "idleTimeout": round(policy.idle_timeout_s),
            },
            "scaling": scaling,
            "dataCenterIds": ["local"],
            "networkVolumes": [],
            "timeout": self._execution_timeout_ms,
            "flashboot": "OFF",
            "createdAt": self._created_at,
        }
