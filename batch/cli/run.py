"""`python -m batch run`: answer a file of requests and write a file of answers."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop
from rich.console import Console

from batch.cli.answerers import Answerer
from batch.cli.output import print_message
from batch.cli.progress_display import show_progress
from batch.cli.signals import StopSignals
from batch.input.scan import MAX_LISTED_PROBLEMS, InputSummary, compute_digest, scan_input
from batch.input.shard import Shard, ShardSource
from batch.input.source import InputError, LineSource, fetch_input
from batch.line_executor import ExecutorLost
from batch.output.files import OutputError, OutputFiles
from batch.output.finished import FinishedRun
from batch.output.journal import BatchJournal, JournalError, JournalHeader
from batch.output.token_totals import TokenTotals
from batch.progress import BatchProgress
from batch.runner import BatchRunner
from batch.settings import BatchSettings
from common.temporary_folders import ScratchFolder
from common.terminal_text import escape_controls
from engine.errors import EngineError
from handler.delivery.blobs import BlobError

# The command's exit codes.
DONE, SOME_FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 3


class PreconditionFailed(Exception):
    """The command cannot start, for the reasons in the message, one per line."""


class Interrupted(Exception):
    """The run ended before every line was answered, for the reason in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArgs:
    """The options of the command line."""

    input: str
    output: str
    errors: str | None = None
    ordered: bool = True
    force: bool = False
    shard: Shard | None = None


