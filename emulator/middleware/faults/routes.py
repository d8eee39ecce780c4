"""`/faults`: set, list and delete the rules that make requests fail."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.route_facts import ApiRoute, OperationName, RouteFacts, RouteGroup, RouteHandler
from emulator.middleware.faults.catalogue import FAULT_KINDS
from emulator.middleware.faults.rules import FaultRules

_MAX_BODY_BYTES = 10_000
# Faults never apply to the requests that set them.
_FACTS = RouteFacts(group=RouteGroup.CLIENT, operation=OperationName.FAULTS, allows_faults=False)


class FaultRoutes:
    """Serves the rules; mounted only with FAULTS_PER_REQUEST."""

    def __init__(self, rules: FaultRules) -> None:
        self._rules = rules

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        table: list[tuple[str, str, RouteHandler]] = [
            ("POST", "/faults", self._add),
            ("GET", "/faults", self._list),
            ("DELETE", "/faults", self._clear),
            ("DELETE", "/faults/{rule_id}", self._remove),
        ]
        return [
            ApiRoute(path, handler, methods=[method], facts=_FACTS)
            for method, path, handler in table
        ]

    async def _add(self, request: Request) -> Response:
        body = await read_json(request, _MAX_BODY_BYTES)
        return JSON(self._rules.add(body).to_wire())

    async def _list(self, request: Request) -> Response:
        return JSON(
            {
                "rules": [rule.to_wire() for rule in self._rules.list_rules()],
                "faults": {kind.usage(): kind.meaning for kind in FAULT_KINDS.values()},
            }
        )

    async def _clear(self, request: Request) -> Response:
        return JSON({"deleted": self._rules.clear()})

    async def _remove(self, request: Request) -> Response:
        return JSON(self._rules.remove(request.path_params["rule_id"]).to_wire())
