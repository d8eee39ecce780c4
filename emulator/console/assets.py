"""The console's files, by the paths they are served at."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).with_name("static")
_PAGE = "index.html"
# Named here: what the machine's own tables say of a suffix differs from one to the next.
_LABELS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent: its bytes, its content type, and a name for exactly these bytes."""

    body: bytes
    label: str
    etag: str


def _read(file: Path) -> Asset:
    body = file.read_bytes()
    return Asset(body, _LABELS[file.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _path(file: Path) -> str:
    return "/" if file.name == _PAGE else f"/assets/{file.name}"


# Read once: they are small, and a path that is not among them is no file of anybody's.
ASSETS: Mapping[str, Asset] = {
    _path(file): _read(file) for file in sorted(_FOLDER.iterdir()) if file.suffix in _LABELS
}
