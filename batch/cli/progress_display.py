"""Progress display of a batch on stderr."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from batch.progress import BatchProgress

_BAR_INTERVAL_S = 0.2
# Interval of progress lines where stderr is not a terminal.
_LINE_INTERVAL_S = 10.0


@asynccontextmanager
async def show_progress(tally: BatchProgress, console: Console) -> AsyncIterator[None]:
    """Show progress while the context is open: a bar on a terminal, otherwise periodic lines."""
    watching = asyncio.create_task(
        _update_bar(tally, console) if console.is_terminal else _print_lines(tally, console)
    )
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _update_bar(tally: BatchProgress, console: Console) -> None:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=tally.total)
        try:
            while True:
                _draw_bar(progress, task, tally)
                await asyncio.sleep(_BAR_INTERVAL_S)
        finally:
            _draw_bar(progress, task, tally)


def _draw_bar(progress: Progress, task: TaskID, tally: BatchProgress) -> None:
    progress.update(
        task, completed=tally.done, description=f"{tally.rates()}, {_format_remaining_time(tally)}"
    )
    progress.refresh()


async def _print_lines(tally: BatchProgress, console: Console) -> None:
    while True:
        await asyncio.sleep(_LINE_INTERVAL_S)
        console.print(
            f"{tally.done:,} of {tally.total:,} lines, {tally.rates()}, {_format_remaining_time(tally)}"
        )


def _format_remaining_time(tally: BatchProgress) -> str:
    left_s = tally.left_s
    return "time left unknown" if left_s is None else f"{timedelta(seconds=round(left_s))} left"
