"""Progress display of a queue worker on stderr."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console

from batch.cli.output import print_message
from batch.progress import BatchProgress

_STATUS_INTERVAL_S = 0.2
# Interval of progress lines where stderr is not a terminal.
_LINE_INTERVAL_S = 60.0


@asynccontextmanager
async def show_worker_progress(progress: BatchProgress, console: Console) -> AsyncIterator[None]:
    """Show progress while the context is open: one updated line, or periodic lines in a log."""
    show = _update_status if console.is_terminal else _print_lines
    display = asyncio.create_task(show(progress, console))
    try:
        yield
    finally:
        display.cancel()
        await asyncio.wait([display])


async def _update_status(progress: BatchProgress, console: Console) -> None:
    with console.status(_format_progress(progress)) as status:
        while True:
            await asyncio.sleep(_STATUS_INTERVAL_S)
            status.update(_format_progress(progress))


async def _print_lines(progress: BatchProgress, console: Console) -> None:
    last_done = -1
    while True:
        if progress.done != last_done:
            print_message(console, _format_progress(progress))
            last_done = progress.done
        await asyncio.sleep(_LINE_INTERVAL_S)


def _format_progress(progress: BatchProgress) -> str:
    return f"{progress.done:,} messages answered, {progress.format_rates()}"
