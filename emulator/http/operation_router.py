"""Routes found by the name of their operation instead of one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from inspect import iscoroutinefunction

from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from emulator.http.request_target import operation_of


class ByOperation(BaseRoute):
    """Stands before many routes and finds the one a call is for, if it is one of them.

    Starlette tries each route's pattern in turn, which takes longer than accepting a job. What is
    found wrong with a call, an unknown path or method, is left to the routes behind.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes: defaultdict[str, list[Route]] = defaultdict(list)
        for route in routes:
            # Others would have to be run in a thread.
            if iscoroutinefunction(route.endpoint):
                self._routes[operation_of(route.path)].append(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return what the first one that matches returns."""
        if scope["type"] == "http":
            for route in self._routes.get(operation_of(scope["path"]), ()):
                match, found = route.matches(scope)
                if match is Match.FULL:
                    return match, found
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have it answer; what it raises is the application's to answer, as for any route."""
        response = await scope["endpoint"](Request(scope, receive, send))
        await response(scope, receive, send)
