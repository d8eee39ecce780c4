"""`/` and `/assets/*`: the console's page and its files, which hold no job data."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from emulator.http.public_files import CONSOLE_FILES
from emulator.http.route_facts import ApiRoute, OperationName, public_facts
from emulator.http.static_files import HEADERS, load_asset, send_asset

# Enforced by the browser: nothing from other hosts, nothing inline, no frames, and a model's text
# is never parsed as markup (`trusted-types 'none'` allows no script to create any). `data:` is for
# the pictures in the outputs of jobs.
POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_FACTS = public_facts(OperationName.OTHER)
_HEADERS = {**HEADERS, "content-security-policy": POLICY}
# Read once, because the files are small.
ASSETS = {path: load_asset(file) for path, file in CONSOLE_FILES.items()}


class PageRoutes:
    """Serves the console's files; holds no state."""

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        return [ApiRoute(path, self._send, methods=["GET"], facts=_FACTS) for path in ASSETS]

    async def _send(self, request: Request) -> Response:
        return send_asset(request, ASSETS[request.url.path], _HEADERS)
