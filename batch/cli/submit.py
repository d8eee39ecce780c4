"""`python -m batch submit`: send a file of requests to an SQS queue."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rich.console import Console

from batch.cli.output import print_message
from batch.cli.progress_display import show_progress
from batch.cli.run import DONE, INTERRUPTED, REFUSED, PreconditionFailed, format_problems
from batch.input.line import parse_line
from batch.input.scan import InputSummary, scan_input
from batch.input.source import InputError, LineSource, fetch_input
from batch.line_executor import LineExecutor
from batch.progress import BatchProgress
from batch.queue.batch_manifest import BatchHeader, BatchManifest
from batch.queue.message import encode_message, result_key, results_prefix, validate_batch_name
from batch.queue.result_bucket import ResultBucket
from batch.settings import BatchSettings
from engine.temporary_folders import ScratchFolder
from handler.composition import build_services, build_validation
from handler.engine_configs import build_engine
from jobs import JobsError, Json, NewJob
from jobs.failpoints import failpoint
from jobs.sqs.calls import sqs_client
from jobs.sqs.queue import SqsQueue

# Messages sent concurrently, ten per SQS request. Progress is saved after each lot.
_MESSAGES_PER_LOT = 500
# Digits of the input's SHA-256 in the default name of a batch.
_BATCH_NAME_DIGITS = 16


def run(given: argparse.Namespace, settings: BatchSettings, console: Console) -> int:
    """Send the lines that were not sent yet and return the exit code. Raises SettingError."""
    # The engine is built for its checks only; no model is loaded.
    engine = build_engine(settings)
    answerer = LineExecutor(build_services(settings, engine, build_validation(settings)), engine)
    with ScratchFolder() as scratch:
        submission = SubmitCommand(given, settings, console, answerer)
        try:
            return submission.run(scratch.path)
        except (InputError, JobsError, PreconditionFailed) as error:
            print_message(console, str(error))
            return REFUSED
        except KeyboardInterrupt:
            print_message(console, "stopped by SIGINT; nothing was sent")
            return INTERRUPTED


class SubmitCommand:
    """One run of the command.

    The input's manifest is in the bucket before the first line is in the queue. A line that is sent
    twice, for example by a run that was killed, is answered once, because its answer has one key.
    Owned by the thread that calls `run`.
    """

    def __init__(
        self,
        given: argparse.Namespace,
        settings: BatchSettings,
        console: Console,
        answerer: LineExecutor,
    ) -> None:
        self._given = given
        self._settings = settings
        self._console = console
        self._answerer = answerer

    def run(self, folder: Path) -> int:
        """Check the input, write its manifest and send its lines.

        Raises InputError, JobsError, Refused: nothing was sent.
        """
        settings = self._settings
        try:
            place = ResultBucket.at(self._given.results)
            if self._given.batch is not None:
                validate_batch_name(self._given.batch)
        except ValueError as error:
            raise PreconditionFailed(str(error)) from None
        client = sqs_client(self._given.queue_url)
        path = fetch_input(self._given.input, folder / "input", settings.batch_max_mb * 1_000_000)
        source = LineSource(path, settings.max_body_mb * 1_000_000)
        with self._console.status("checking the lines"):
            found = scan_input(source, self._answerer.check, settings.batch_max_lines)
        if found.bad:
            raise PreconditionFailed(format_problems(found))
        batch = self._given.batch or found.digest[:_BATCH_NAME_DIGITS]
        queue = SqsQueue(client, bodies=place)
        try:
            # Fail on a missing queue before the manifest is written.
            asyncio.run(self._ask(queue))
        finally:
            queue.close()
        manifest = self._begin(place, batch, source, found)
        skip = 0 if self._given.again else manifest.sent
        messages = self._messages(source, batch, skip, self._answered(place, batch))
        print_message(self._console, f"batch {batch}: {found.lines:,} lines, {skip:,} sent already")
        tally = BatchProgress(found.lines, skip, before=skip)
        try:
            asyncio.run(self._send(SqsQueue(client, bodies=place), messages, manifest, tally))
        except KeyboardInterrupt:
            return self._stopped(tally, "stopped by SIGINT")
        except (JobsError, InputError) as error:
            return self._stopped(tally, str(error))
        print_message(self._console, f"{tally.done:,} of {found.lines:,} lines sent")
        return DONE

    async def _ask(self, queue: SqsQueue) -> None:
        await queue.facts(self._given.queue_url)

    def _begin(
        self, place: ResultBucket, batch: str, source: LineSource, found: InputSummary
    ) -> BatchManifest:
        manifest = BatchManifest(place, batch)
        ids = (parse_line(raw, number).custom_id for number, raw in enumerate(source.lines(), 1))
        header = BatchHeader(found.digest, found.lines, self._given.queue_url)
        if not manifest.begin(header, ids):
            known = manifest.header()
            if known is None or known.digest != found.digest:
                raise PreconditionFailed(
                    f"{manifest.url} belongs to another input; choose another --batch"
                )
        return manifest

    def _answered(self, place: ResultBucket, batch: str) -> set[str]:
        """Return the names of the existing answers; only needed with --again."""
        if not self._given.again:
            return set()
        return {each.key.rpartition("/")[2] for each in place.list(results_prefix(batch))}

    def _messages(
        self, source: LineSource, batch: str, skip: int, answered: set[str]
    ) -> Iterator[Json | None]:
        """Yield a message for each line after `skip`, or None if the line has an answer."""
        for number, raw in enumerate(islice(source.lines(), skip, None), skip + 1):
            line = parse_line(raw, number)
            name = result_key(batch, line.custom_id).rpartition("/")[2]
            yield None if name in answered else encode_message(batch, raw, line)

    async def _send(
        self,
        queue: SqsQueue,
        messages: Iterator[Json | None],
        manifest: BatchManifest,
        tally: BatchProgress,
    ) -> None:
        url = self._given.queue_url

        async def send(message: Json | None) -> None:
            if message is not None:
                await queue.enqueue(NewJob(endpoint=url, input=message))
            tally.count(ok=True, tokens=0)

        try:
            async with show_progress(tally, self._console):
                while lot := [*islice(messages, _MESSAGES_PER_LOT)]:
                    async with asyncio.TaskGroup() as group:
                        for message in lot:
                            group.create_task(send(message))
                    await asyncio.to_thread(manifest.note_sent, tally.done)
                    failpoint("sent-noted")
        except BaseExceptionGroup as failures:
            # The first failure cancelled the others.
            raise failures.exceptions[0] from None
        finally:
            queue.close()

    def _stopped(self, tally: BatchProgress, why: str) -> int:
        print_message(
            self._console,
            f"{why}; {tally.done:,} of {tally.total:,} lines sent; "
            "run the same command again to resume",
        )
        return INTERRUPTED
