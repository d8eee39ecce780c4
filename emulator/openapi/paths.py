"""The paths of the API's reference, all of them open: they hold no data of jobs."""

from __future__ import annotations

from pathlib import Path

from emulator.openapi.swagger_ui import FILES

DOCUMENT = "/openapi.json"
PAGE = "/docs"
STATIC = Path(__file__).with_name("static")
OWN_FILES = ("page.css", "initializer.js", "theme.js")
PATHS = frozenset({DOCUMENT, PAGE, *(f"{PAGE}/{name}" for name in (*FILES, *OWN_FILES))})
