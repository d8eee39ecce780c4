"""The routes of whole servers, for tests of code that reads a request's route."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from starlette.applications import Starlette

from emulator.app import create_app
from emulator.http.route_facts import SCOPE_KEY, ApiRoute, RequestRoute
from emulator.http.route_table import RouteTable
from emulator.startup.components import build_components
from engine import Engine
from handler.settings.engine_configs import build_engine_config
from tests.integration.emulator.conftest import build_settings


@cache
def mounted_routes(*, metrics_open: bool) -> list[ApiRoute]:
    """Return the routes of a server that has a model, those of the faults among them."""
    values: Mapping[str, Any] = {"engine": "scripted", "job_db": ":memory:"}
    settings = build_settings({**values, "faults_per_request": True, "metrics_open": metrics_open})
    return api_routes(create_app(build_components(settings, Engine(build_engine_config(settings)))))


def api_routes(app: Starlette) -> list[ApiRoute]:
    """Return the routes of an application; all of them have facts."""
    routes = [route for route in app.routes if isinstance(route, ApiRoute)]
    assert routes == app.routes
    return routes


@cache
def route_table(*, metrics_open: bool) -> RouteTable:
    """Return the table of the routes of a server that has a model."""
    return RouteTable(mounted_routes(metrics_open=metrics_open))


def find_route(path: str, method: str = "GET") -> RequestRoute:
    """Return the facts about a request on a server that has a model."""
    return route_table(metrics_open=False).find(path, method)


def with_route(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's scope with its route, as RouteLookupMiddleware passes it on."""
    return {**scope, SCOPE_KEY: find_route(scope["path"], scope.get("method", "GET"))}
