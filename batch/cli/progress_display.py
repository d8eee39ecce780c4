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
async def show_progress(progress: BatchProgress, console: Console) -> AsyncIterator[None]:
    """Show progress while the context is open: a bar on a terminal, otherwise periodic lines."""
    display = asyncio.create_task(
        _update_bar(progress, console) if console.is_terminal else _print_lines(progress, console)
    )
    try:
        yield
    finally:
        display.cancel()
        await asyncio.wait([display])


async def _update_bar(progress: BatchProgress, console: Console) -> None:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("", total=progress.total)
        try:
            while True:
                _draw_bar(bar, task, progress)
                await asyncio.sleep(_BAR_INTERVAL_S)
        finally:
            _draw_bar(bar, task, progress)


def _draw_bar(bar: Progress, task: TaskID, progress: BatchProgress) -> None:
    bar.update(task, completed=progress.done, description=_format_rates(progress))
    bar.refresh()


async def _print_lines(progress: BatchProgress, console: Console) -> None:
    while True:
        await asyncio.sleep(_LINE_INTERVAL_S)
        console.print(format_progress_line(progress))


def format_progress_line(progress: BatchProgress) -> str:
    """Return the line for a log: lines so far, rates, failures and the time left."""
    return f"{progress.done:,} of {progress.total:,} lines, {_format_rates(progress)}"


def _format_rates(progress: BatchProgress) -> str:
    remaining_s = progress.remaining_s
    if remaining_s is None:
        return f"{progress.format_rates()}, time left unknown"
    return f"{progress.format_rates()}, {timedelta(seconds=round(remaining_s))} left"