class RunCommand:
    """One run of the command, from checking the input to writing the output.

    All lines are checked before the model is loaded. A line that has an answer is not answered
    again. Owned by the thread that calls `run`.
    """

    def __init__(
        self, args: RunArgs, settings: BatchSettings, console: Console, answerer: Answerer
    ) -> None:
        self._args = args
        self._settings = settings
        self._console = console
        self._answerer = answerer
        # Number of lines with an answer of an earlier run whose record in the journal is damaged.
        self._lost_lines = 0
        self._progress = BatchProgress(0)

    def run(self) -> int:
        """Answer every line that has no answer yet and return the exit code."""
        with ExitStack() as stack:
            folder = stack.enter_context(ScratchFolder()).path
            try:
                output = OutputFiles.from_addresses(self._args.output, self._args.errors, folder)
                finished = self._find_finished_run(output, folder)
                if finished is not None:
                    return self._report_finished_run(finished, output)
                output.check(self._args.input, force=self._args.force)
                source = self._fetch_source(folder)
                journal = BatchJournal(output.journal, fresh=self._args.force)
                stack.callback(journal.close)
                self._prepare_journal(source, journal)
            except (InputError, OutputError, JournalError, PreconditionFailed, BlobError) as error:
                self._print(str(error))
                return REFUSED
            try:
                uvloop.run(self._answer(source, journal))
                output.write(journal, ordered=self._args.ordered)
                # The journal has the answers of earlier runs too.
                tokens = TokenTotals.from_answers(journal.answers(ok=True, ordered=False))
                if journal.header is not None:
                    digest = journal.header.digest
                    FinishedRun.write(output.answers, digest, journal.lines, journal.failed, tokens)
                journal.remove()
            except Interrupted as error:
                done, total = journal.done, journal.lines
                self._print(
                    f"{error}; {done:,} of {total:,} lines are answered; "
                    "run the same command again to resume"
                )
                return INTERRUPTED
            except BlobError as error:
                self._print(f"{error}; run the same command again to resume")
                return INTERRUPTED
            except OSError as error:
                where = error.filename or output.journal
                self._print(f"{where}: {error.strerror}; run the same command again to resume")
                return INTERRUPTED
            self._print_summary(output, journal, tokens)
            return SOME_FAILED if journal.failed else DONE

    def _find_finished_run(self, output: OutputFiles, folder: Path) -> FinishedRun | None:
        """Return the note of an earlier run that answered the same input. Raises InputError."""
        if self._args.force or output.journal.exists():
            return None
        finished = FinishedRun.read(output.answers)
        if finished is None or (finished.failed and not output.errors.exists()):
            return None
        return finished if finished.digest == compute_digest(self._fetch_source(folder)) else None

    def _report_finished_run(self, finished: FinishedRun, output: OutputFiles) -> int:
        """Print that all lines have answers, and return the exit code of the earlier run."""
        self._print(f"{finished.lines:,} of {finished.lines:,} lines answered already")
        self._print(finished.tokens.format())
        if finished.failed:
            self._print(f"{finished.failed:,} of them failed: {output.errors}")
        return SOME_FAILED if finished.failed else DONE

    def _fetch_source(self, folder: Path) -> LineSource:
        settings = self._settings
        path = fetch_input(self._args.input, folder / "input", settings.batch_max_mb * 1_000_000)
        max_line_bytes = settings.max_body_mb * 1_000_000
        if self._args.shard is not None:
            return ShardSource(path, max_line_bytes, self._args.shard)
        return LineSource(path, max_line_bytes)

    def _prepare_journal(self, source: LineSource, journal: BatchJournal) -> None:
        """Check every line for a new journal, or that an existing journal is of this input."""
        if journal.header is not None:
            if journal.header.digest != compute_digest(source):
                raise PreconditionFailed(
                    f"{journal.path} belongs to a run with another input; --force discards it"
                )
            self._print(f"resuming: {journal.done:,} of {journal.lines:,} lines are answered")
            if journal.lost_lines:
                lost = _format_line_count(journal.lost_lines)
                self._print(
                    f"{lost} will be answered again, because the records in {journal.path} are "
                    "damaged"
                )
            self._lost_lines = journal.lost_lines
            return
        try:
            with self._console.status("checking the lines"):
                summary = scan_input(
                    source, self._answerer.executor.check, self._settings.batch_max_lines
                )
            if summary.problem_count:
                raise PreconditionFailed(format_problems(summary))
            journal.begin(JournalHeader(summary.digest, summary.lines))
        except BaseException:
            journal.remove()
            raise

    async def _answer(self, source: LineSource, journal: BatchJournal) -> None:
        """Answer the lines without an answer. Raises Interrupted, or OSError from the journal."""
        self._progress = BatchProgress(
            journal.lines, journal.done, journal.failed, done_before=journal.done
        )
        if journal.done == journal.lines:
            return
        signals = StopSignals()
        with signals.handling():
            try:
                await self._answerer.open(self._print)
                runner = BatchRunner(
                    source,
                    journal,
                    self._answerer.executor,
                    self._progress,
                    concurrency=self._answerer.concurrency,
                    max_attempts=self._settings.batch_tries,
                )
                signals.begin_stop = partial(self._stop, runner)
                async with show_progress(self._progress, self._console):
                    await runner.run()
            except (EngineError, ExecutorLost, InputError) as error:
                raise Interrupted(str(error)) from None
            except asyncio.CancelledError:
                if not signals.first_signal:
                    raise
            finally:
                await self._answerer.close()
        if signals.first_signal:
            raise Interrupted(f"stopped by {signals.first_signal}")

    def _stop(self, runner: BatchRunner) -> None:
        """Stop starting lines, and print how long the lines in progress can take."""
        runner.stop()
        lines, limit_s = _format_line_count(runner.in_progress), self._settings.request_timeout_s
        self._print(
            f"stopping: waiting for {lines} under way, up to {limit_s:g} s "
            "(REQUEST_TIMEOUT_S); Ctrl-C again ends at once"
        )

    def _print_summary(
        self, output: OutputFiles, journal: BatchJournal, tokens: TokenTotals
    ) -> None:
        answered, rates = journal.done - journal.failed, self._progress.format_rates()
        self._print(f"{answered:,} of {journal.lines:,} lines answered, {rates}")
        self._print(tokens.format())
        if self._lost_lines:
            lost = _format_line_count(self._lost_lines)
            self._print(f"{lost} answered again: the records were damaged")
        if journal.failed:
            self._print(f"failed lines are in {output.errors}")

    def _print(self, text: str) -> None:
        print_message(self._console, text)


def _format_line_count(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


def format_problems(summary: InputSummary) -> str:
    """Return the problems of an input, one per line."""
    # `print_message` keeps line feeds. A line feed in an id must not look like another problem.
    problems = [
        f"line {number}: {escape_controls(problem)}" for number, problem in summary.problems
    ]
    if summary.problem_count > MAX_LISTED_PROBLEMS:
        problems.append(f"and {summary.problem_count - MAX_LISTED_PROBLEMS:,} more problems")
    return "\n".join(problems)
