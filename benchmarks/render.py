"""Tables for a terminal, for a Markdown page and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.box import ASCII, SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from benchmarks.measure import Budget, Row, Sample, Table

# Wide enough for all columns if there is no terminal.
_PLAIN_WIDTH = 200


def show(table: Table, machine: str) -> None:
    """Print a table, with colours and lines only on a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH, no_color=True)
    drawn = RichTable(
        box=SIMPLE_HEAD if console.is_terminal else ASCII,
    )
    for number, heading in enumerate(_headings(table)):
        drawn.add_column(heading, justify="left" if number == 0 else "right")
    for row in table.rows:
        style = "red" if row.met is False else None
        drawn.add_row(*map(escape, _cells(row)), style=style)
    console.print(f"[bold]{escape(table.title)}[/bold] ({escape(machine)})", soft_wrap=True)
    console.print(drawn)
    for note in table.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print()


def markdown(table: Table, machine: str) -> str:
    """Return a table as Markdown for a documentation page."""
    headings = _headings(table)
    lines = [f"### {table.title}", "", f"{machine}.", ""]
    lines.append(f"| {' | '.join(headings)} |")
    lines.append("|---|" + "---:|" * (len(headings) - 1))
    lines += [f"| {' | '.join(_cells(row))} |" for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join([*lines, ""])


def as_json(table: Table) -> dict[str, Any]:
    """Return a table as plain values."""
    return asdict(table) | {"rows": [asdict(row) | {"met": row.met} for row in table.rows]}


def _headings(table: Table) -> list[str]:
    return ["median (quartiles)", "unit", table.ours, table.peer, "ratio", "budget", "met"]


def _cells(row: Row) -> list[str]:
    return [
        row.name,
        row.unit,
        _spread(row.ours),
        _spread(row.peer),
        _spread(row.ratio),
        _promise(row.budget),
        {None: "", True: "yes", False: "NO"}[row.met],
    ]


def _spread(sample: Sample | None) -> str:
    if sample is None:
        return ""
    if sample.count == 1:
        return number(sample.median)
    return f"{number(sample.median)} ({number(sample.low)}-{number(sample.high)})"


def _promise(budget: Budget | None) -> str:
    if budget is None:
        return ""
    sign = "<=" if budget.kind == "at most" else ">="
    return f"{sign} {number(budget.limit)}{'x' if budget.of == 'ratio' else ''}"


def number(value: float) -> str:
    """Return a number with three significant digits and thousands separators."""
    if not value:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"
