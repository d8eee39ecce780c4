"""The messages in docs/rkllm.md exist in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "rkllm.md").read_text(encoding="utf-8")
TROUBLES = PAGE.split("## Troubleshooting")[1].split("\n## ")[0]
MESSAGES = [
    message
    for row in re.findall(r"^\| (`.+?`) \| ", TROUBLES, re.M)
    for message in re.findall(r"`([^`]+)`", row)
]


def texts() -> Iterator[str]:
    """Yield each string in the code of engine and handler, with … for placeholders."""
    for path in [*(ROOT / "engine").rglob("*.py"), *(ROOT / "handler").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[ds]", "…", node.value)


@cache
def read_messages() -> str:
    """Return all strings; cached, because reading them takes a third of a second."""
    return "\n".join(texts())


def test_documented_message_exists_in_the_code(subtests: pytest.Subtests) -> None:
    for message in MESSAGES:
        with subtests.test(message):
            # The text after a colon, and the library's name, may be inserted by other code.
            fragments = [each for each in re.split(" ?… ?|: |librkllmrt.so ", message) if each]
            assert [each for each in fragments if each not in read_messages()] == []


def test_page_documents_messages() -> None:
    assert len(MESSAGES) > 20


def test_links_within_the_page_have_targets() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.M)
    there = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= there


def test_statement_with_a_source_of_rockchip_has_no_dagger() -> None:
    # The dagger marks what no source confirms.
    assert re.findall(r"\((?:manual|header|README|changelog)[^)]*\)[.,]? ?†", PAGE) == []
    assert re.findall(r"† ?\((?:manual|header|README|changelog)[^)]*\)", PAGE) == []
    assert "**†** marks what no such source confirms" in PAGE
