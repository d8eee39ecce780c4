"""`python -m batch run`: a file of requests to a file of answers."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from batch.cli.output import print_message
from batch.cli.progress_display import show_progress
from batch.input.scan import MAX_LISTED_PROBLEMS, InputSummary, compute_digest, scan_input
from batch.input.source import InputError, LineSource, fetch_input
from batch.line_executor import EngineLost, LineExecutor
from batch.output.files import OutputError, OutputFiles
from batch.output.finished import FinishedRun
from batch.output.journal import BatchJournal, JournalError, JournalHeader
from batch.progress import BatchProgress
from batch.runner import BatchRunner
from batch.settings import BatchSettings
from engine.errors import EngineError
from engine.temporary_folders import ScratchFolder
from handler.blobs import BlobError
from handler.composition import build_services, build_validation
from handler.engine_configs import build_engine
from handler.model_settings import resolve_models
from handler.terminal_text import escape_controls

# The command's exit codes.
DONE, SOME_FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 3


class PreconditionFailed(Exception):
    """The command was refused before any work; the message has one problem per line."""


class Interrupted(Exception):
    """The run ended before every line was answered; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArgs:
    """The options of the command line."""

    input: str
    output: str
    errors: str | None = None
    ordered: bool = True
    force: bool = False


class RunCommand:
    """One run of the command, from checking the input to writing the output.

    The model is loaded after every line has been checked. A line that has an answer is not
    answered again. Owned by the thread that calls `run`.
    """

    def __init__(self, order: RunArgs, settings: BatchSettings, console: Console) -> None:
        """Read what settings name, a model on the Hub included. Raises SettingError."""
        settings = resolve_models(settings)
        self._order = order
        self._settings = settings
        self._console = console
        self._engine = build_engine(settings)
        doors = build_services(settings, self._engine, build_validation(settings))
        self._answerer = LineExecutor(doors, self._engine)
        # Lines whose answers an earlier run had written and whose records are damaged.
        self._lost = 0

    def run(self) -> int:
        """Answer every line that has no answer yet and return the exit code."""
        with ExitStack() as stack:
            folder = stack.enter_context(ScratchFolder()).path
            try:
                output = OutputFiles.at(self._order.output, self._order.errors, folder)
                finished = self._finished(output, folder)
                if finished is not None:
                    return self._repeat(finished, output)
                output.check(self._order.input, force=self._order.force)
                source = self._source(folder)
                journal = BatchJournal(output.journal, fresh=self._order.force)
                stack.callback(journal.close)
                self._begin(source, journal)
            except (InputError, OutputError, JournalError, PreconditionFailed) as error:
                self._say(str(error))
                return REFUSED
            try:
                uvloop.run(self._answer(source, journal))
                output.write(journal, ordered=self._order.ordered)
                if journal.header is not None:
                    digest = journal.header.digest
                    FinishedRun.write(output.answers, digest, journal.lines, journal.failed)
                journal.remove()
            except Interrupted as error:
                done, all_ = journal.done, journal.lines
                self._say(
                    f"{error}; {done:,} of {all_:,} lines are answered; "
                    "run the same command again to resume"
                )
                return INTERRUPTED
            except BlobError as error:
                self._say(f"{error}; run the same command again to resume")
                return INTERRUPTED
            except OSError as error:
                where = error.filename or output.journal
                self._say(f"{where}: {error.strerror}; run the same command again to resume")
                return INTERRUPTED
            self._sum_up(output, journal)
            return SOME_FAILED if journal.failed else DONE

    def _finished(self, output: OutputFiles, folder: Path) -> FinishedRun | None:
        """Return the note of an earlier run that answered this very input. Raises InputError."""
        if self._order.force or output.journal.exists():
            return None
        finished = FinishedRun.read(output.answers)
        if finished is None or (finished.failed and not output.errors.exists()):
            return None
        return finished if finished.digest == compute_digest(self._source(folder)) else None

    def _repeat(self, finished: FinishedRun, output: OutputFiles) -> int:
        """Say that there is nothing left to do, and return the exit code of the run that did it."""
        self._say(f"{finished.lines:,} of {finished.lines:,} lines answered already")
        if finished.failed:
            self._say(f"{finished.failed:,} of them failed: {output.errors}")
        return SOME_FAILED if finished.failed else DONE

    def _source(self, folder: Path) -> LineSource:
        settings = self._settings
        path = fetch_input(self._order.input, folder / "input", settings.batch_max_mb * 1_000_000)
        return LineSource(path, settings.max_body_mb * 1_000_000)

    def _begin(self, source: LineSource, journal: BatchJournal) -> None:
        """Check every line of the input, or check that the journal belongs to it."""
        if journal.header is not None:
            if journal.header.digest != compute_digest(source):
                raise PreconditionFailed(
                    f"{journal.path} belongs to a run with another input; --force discards it"
                )
            self._say(f"resuming: {journal.done:,} of {journal.lines:,} lines are answered")
            if journal.lost:
                self._say(
                    f"{_format_line_count(journal.lost)} will be answered again, because the records in "
                    f"{journal.path} are damaged"
                )
            self._lost = journal.lost
            return
        try:
            with self._console.status("checking the lines"):
                found = scan_input(source, self._answerer.check, self._settings.batch_max_lines)
            if found.bad:
                raise PreconditionFailed(format_problems(found))
            journal.begin(JournalHeader(found.digest, found.lines))
        except BaseException:
            journal.remove()
            raise

    async def _answer(self, source: LineSource, journal: BatchJournal) -> None:
        """Answer the lines without an answer. Raises Interrupted, or OSError from the journal."""
        tally = BatchProgress(journal.lines, journal.done, journal.failed, before=journal.done)
        self.tally = tally
        if journal.done == journal.lines:
            return
        asked_to_stop = ""
        loop = asyncio.get_running_loop()
        running = asyncio.current_task()
        runner: BatchRunner | None = None

        def stop(name: str) -> None:
            nonlocal asked_to_stop
            again = bool(asked_to_stop)
            if (again or runner is None) and running is not None:
                running.cancel()
            asked_to_stop = asked_to_stop or name
            if runner is not None and not again:
                runner.stop()
                self._say_stopping(runner.under_way)

        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stop, each.name)
        try:
            self._say(f"loading {self._settings.served_model}")
            await self._engine.ready()
            at_once = self._settings.batch_at_once or self._engine.slots
            runner = BatchRunner(
                source,
                journal,
                self._answerer,
                tally,
                at_once=at_once,
                tries=self._settings.batch_tries,
            )
            async with show_progress(tally, self._console):
                await runner.run()
        except (EngineError, EngineLost, InputError) as error:
            raise Interrupted(str(error)) from None
        except asyncio.CancelledError:
            if not asked_to_stop:
                raise
        finally:
            await self._engine.close()
        if asked_to_stop:
            raise Interrupted(f"stopped by {asked_to_stop}")

    def _sum_up(self, output: OutputFiles, journal: BatchJournal) -> None:
        answered = journal.done - journal.failed
        self._say(f"{answered:,} of {journal.lines:,} lines answered, {self.tally.rates()}")
        if self._lost:
            self._say(f"{_format_line_count(self._lost)} answered again: the records were damaged")
        if journal.failed:
            self._say(f"failed lines are in {output.errors}")

    def _say_stopping(self, under_way: int) -> None:
        """Say what the command waits for after a first signal, and for how long at most."""
        limit_s = self._settings.request_timeout_s
        self._say(
            f"stopping: waiting for {_format_line_count(under_way)} under way, up to {limit_s:g} s "
            "(REQUEST_TIMEOUT_S); Ctrl-C again ends at once"
        )

    def _say(self, text: str) -> None:
        print_message(self._console, text)


def _format_line_count(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


def format_problems(found: InputSummary) -> str:
    """Return the problems of an input, one per line."""
    # Escaped here as well: a line feed in an id must not look like another problem.
    problems = [f"line {number}: {escape_controls(problem)}" for number, problem in found.problems]
    if found.bad > MAX_LISTED_PROBLEMS:
        problems.append(f"and {found.bad - MAX_LISTED_PROBLEMS:,} more problems")
    return "\n".join(problems)
