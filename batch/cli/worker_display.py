"""Progress display of a queue worker on stderr."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console

from batch.cli.output import say
from batch.progress import Tally

_STATUS_S = 0.2
# Interval of progress lines where stderr is not a terminal.
_LINE_S = 60.0


@asynccontextmanager
async def shown(tally: Tally, console: Console) -> AsyncIterator[None]:
    """Show progress while the context is open: one updated line, or periodic lines in a log."""
    show = _status if console.is_terminal else _lines
    watching = asyncio.create_task(show(tally, console))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _status(tally: Tally, console: Console) -> None:
    with console.status(_told(tally)) as status:
        while True:
            await asyncio.sleep(_STATUS_S)
            status.update(_told(tally))


async def _lines(tally: Tally, console: Console) -> None:
    before = -1
    while True:
        if tally.done != before:
            say(console, _told(tally))
            before = tally.done
        await asyncio.sleep(_LINE_S)


def _told(tally: Tally) -> str:
    return f"{tally.done:,} messages answered, {tally.rates()}"
