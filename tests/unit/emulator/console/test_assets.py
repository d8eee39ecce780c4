"""The console's files: all of them exist, and none of them loads anything from other hosts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from emulator.console.pages import ASSETS
from emulator.http.public_files import CONSOLE_FOLDER

FILES = sorted(file for file in CONSOLE_FOLDER.rglob("*") if file.is_file())
MODULES = [file for file in FILES if file.suffix == ".js"]
OUTSIDE = re.compile(r"\bhttps?:|\bwss?:|[\"'(]//\w|@import|\burl\(")
# The namespace of SVG, which browsers do not fetch.
NAMES = ("http://www.w3.org/2000/svg",)
# APIs that parse text as markup or run it as a program.
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
    r"|setHTML|srcdoc|\beval\b|new Function|setTimeout\(\s*[\"'`]"
)


def path_of(file: Path) -> str:
    return f"/assets/{file.relative_to(CONSOLE_FOLDER).as_posix()}"


def test_every_file_is_served() -> None:
    paths = {path_of(file) for file in FILES}
    assert "/assets/index.html" in paths
    assert paths - {"/assets/index.html"} == ASSETS.keys() - {"/"}


def test_no_file_has_an_outside_address() -> None:
    for file in FILES:
        text = file.read_text()
        for name in NAMES:
            text = text.replace(f'"{name}"', "")
        assert not OUTSIDE.search(text), file.name


def test_no_module_reads_text_as_markup() -> None:
    for file in MODULES:
        assert not SINKS.search(file.read_text()), file.name


def test_every_import_names_an_existing_file() -> None:
    for file in MODULES:
        for name in re.findall(r'^import (?:.* from )?"([^"]+)";$', file.read_text(), re.M):
            imported = Path(os.path.normpath(file.parent / name))
            assert path_of(imported) in ASSETS, f"{file.name}: {name}"


def test_page_has_no_inline_code_and_names_only_existing_files() -> None:
    html = ASSETS["/"].body.decode()
    assert "<style" not in html
    assert not re.search(r"<script(?![^>]* src=)", html)
    assert not re.search(r"\s(on\w+|style)=", html)
    named = re.findall(r'(?:src|href)="(/[^"]+)"', html)
    assert "/assets/main.js" in named
    assert set(named) - {"/docs", "/openapi.json"} <= set(ASSETS)


def test_no_file_is_long() -> None:
    for file in FILES:
        assert len(file.read_text().splitlines()) <= 300, file.name
