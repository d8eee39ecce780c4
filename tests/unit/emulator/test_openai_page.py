"""The page is what the code says, and leaves out no route and no program."""

from __future__ import annotations

import re
from pathlib import Path

from emulator.openai_page import PROGRAMS, page
from emulator.operations import OPERATIONS
from handler.errors import TABLE

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "openai.md").read_text() == page(), "run `make docs`"


def test_every_place_in_the_text_is_filled() -> None:
    assert not re.findall(r"(?<!`)\{[a-z_]+\}(?!/)", re.sub(r"`[^`]*`", "", page()))


def test_every_route_and_failure_is_told() -> None:
    made = page()
    for path, operation in OPERATIONS.items():
        assert (f"| `{path}` |" in made) == (operation.tag == "OpenAI")
    for kind in TABLE:
        assert kind.__name__ in made


def test_every_program_of_the_documents_is_told() -> None:
    folder = ROOT / "tests" / "acceptance" / "programs"
    told = sorted(name for names in PROGRAMS.values() for name in names)
    assert told == sorted(each.name for each in folder.iterdir() if each.is_file())
