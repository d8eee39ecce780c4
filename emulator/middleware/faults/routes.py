"""`/faults`: set, list and delete the rules that make requests fail."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.middleware.faults.catalogue import FAULT_KINDS
from emulator.middleware.faults.rules import FaultRules

_MAX_BODY_BYTES = 10_000


class FaultRoutes:
    """Serves the rules; mounted only with FAULTS_PER_REQUEST."""

    def __init__(self, rules: FaultRules) -> None:
        self._rules = rules

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return [
            Route("/faults", self._add, methods=["POST"]),
            Route("/faults", self._list, methods=["GET"]),
            Route("/faults", self._clear, methods=["DELETE"]),
            Route("/faults/{rule_id}", self._remove, methods=["DELETE"]),
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
