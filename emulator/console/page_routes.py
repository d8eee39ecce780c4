"""`/` and `/assets/*`: the console itself, which tells nothing of anybody's jobs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.console.assets import ASSETS

# The browser keeps the page to its word: nothing of other hosts, nothing inline, no frames, and
# no text of a model ever read as markup (`trusted-types 'none'` lets no script make any).
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # Kept, and asked for again with its etag: a server that was updated shows its new page.
    "cache-control": "no-cache",
}


class PageRoutes:
    """Sends files; holds nothing."""

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return [Route(path, self._send, methods=["GET"]) for path in ASSETS]

    async def _send(self, request: Request) -> Response:
        asset = ASSETS[request.url.path]
        headers = {**_HEADERS, "etag": asset.etag}
        known = request.headers.get("if-none-match", "")
        if asset.etag in (each.strip().removeprefix("W/") for each in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(asset.body, headers={**headers, "content-type": asset.label})
