"""The console's files, by the paths they are served at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from emulator.http.static_files import CONTENT_TYPES, Asset, load_asset

_FOLDER = Path(__file__).with_name("static")
_PAGE = "index.html"


def _path(file: Path) -> str:
    return "/" if file.name == _PAGE else f"/assets/{file.name}"


# Read once: they are small, and no path outside this table is ever looked up on the disk.
ASSETS: Mapping[str, Asset] = {
    _path(file): load_asset(file)
    for file in sorted(_FOLDER.iterdir())
    if file.suffix in CONTENT_TYPES
}
