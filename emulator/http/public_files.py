"""The files of the pages that need no API key, because they hold no job data, and their paths."""

from __future__ import annotations

from pathlib import Path

from emulator.http.static_files import CONTENT_TYPES

_EMULATOR = Path(__file__).resolve().parents[1]

OPENAPI_PATH = "/openapi.json"
DOCS_PATH = "/docs"
DOCS_FOLDER = _EMULATOR / "openapi" / "static"
DOCS_FILES = ("page.css", "initializer.js", "theme.js")
SWAGGER_UI_FILES = ("swagger-ui.css", "swagger-ui-bundle.js")
DOCS_PATHS = frozenset(
    {OPENAPI_PATH, DOCS_PATH, *(f"{DOCS_PATH}/{name}" for name in (*SWAGGER_UI_FILES, *DOCS_FILES))}
)

CONSOLE_FOLDER = _EMULATOR / "console" / "static"
# The console's files by the path they are served at. The folders are listed once: a request path is
# never looked up on the disk.
CONSOLE_FILES = {
    "/"
    if file.name == "index.html"
    else f"/assets/{file.relative_to(CONSOLE_FOLDER).as_posix()}": file
    for file in sorted(CONSOLE_FOLDER.rglob("*"))
    if file.suffix in CONTENT_TYPES
}
