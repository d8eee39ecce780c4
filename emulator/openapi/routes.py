"""`/openapi.json`, `/docs` and the files of its page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from emulator.http.public_files import (
    DOCS_FILES,
    DOCS_FOLDER,
    DOCS_PATH,
    DOCS_PATHS,
    OPENAPI_PATH,
    SWAGGER_UI_FILES,
)
from emulator.http.responses import JSON
from emulator.http.route_facts import ApiRoute, OperationName, public_facts
from emulator.http.static_files import HEADERS, Asset, load_asset, send_asset
from emulator.openapi.swagger_ui import find_swagger_ui
from emulator.settings.emulator_settings import EmulatorSettings

logger = logging.getLogger(__name__)

# Enforced by the browser: scripts, styles and calls of this server alone. Swagger UI's style sheet
# has its icons in it, as `data:` images.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The page is counted under its name, and its files are not.
_FACTS_OF_FILES = {
    path: public_facts(OperationName.DOCS if path == DOCS_PATH else OperationName.OTHER)
    for path in DOCS_PATHS - {OPENAPI_PATH}
}
_HEADERS = {**HEADERS, "content-security-policy": POLICY}


class DocsRoutes:
    """Serves the description of the other routes, and the page that shows it.

    The description is imported and made, and the files are read, on first use, so that the server's
    start does not wait for them.
    """

    def __init__(self, routes: Sequence[ApiRoute], settings: EmulatorSettings) -> None:
        self._described_routes = routes
        self._settings = settings

    @cached_property
    def _description(self) -> dict[str, Any]:
        from emulator.openapi.spec import build_description

        return build_description(self._described_routes, self._settings)

    @cached_property
    def _assets(self) -> Mapping[str, Asset]:
        """The page and its files by their paths."""
        folder = find_swagger_ui()
        files = [
            *(folder / name for name in SWAGGER_UI_FILES),
            *(DOCS_FOLDER / name for name in DOCS_FILES),
        ]
        assets = {f"{DOCS_PATH}/{file.name}": load_asset(file, compress=True) for file in files}
        return {DOCS_PATH: load_asset(DOCS_FOLDER / "index.html"), **assets}

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        files = sorted(DOCS_PATHS - {OPENAPI_PATH})
        return [
            ApiRoute(
                OPENAPI_PATH,
                self._send_document,
                methods=["GET"],
                facts=public_facts(OperationName.OPENAPI),
            ),
            *(
                ApiRoute(path, self._send_file, methods=["GET"], facts=_FACTS_OF_FILES[path])
                for path in files
            ),
        ]

    async def _send_document(self, request: Request) -> Response:
        return JSON(self._description)

    async def _send_file(self, request: Request) -> Response:
        # In a thread: the first call reads and compresses 2 MB.
        assets = await asyncio.to_thread(lambda: self._assets)
        return send_asset(request, assets[request.url.path], _HEADERS)
