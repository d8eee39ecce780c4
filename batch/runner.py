"""Answering the lines of a batch that have no answer yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from batch.input.line import Line, parse_line
from batch.input.source import InputError, LineSource
from batch.line_executor import LineExecutor, LineOutcome
from batch.output.journal import BatchJournal
from batch.progress import BatchProgress
from handler.attempts import MAX_CRASHES

_MIN_RETRY_DELAY_S = 0.5
_MAX_RETRY_DELAY_S = 30.0


class BatchRunner:
    """Keeps as many lines under way as the engine can use, and writes down what becomes of them.

    A kill costs what is under way and nothing else, so `at_once` is no more than the engine's slots
    where nobody says otherwise: the next line is there in a moment. Lines are read as they are
    needed. Owned by the event loop, which reads and writes the files as well: both are a few
    microseconds a line.
    """

    def __init__(
        self,
        source: LineSource,
        journal: BatchJournal,
        answerer: LineExecutor,
        tally: BatchProgress,
        *,
        at_once: int,
        tries: int,
    ) -> None:
        self._journal = journal
        self._answerer = answerer
        self._tally = tally
        self._at_once = at_once
        self._tries = tries
        self._lines = self._missing(source)
        self._stopping = False
        self._input_error: InputError | None = None
        # Lines that are being answered.
        self.under_way = 0

    def stop(self) -> None:
        """Begin no more lines; the lines in progress are finished."""
        self._stopping = True

    async def run(self) -> None:
        """Answer all lines, or those under way when `stop` is called.

        Raises:
            EngineLost: the engine is dead.
            OSError: the journal cannot be written.
            InputError: the input cannot be read, or was changed; lines under way were answered.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._at_once):
                    group.create_task(self._work())
        except BaseExceptionGroup as failures:
            # The first one ended the others.
            raise failures.exceptions[0] from None
        if self._input_error is not None:
            raise self._input_error

    async def _work(self) -> None:
        for line in self._lines:
            self.under_way += 1
            try:
                outcome = await self._answer(line)
            finally:
                self.under_way -= 1
            if outcome is None:
                return
            self._journal.add(line.number, outcome.line, ok=outcome.ok)
            self._tally.count(ok=outcome.ok, tokens=outcome.tokens)
            if self._stopping:
                return

    async def _answer(self, line: Line) -> LineOutcome | None:
        """Return the final result of a line; temporary failures are tried again after a pause.

        A line that was running at a crash of the engine gets its last try alone, so that of the
        lines that ran side by side at the crashes only the one that causes them fails.

        Return None if the runner stops before a try that is left: the next run does that.
        """
        pause_s, crashes = _MIN_RETRY_DELAY_S, 0
        for left in reversed(range(self._tries)):
            is_last = not left or crashes == MAX_CRASHES - 1
            outcome = await self._answerer.answer(line, alone=bool(crashes) and is_last)
            crashes += outcome.crashed
            if outcome.ok or not outcome.retryable or not left or crashes == MAX_CRASHES:
                break
            if self._stopping:
                return None
            self._tally.retries += 1
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _MAX_RETRY_DELAY_S)
        return outcome

    def _missing(self, source: LineSource) -> Iterator[Line]:
        try:
            for number, raw in enumerate(source.lines(), 1):
                if self._stopping:
                    return
                if self._journal.missing(number):
                    yield parse_line(raw, number)
        except InputError as error:
            # Not raised here: it would cancel the lines under way, whose answers are nearly there.
            self._input_error = error
