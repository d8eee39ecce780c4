"""Every block of code in the README and in docs/, run as it is written, page by page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from batch.input.line import parse_line
from handler.input.request import parse_job
from tests.acceptance.page_checks import ALL, EXAMPLES_PAGE, LISTED, run_page, short_pages
from tests.acceptance.page_runner import LIMIT_S, REPLACEMENTS, REPLACEMENTS_LONG
from tests.acceptance.pages import NOT_RUN_LANGUAGES, ROOT, RUN, not_run
from tools.docs.settings import page as settings_page

# A page runs in seconds, but in many more on a busy machine.
pytestmark = pytest.mark.timeout(2 * LIMIT_S)


# R44
def test_json_parses_and_requests_are_valid() -> None:
    for block in ALL:
        if block.language == "json":
            document = json.loads(block.text)
            if "custom_id" in document and "response" not in document:
                parse_line(json.dumps(document).encode(), 1)
            # The examples of handlers have inputs of their own.
            if "input" in document and block.page != EXAMPLES_PAGE:
                parse_job(document)


@pytest.mark.parametrize("page", short_pages())
def test_page_runs_as_written(page: str, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def test_every_block_is_run_displayed_or_listed() -> None:
    languages = {str(block): block.language for block in ALL}
    assert [each for each in languages.items() if each[1] not in RUN + NOT_RUN_LANGUAGES] == []
    runs = [block for block in ALL if block.language in RUN]
    assert len(runs) > 40
    # No test runs `text` blocks, so they must not contain commands.
    commands = re.compile(r"^(\$ |make \w+$|curl |\.venv/bin/|docker |python -)", re.M)
    with_commands = [
        block for block in ALL if block.language == "text" and commands.search(block.text)
    ]
    assert [str(block) for block in with_commands] == []


def test_every_block_listed_as_not_run_exists() -> None:
    there = [(block.page, block.first_line) for block in ALL if block.language in RUN]
    assert LISTED - set(there) == set()
    assert len(LISTED) == len(not_run())
    assert all(there.count(each) == 1 for each in LISTED)


def test_every_replacement_is_used_by_a_page() -> None:
    for written in (*REPLACEMENTS, *REPLACEMENTS_LONG):
        assert any(written in block.text for block in ALL), written


def test_settings_page_matches_the_settings_classes() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), "run `make docs`"


def test_figures_of_comparisons_are_measured() -> None:
    """Otherwise a new measurement would leave old figures in the comparison."""
    report = (ROOT / "benchmarks" / "README.md").read_text()
    page = (ROOT / "docs" / "comparison.md").read_text()
    sections = [*re.finditer(r"rom the table \*(\w+)\* in Benchmarks:\n\n((?:\|.*\n)+)", page)]
    assert [section[1] for section in sections] == ["rkllm", "jobs", "llamacpp"]
    for section in sections:
        tables = re.findall(rf"^### {section[1]}\b.*\n((?:(?!### ).*\n)+)", report, re.M)
        measured = set(re.findall(r"[\d.,]*\d", "".join(tables)))
        # The first cell of a row names the measurement, and may contain other numbers.
        rows = [row.split("|")[2:] for row in section[2].splitlines()[2:]]
        figures = {figure for row in rows for figure in re.findall(r"[\d.,]*\d", "".join(row))}
        assert len(figures) > 5
        assert figures - measured == set(), section[1]


def test_links_between_documents_have_targets() -> None:
    documents = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
