"""docs/security.md against the tests that it names: a defence without its test is a claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TESTS = [*(ROOT / "tests").rglob("test_*.py")]
FILES = {path.name for path in TESTS}
# Named for defences whose tests are on their way. Each entry has to go when its file is there.
NOT_YET = {"test_browser_requests.py", "test_browser_attacks.py", "test_data_on_disk.py"}

_TEST_FILE = re.compile(r"`(?:tests/)?(?:[\w/]+/)?(test_\w+\.py)`")
_TEST_FUNCTION = re.compile(r"`(test_\w+)`")
_FOLDER = re.compile(r"`(tests/[\w/]+)`")


def rows_of_attacks() -> list[str]:
    """Return the rows of the tables with the heading `attack | test`."""
    tables = re.findall(r"^\| attack \| test \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.M)
    return [row for table in tables for row in table.splitlines()]


def test_every_test_file_that_the_page_names_exists() -> None:
    named = set(_TEST_FILE.findall(PAGE))
    assert len(named) > 10
    assert named - FILES == NOT_YET & named


def test_tests_on_their_way_are_removed_from_the_list_when_they_are_there() -> None:
    assert not NOT_YET & FILES


def test_every_test_function_that_the_page_names_exists() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in TESTS)
    missing = [name for name in _TEST_FUNCTION.findall(PAGE) if f"def {name}(" not in sources]
    assert missing == []


@pytest.mark.parametrize("folder", sorted(set(_FOLDER.findall(PAGE))))
def test_every_folder_of_tests_that_the_page_names_exists(folder: str) -> None:
    assert (ROOT / folder).is_dir()


@pytest.mark.parametrize("row", rows_of_attacks())
def test_every_attack_in_a_table_names_its_test(row: str) -> None:
    assert _TEST_FILE.search(row)


def test_the_policy_and_the_page_refer_to_each_other() -> None:
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "(docs/security.md)" in policy
    assert "(../SECURITY.md)" in PAGE
