"""docs/requirements.md against the tests that it names, and the code that must not quote it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
# Numbers are never removed, so the page has at least these.
LAST_NUMBER = 87
PRODUCT = ("engine", "handler", "validation", "jobs", "emulator", "batch", "common", "worker_rkllm")
NOT_TESTED = "not tested"

_ROW = re.compile(r"^\| R(\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
_NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
# Models have such names too, as DeepSeek-R1.
_QUOTED_NUMBER = re.compile(r"(?<![\w-])R(\d{1,2})\b")

ROWS = [(int(number), description, test) for number, description, test in _ROW.findall(PAGE)]
NAMED_TESTS = sorted(set(_NAMED_TEST.findall(PAGE)))


@cache
def functions_of(path: str) -> frozenset[str]:
    """Return the names of the functions in a file, including the methods of its classes."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_number_has_exactly_one_row_in_order() -> None:
    numbers = [number for number, _, _ in ROWS]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert len(numbers) >= LAST_NUMBER
    # A row that the pattern does not match would be missed.
    assert len(numbers) == len(re.findall(r"^\| R", PAGE, re.MULTILINE))


def test_every_row_has_a_description_and_a_test_or_the_words_not_tested(
    subtests: pytest.Subtests,
) -> None:
    for number, description, test in ROWS:
        with subtests.test(f"R{number}"):
            assert description.endswith(".")
            assert _NAMED_TEST.search(test) or test.startswith(NOT_TESTED)


def test_every_named_test_exists(subtests: pytest.Subtests) -> None:
    for path, function in NAMED_TESTS:
        with subtests.test(f"{path}::{function}"):
            functions = functions_of(path)
            if function:
                assert function in functions
            else:
                assert any(name.startswith("test_") for name in functions)


def test_every_test_is_named_with_its_file() -> None:
    named = re.findall(r"\btest_\w+", "".join(test for _, _, test in ROWS))
    recognised = "".join(f"{path} {function} " for path, function in _NAMED_TEST.findall(PAGE))
    assert sorted(named) == sorted(re.findall(r"\btest_\w+", recognised))


def test_tests_quote_no_number_that_the_page_does_not_have() -> None:
    numbers = {number for number, _, _ in ROWS}
    folders = ("unit", "integration", "property", "acceptance", "security", "long", "crashes")
    files = [path for folder in folders for path in (ROOT / "tests" / folder).rglob("*.py")]
    quoted = {
        int(number)
        for path in files
        for number in _QUOTED_NUMBER.findall(path.read_text(encoding="utf-8"))
    }
    assert quoted <= numbers
    assert len(quoted) > 70


@pytest.mark.parametrize("package", PRODUCT)
def test_product_code_quotes_no_number(package: str) -> None:
    files = [*(ROOT / package).rglob("*.py")]
    assert files
    quotes = [
        f"{path.relative_to(ROOT)}:{line_number}: {line.strip()}"
        for path in files
        for line_number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _QUOTED_NUMBER.search(line)
    ]
    assert quotes == []
