"""Find the route of a request once, for everything that depends on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from emulator.http.error_format import ErrorFormat
from emulator.http.route_facts import (
    SCOPE_KEY,
    ApiRoute,
    OperationName,
    RequestRoute,
    RouteFacts,
    RouteGroup,
)

_UNKNOWN = RouteFacts(group=RouteGroup.CLIENT, operation=OperationName.OTHER)
# In place of the next segment, where that is a path parameter.
_ANY = "*"
_UNKNOWN_OF_ENDPOINT = replace(_UNKNOWN, error_format=ErrorFormat.RUNPOD)
# RunPod's REST API v2 is under this name, and no job operation follows.
_REST_V2 = "serverless"
_UNKNOWN_OF_REST_V2 = replace(_UNKNOWN, error_format=ErrorFormat.PROBLEM)


class RouteTable:
    """The mounted routes by their paths.

    A path that no route has gets the facts of the routes that begin as it does: an unknown path
    under /v1 is answered in OpenAI's form, and one of a worker needs the worker's key. It is never
    open.
    """

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        routes = tuple(routes)
        # The operations of all models' APIs: one of them is looked for in a path whose route does
        # not say its operation.
        self._operations: dict[str, OperationName] = {
            route.facts.operation.value: route.facts.operation
            for route in routes
            if route.facts.group is RouteGroup.OPENAI and route.facts.operation is not None
        }
        # Routes with path parameters by whether they name an endpoint, and their next segment.
        self._with_parameters: defaultdict[tuple[bool, str], list[ApiRoute]] = defaultdict(list)
        # The facts of unknown paths by whether they name an endpoint, and their next segments.
        self._unknown: dict[tuple[bool, *tuple[str, ...]], RouteFacts] = {}
        in_other_form: dict[tuple[bool, *tuple[str, ...]], RouteFacts] = {}
        for route in routes:
            endpoint, segments = split_path(route.path)
            has_endpoint = endpoint is not None
            if route.param_convertors:
                first = _ANY if segments[0].startswith("{") else segments[0]
                self._with_parameters[has_endpoint, first].append(route)
            similar = _describe_similar(route.facts)
            other = _describe_other_form(similar, has_endpoint=not has_endpoint)
            # `/v2/…` is most often an endpoint, whatever follows.
            for count in range(2 if segments[0] == "v2" else 1, len(segments) + 1):
                beginning = segments[:count]
                self._unknown.setdefault((has_endpoint, *beginning), similar)
                in_other_form.setdefault((not has_endpoint, *beginning), other)
        self._unknown = in_other_form | self._unknown
        self._max_segments = max(map(len, self._unknown), default=1) - 1
        # All routes that have the path of a route without parameters.
        self._by_path = {
            route.path: [each for each in routes if each.fits(route.path)]
            for route in routes
            if not route.param_convertors
        }

    def find(self, path: str, method: str) -> RequestRoute:
        """Return the route of a request, or the facts that apply without a route."""
        endpoint, segments = split_path(path)
        has_endpoint = endpoint is not None
        candidates = self._by_path.get(path)
        if candidates is None:
            candidates = [
                *self._with_parameters.get((has_endpoint, segments[0]), ()),
                *self._with_parameters.get((has_endpoint, _ANY), ()),
            ]
        route = None
        for each in candidates:
            if each.fits(path):
                if method in each.methods:
                    route = each
                    break
                # If no route has the method, this one answers 405.
                route = route or each
        facts = self._find_unknown(endpoint, segments) if route is None else route.facts
        operation = facts.operation or self._find_operation(segments)
        return RequestRoute(path, facts, operation, endpoint, route)

    def _find_operation(self, segments: list[str]) -> OperationName:
        names = (self._operations[each] for each in segments if each in self._operations)
        return next(names, OperationName.OTHER)

    def _find_unknown(self, endpoint: str | None, segments: list[str]) -> RouteFacts:
        """Return the facts of a path by the routes that have the most first segments of it."""
        has_endpoint = endpoint is not None
        for count in range(min(len(segments), self._max_segments), 0, -1):
            facts = self._unknown.get((has_endpoint, *segments[:count]))
            if facts is not None:
                return facts
        if endpoint == _REST_V2:
            return _UNKNOWN_OF_REST_V2
        return _UNKNOWN_OF_ENDPOINT if has_endpoint else _UNKNOWN


def _describe_similar(facts: RouteFacts) -> RouteFacts:
    """Return the facts of an unknown path that begins as a route does."""
    if facts.group is RouteGroup.PUBLIC:
        return replace(_UNKNOWN, operation=facts.operation)
    return replace(facts, operation=None) if facts.group is RouteGroup.OPENAI else facts


def _describe_other_form(similar: RouteFacts, *, has_endpoint: bool) -> RouteFacts:
    """Return the facts of an unknown path that differs from a route by `/v2/{endpoint}` too."""
    if similar.group is RouteGroup.OPENAI:
        return replace(similar, error_format=ErrorFormat.OPENAI)
    unknown = _UNKNOWN_OF_ENDPOINT if has_endpoint else _UNKNOWN
    return replace(similar, group=RouteGroup.CLIENT, error_format=unknown.error_format)


class RouteLookupMiddleware:
    """Puts the route of each request into its scope, where `read_route` finds it.

    A path of an API with a slash at its end is answered as without it: some clients do not follow
    a redirect of a POST. Pages are redirected, because their links are relative.
    """

    def __init__(self, app: ASGIApp, table: RouteTable) -> None:
        self._app = app
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its route."""
        if scope["type"] == "http":
            path, method = scope["path"], scope["method"]
            route = self._table.find(path, method)
            if path.endswith("/") and route.facts.group is not RouteGroup.PUBLIC:
                without_slash = self._table.find(path[:-1], method)
                is_api = without_slash.facts.group is not RouteGroup.PUBLIC
                if is_api and without_slash.route is not None:
                    route, scope["path"] = without_slash, path[:-1]
            scope[SCOPE_KEY] = route
        await self._app(scope, receive, send)


def split_path(path: str) -> tuple[str | None, list[str]]:
    """Return the endpoint that a path or a route's pattern names, and the segments that follow."""
    segments = path.split("/")[1:] or [""]
    if segments[0] == "v2" and len(segments) > 2:
        # RunPod's REST API v2 has another order than its job API.
        if segments[1] == _REST_V2 and segments[3:4] == ["workers"]:
            return segments[2], segments[3:]
        return segments[1], segments[2:]
    return None, segments
