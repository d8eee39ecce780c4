"""Writes docs/clients.md: how known clients read the broken streams of `worker-rkllm torture`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

RIGHT = "right"
# The wrong verdicts, the worst one first, with their meanings.
WRONG_VERDICTS = {
    "half answer taken for whole": "the stream broke, and the client ended as if the answer were "
    "whole.",
    "lost text": "the client ended without an error, and a part of the answer is missing.",
    "invented text": "the client printed text that the server has not sent.",
    "hung": "the client did not end within the time limit.",
    "crashed": "the stream was correct, and the client ended with an error.",
}
_INTRODUCTION = """\
# How known clients read broken streams

Each client reads an answer whose stream is broken or unusual, once per shape, with
[`worker-rkllm torture`](torture.md). The table shows for how many shapes the client did what an
honest client can do, and all shapes with a wrong verdict. `worker-rkllm torture --list` has the
reason and the rule of each shape.

The programs are in `tests/clients/torture`: each is written as the documentation of the client
shows, and does not retry. Programs with a parser of event streams check for `[DONE]` themselves,
because such a parser knows nothing about chats.

`CLIENTS_TABLE=write make test-long PART=clients` writes this page.
"""


class ShapeResult(BaseModel):
    """The verdict about a client for one shape."""

    shape: str
    verdict: Literal[
        "right",
        "lost text",
        "invented text",
        "half answer taken for whole",
        "hung",
        "crashed",
    ]


class TortureReport(BaseModel):
    """The file of `worker-rkllm torture --json`, without the fields that the page omits."""

    version: Literal[1]
    results: list[ShapeResult]
    wrong: int


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A client and its report."""

    name: str
    version: str
    api: str
    report: TortureReport


def write_page(rows: Iterable[ClientRow]) -> str:
    """Return the page in Markdown, with a row per client in the order of the argument."""
    table = [
        "| Client | Version | API | Right | Wrong |",
        "|---|---|---|---|---|",
        *map(_write_row, rows),
    ]
    meanings = [f"- **{verdict}**: {meaning}" for verdict, meaning in WRONG_VERDICTS.items()]
    return "\n".join([_INTRODUCTION, *table, "", "## Verdicts", "", *meanings, ""])


def _write_row(row: ClientRow) -> str:
    results = row.report.results
    right = sum(result.verdict == RIGHT for result in results)
    cells = (row.name, row.version, row.api, f"{right}/{len(results)}", _write_wrong(results))
    return f"| {' | '.join(cells)} |"


def _write_wrong(results: Sequence[ShapeResult]) -> str:
    """Return the wrong verdicts, each with its shapes."""
    lines = []
    for verdict in WRONG_VERDICTS:
        shapes = [f"`{result.shape}`" for result in results if result.verdict == verdict]
        if shapes:
            lines.append(f"**{verdict}**: {', '.join(shapes)}")
    return "<br>".join(lines) or "none"
