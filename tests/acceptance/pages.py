"""The blocks of code of the README and docs/, and the list of blocks that no test can run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN_PAGE = ROOT / "docs" / "not-run.md"
RUN = ("sh", "python", "javascript", "json")
# The languages of blocks that are not meant to be run.
NOT_RUN_LANGUAGES = ("text", "markdown", "ini", "yaml", "dockerfile", "html")

# Blocks within a list are indented.
_FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.M | re.S)
_ROW = re.compile(r"^\| ([^ |]+\.md) \| `(.+?)` \| (.+) \|$", re.M)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page; `is_output` marks the output of the block before it."""

    page: str
    line: int
    language: str
    text: str
    is_output: bool

    @property
    def first_line(self) -> str:
        """The first line, by which a block is listed."""
        return self.text.split("\n", 1)[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> Sequence[Path]:
    """Return the README and all of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Sequence[Block]:
    """Return a page's blocks in their order."""
    text = page.read_text(encoding="utf-8")
    result: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        between = text[end : match.start()]
        after_command = bool(result) and result[-1].language == "sh" and not between.strip()
        result.append(
            Block(
                page=page.relative_to(ROOT).as_posix(),
                line=text.count("\n", 0, match.start()) + 1,
                language=match[3],
                text=dedent(match[4]),
                is_output=after_command and _is_compared(match, result[-1].text),
            )
        )
        end = match.end()
    return result


def _is_compared(block: re.Match[str], command: str) -> bool:
    """Return whether tests compare a block with the output of the command before it.

    These are JSON, server-sent events and what a command prints with `print(`. Other output, for
    example log lines, differs from run to run.
    """
    is_events = block[4].lstrip().startswith("data: ")
    return block[3] == "json" or (block[3] == "text" and (is_events or "print(" in command))


def not_run() -> Sequence[tuple[str, str]]:
    """Return the page and first line of each block in the table of docs/not-run.md."""
    rows = _ROW.findall(NOT_RUN_PAGE.read_text(encoding="utf-8"))
    return [(page, begins) for page, begins, _ in rows]
