"""Every block of code in the README and in docs/, run as it is written, page by page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from batch.input.line import parse_line
from handler.input.request import parse_job
from tests.acceptance.pages import ROOT, RUN, SHOWN, not_run
from tests.acceptance.reader import LIMIT_S, PUT_IN, PUT_IN_LONG
from tests.acceptance.reading import ALL, LISTED, read_page, short_pages
from tools.docs.settings import page as settings_page

# A page is read in seconds, on a machine that is busy in many.
pytestmark = pytest.mark.timeout(2 * LIMIT_S)


# R44
def test_json_is_json_and_what_is_asked_could_be_asked() -> None:
    for block in ALL:
        if block.language == "json":
            found = json.loads(block.text)
            if "custom_id" in found and "response" not in found:
                parse_line(json.dumps(found).encode(), 1)
            if "input" in found:
                parse_job(found)


@pytest.mark.parametrize("page", short_pages())
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    read_page(page, tmp_path)


def test_every_block_is_run_or_shown_or_listed() -> None:
    languages = {str(block): block.language for block in ALL}
    assert [each for each in languages.items() if each[1] not in RUN + SHOWN] == []
    runs = [block for block in ALL if block.language in RUN]
    assert len(runs) > 40
    # What looks like a command is none that is only shown.
    commands = re.compile(r"^(\$ |make \w+$|curl |\.venv/bin/|docker |python -)", re.M)
    shown = [block for block in ALL if block.language == "text" and commands.search(block.text)]
    assert [str(block) for block in shown] == []


def test_what_is_listed_as_not_run_is_there_and_nothing_is_listed_twice() -> None:
    there = [(block.page, block.first_line) for block in ALL if block.language in RUN]
    assert LISTED - set(there) == set()
    assert len(LISTED) == len(not_run())
    assert all(there.count(each) == 1 for each in LISTED)


def test_nothing_is_put_in_for_what_no_page_has() -> None:
    for written in (*PUT_IN, *PUT_IN_LONG):
        assert any(written in block.text for block in ALL), written


def test_the_settings_page_is_what_the_classes_say() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), "run `make docs`"


def test_a_figure_that_is_compared_is_one_that_was_measured() -> None:
    """A table that is measured anew would otherwise be told of in two ways."""
    measured = (ROOT / "benchmarks" / "README.md").read_text()
    compared = (ROOT / "docs" / "comparison.md").read_text()
    places = [*re.finditer(r"rom the table \*(\w+)\* in Benchmarks:\n\n((?:\|.*\n)+)", compared)]
    assert [place[1] for place in places] == ["rkllm", "jobs", "llamacpp"]
    for place in places:
        tables = re.findall(rf"^### {place[1]}\b.*\n((?:(?!### ).*\n)+)", measured, re.M)
        there = set(re.findall(r"[\d.,]*\d", "".join(tables)))
        # The first cell of a row says what was measured, with numbers of its own.
        rows = [row.split("|")[2:] for row in place[2].splitlines()[2:]]
        told = {figure for row in rows for figure in re.findall(r"[\d.,]*\d", "".join(row))}
        assert len(told) > 5
        assert told - there == set(), place[1]


def test_links_between_the_documents_lead_somewhere() -> None:
    documents = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
