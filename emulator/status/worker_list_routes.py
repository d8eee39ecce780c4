"""`/v2/serverless`: the endpoints of the server, their workers and the logs of these."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from emulator.autoscaling.worker_log import WorkerLogs
from emulator.http.error_format import ErrorFormat
from emulator.http.responses import JSON
from emulator.http.route_facts import ApiRoute, OperationName, RequestLog, RouteFacts, RouteGroup
from emulator.runpod.job_response import LOCAL_WORKER_NAME
from emulator.status.endpoint_list import EndpointList
from emulator.status.log_stream import WorkerLogStream, read_log_query
from emulator.status.worker_list import WorkerList
from handler.errors import NotFound

# The console lists the workers every two seconds.
_FACTS = RouteFacts(
    group=RouteGroup.CLIENT,
    operation=OperationName.WORKERS,
    error_format=ErrorFormat.PROBLEM,
    log=RequestLog.FAILURES,
)


class WorkerListRoutes:
    """Answers as RunPod's REST API v2 does; its clients are RunPod's console, CLI and MCP server.

    Any endpoint may have workers, so the list of one without any is empty.
    """

    def __init__(
        self, endpoint_list: EndpointList, worker_list: WorkerList, logs: WorkerLogs
    ) -> None:
        self._endpoint_list = endpoint_list
        self._worker_list = worker_list
        self._logs = logs

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        endpoints = "/v2/serverless"
        base = f"{endpoints}/{{endpoint}}/workers"
        return [
            ApiRoute(endpoints, self._list_endpoints, methods=["GET"], facts=_FACTS),
            ApiRoute(
                f"{endpoints}/{{endpoint}}", self._get_endpoint, methods=["GET"], facts=_FACTS
            ),
            ApiRoute(base, self._list, methods=["GET"], facts=_FACTS),
            ApiRoute(f"{base}/{{worker}}/logs", self._follow_log, methods=["GET"], facts=_FACTS),
        ]

    async def _list_endpoints(self, request: Request) -> Response:
        return JSON(self._endpoint_list.describe())

    async def _get_endpoint(self, request: Request) -> Response:
        endpoint = request.path_params["endpoint"]
        description = self._endpoint_list.find(endpoint)
        if description is None:
            raise NotFound(f"there is no endpoint {endpoint}")
        return JSON(description)

    async def _list(self, request: Request) -> Response:
        return JSON(self._worker_list.describe(request.path_params["endpoint"]))

    async def _follow_log(self, request: Request) -> Any:
        endpoint, worker = request.path_params["endpoint"], request.path_params["worker"]
        query = read_log_query(request)
        log = self._logs.find(endpoint, worker)
        if log is None:
            raise NotFound(self._explain_missing_log(endpoint, worker))
        return WorkerLogStream(log, query).response()

    def _explain_missing_log(self, endpoint: str, worker: str) -> str:
        if self._worker_list.find(endpoint, worker) is None:
            return f"endpoint {endpoint} has no worker {worker}, or it ended long ago"
        if worker == LOCAL_WORKER_NAME:
            return f"{worker} is part of the server, and its lines are in the server's log"
        return f"{worker} was started by hand, and its output is where it was started"
