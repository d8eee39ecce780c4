"""Compares the bodies that a server accepts with its description in /openapi.json."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import httpx2
import jsonschema_rs
from starlette.applications import Starlette
from starlette.routing import Match, Route

from emulator.http.route_facts import ApiRoute
from emulator.openapi.spec import build_description, openapi_path
from emulator.settings.emulator_settings import EmulatorSettings

# By what a description depends on: most servers of the tests share one.
_descriptions: dict[tuple[Any, ...], DescribedBodies] = {}


class DescribedBodies:
    """The schemas of the bodies that one description has, compiled when they are first used."""

    def __init__(self, routes: list[ApiRoute], settings: EmulatorSettings) -> None:
        self._description = build_description(routes, settings)
        self._find_validator = cache(self._build_validator)
        self._accepted = set[int]()

    def check(self, path: str, content: bytes) -> None:
        """Check that the schema of a path accepts a JSON body, once for each body.

        Raises:
            AssertionError: with the path and the reasons.
        """
        key = hash((path, content))
        if key in self._accepted or self._find_validator(path) is None:
            return
        problems = self.find_problems(path, json.loads(content))
        assert not problems, f"/openapi.json refuses what {path} answers with 200: {problems}"
        self._accepted.add(key)

    def find_problems(self, path: str, body: Any) -> list[str]:
        """Return what the schema of a path refuses; nothing if the path has no schema."""
        validator = self._find_validator(path)
        if validator is None:
            return []
        return [f"{each.instance_path}: {each.message}" for each in validator.iter_errors(body)]

    def _build_validator(self, path: str) -> Any:
        operation = self._description["paths"].get(path, {}).get("post", {})
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" not in content:
            return None
        schema = content["application/json"]["schema"]
        return jsonschema_rs.validator_for(
            {**schema, "components": self._description["components"]}
        )


def describe_bodies(app: Starlette, settings: EmulatorSettings) -> DescribedBodies:
    """Return the schemas of a server's bodies; servers with the same description share them."""
    routes = [route for route in app.routes if isinstance(route, ApiRoute)]
    key = (
        tuple(route.path for route in routes),
        settings.served_models,
        settings.served_adapters,
        settings.policy_limits(),
    )
    if key not in _descriptions:
        _descriptions[key] = DescribedBodies(routes, settings)
    return _descriptions[key]


class AcceptedBodies:
    """A hook of an HTTP client: what the server answers with 200 must be as it is described."""

    def __init__(self, app: Starlette, settings: EmulatorSettings) -> None:
        self._app = app
        self._settings = settings
        self._find_path = cache(self._match_route)

    async def check(self, response: httpx2.Response) -> None:
        """Check the body of an answered request. Raises AssertionError."""
        request = response.request
        if request.method != "POST" or response.status_code != 200:
            return
        # A body that is uploaded in parts cannot be read again; that of a form is not JSON.
        is_whole = isinstance(request.stream, httpx2.ByteStream)
        if not is_whole or request.headers.get("content-type", "").startswith("multipart/"):
            return
        path = self._find_path(request.url.path)
        # The request after a redirect is not read yet.
        if path is not None and (content := await request.aread()):
            describe_bodies(self._app, self._settings).check(path, content)

    def _match_route(self, path: str) -> str | None:
        """Return the path of a request's route, in the form of the description."""
        scope = {"type": "http", "method": "POST", "path": path}
        for route in self._app.routes:
            if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
                return openapi_path(route.path)
        return None
