"""Swagger UI's files are found without importing the package that has them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.http.public_files import DOCS_FILES, DOCS_FOLDER, DOCS_PATHS, SWAGGER_UI_FILES
from emulator.openapi.spec import TAGS
from emulator.openapi.swagger_ui import find_swagger_ui

OUTSIDE = re.compile(r"\bhttps?:|\bwss?:|[\"'(]//\w|@import|\burl\(")


def test_find_swagger_ui_returns_version_5() -> None:
    folder = find_swagger_ui()
    assert folder is not None
    bundle = (folder / "swagger-ui-bundle.js").read_text()
    assert re.search(r'PACKAGE_VERSION:"5\.\d+', bundle)


def test_find_swagger_ui_does_not_import_the_package() -> None:
    program = (
        "import sys, emulator.openapi.swagger_ui as found\n"
        "assert found.find_swagger_ui() is not None\n"
        "assert not {'fastapi', found.PACKAGE} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_find_swagger_ui_names_a_package_that_is_not_installed() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package has no resources/swagger-ui"):
        find_swagger_ui("no_such_package")


def test_find_swagger_ui_raises_when_a_file_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = tmp_path / "half_a_package" / "resources"
    resources.mkdir(parents=True)
    (resources.parent / "__init__.py").touch()
    (resources / SWAGGER_UI_FILES[0]).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="half_a_package"):
        find_swagger_ui("half_a_package")
    (resources / SWAGGER_UI_FILES[1]).touch()
    assert find_swagger_ui("half_a_package") == resources


def test_page_has_nothing_inline_and_names_only_files_of_the_server() -> None:
    html = (DOCS_FOLDER / "index.html").read_text()
    assert "<style" not in html
    assert not re.search(r"<script(?![^>]* src=)", html)
    assert not re.search(r"\s(on\w+|style)=", html)
    named = set(re.findall(r'(?:src|href)="([^"]+)"', html))
    assert named - {"/", "/assets/icon.svg"} == DOCS_PATHS


def test_own_files_have_no_outside_address() -> None:
    for name in DOCS_FILES:
        assert not OUTSIDE.search((DOCS_FOLDER / name).read_text()), name


def test_closed_tags_are_tags() -> None:
    script = (DOCS_FOLDER / "initializer.js").read_text()
    [closed] = re.findall(r"CLOSED_TAGS = \[(.*)\]", script)
    assert set(re.findall(r'"(\w+)"', closed)) < set(TAGS)
