"""The text of the progress display: rates, failures and the time left."""

from __future__ import annotations

import asyncio
import io
import time

import pytest
from rich.console import Console

from batch.cli.progress_display import format_progress_line, show_progress
from batch.progress import BatchProgress
from tests.virtual_time import VirtualClock


async def test_progress_line_has_rates_failures_and_time_left(clock: VirtualClock) -> None:
    progress = BatchProgress(1_000, 100, 1, done_before=100, started_s=time.monotonic())
    await asyncio.sleep(10)
    for number in range(100):
        progress.record_line(ok=number >= 4, tokens=20)
    progress.retries = 2
    assert format_progress_line(progress) == (
        "200 of 1,000 lines, 10.0 lines/s, 200 tokens/s, 5 failed (2.5%), 2 retried, 0:01:20 left"
    )
    assert clock.elapsed_s == 10


async def test_progress_line_without_tokens_and_failures_leaves_them_out(
    clock: VirtualClock,
) -> None:
    progress = BatchProgress(4, started_s=time.monotonic())
    await asyncio.sleep(2)
    assert format_progress_line(progress) == "0 of 4 lines, 0.0 lines/s, time left unknown"
    progress.record_line(ok=True, tokens=0)
    assert format_progress_line(progress) == "1 of 4 lines, 0.5 lines/s, 0:00:06 left"
    assert clock.elapsed_s == 2


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_progress_is_shown_on_a_terminal_and_in_a_log(
    clock: VirtualClock, *, is_terminal: bool
) -> None:
    output = io.StringIO()
    progress = BatchProgress(2, started_s=time.monotonic())
    console = Console(file=output, force_terminal=is_terminal, width=120)
    async with show_progress(progress, console):
        await asyncio.sleep(1)
        progress.record_line(ok=False, tokens=0)
        await asyncio.sleep(29.5)
    shown = output.getvalue()
    assert "1 failed (100.0%)" in shown
    assert "left" in shown
    # A log has a line every ten seconds.
    assert is_terminal or shown.count("\n") == 3
    assert clock.elapsed_s == pytest.approx(30.5)
