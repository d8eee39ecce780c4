"""`/` and `/assets/*`: the console's page and its files. They hold no data of jobs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.console.assets import ASSETS
from emulator.http.static_files import HEADERS, send_asset

# Enforced by the browser: nothing from other hosts, nothing inline, no frames, and a model's text
# is never parsed as markup (`trusted-types 'none'` allows no script to create any).
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {**HEADERS, "content-security-policy": POLICY}


class PageRoutes:
    """Sends the console's files; holds no state."""

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return [Route(path, self._send, methods=["GET"]) for path in ASSETS]

    async def _send(self, request: Request) -> Response:
        return send_asset(request, ASSETS[request.url.path], _HEADERS)
