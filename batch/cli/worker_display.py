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
async def show_worker_progress(tally: BatchProgress, console: Console) -> AsyncIterator[None]:
    """Show progress while the context is open: one updated line, or periodic lines in a log."""
    show = _update_status if console.is_terminal else _print_lines
    watching = asyncio.create_task(show(tally, console))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _update_status(tally: BatchProgress, console: Console) -> None:
    with console.status(_format_progress(tally)) as status:
        while True:
            await asyncio.sleep(_STATUS_INTERVAL_S)
            status.update(_format_progress(tally))


async def _print_lines(tally: BatchProgress, console: Console) -> None:
    before = -1
    while True:
        if tally.done != before:
            print_message(console, _format_progress(tally))
            before = tally.done
        await asyncio.sleep(_LINE_INTERVAL_S)


def _format_progress(tally: BatchProgress) -> str:
    return f"{tally.done:,} messages answered, {tally.rates()}"
