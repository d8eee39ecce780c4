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
from common.failpoints import failpoint
from common.temporary_folders import ScratchFolder
from handler.composition import build_services, build_validation
from handler.settings.engine_configs import build_engine
from jobs import JobsError, Json, NewJob
from jobs.sqs.calls import sqs_client
from jobs.sqs.queue import SqsQueue

# Messages sent concurrently, ten per SQS request. Progress is saved after each such group.
_MESSAGES_PER_GROUP = 500
# Digits of the input's SHA-256 in the default name of a batch.
_BATCH_NAME_DIGITS = 16


def run(args: argparse.Namespace, settings: BatchSettings, console: Console) -> int:
    """Send the lines that were not sent yet and return the exit code. Raises SettingError."""
    # The engine is built for its checks only; no model is loaded.
    engine = build_engine(settings)
    executor = LineExecutor(build_services(settings, engine, build_validation(settings)), engine)
    with ScratchFolder() as scratch:
        command = SubmitCommand(args, settings, console, executor)
        try:
            return command.run(scratch.path)
        except (InputError, JobsError, PreconditionFailed) as error:
            print_message(console, str(error))
            return REFUSED
        except KeyboardInterrupt:
            print_message(console, "stopped by SIGINT; nothing was sent")
            return INTERRUPTED


class SubmitCommand:
    """One run of the command.

    The input's manifest is in the bucket before the first line is in the queue. A line that is sent
    twice, for example after a killed run, gets one answer, because the key of its answer is the
    same. Owned by the thread that calls `run`.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        settings: BatchSettings,
        console: Console,
        executor: LineExecutor,
    ) -> None:
        self._args = args
        self._settings = settings
        self._console = console
        self._executor = executor

    def run(self, folder: Path) -> int:
        """Check the input, write its manifest and send its lines.

        Raises InputError, JobsError, PreconditionFailed: nothing was sent.
        """
        settings = self._settings
        try:
            bucket = ResultBucket.from_url(self._args.results)
            if self._args.batch is not None:
                validate_batch_name(self._args.batch)
        except ValueError as error:
            raise PreconditionFailed(str(error)) from None
        client = sqs_client(self._args.queue_url)
        path = fetch_input(self._args.input, folder / "input", settings.batch_max_mb * 1_000_000)
        source = LineSource(path, settings.max_body_mb * 1_000_000)
        with self._console.status("checking the lines"):
            summary = scan_input(source, self._executor.check, settings.batch_max_lines)
        if summary.problem_count:
            raise PreconditionFailed(format_problems(summary))
        batch = self._args.batch or summary.digest[:_BATCH_NAME_DIGITS]
        queue = SqsQueue(client, bodies=bucket)
        try:
            # Fail on a missing queue before the manifest is written.
            asyncio.run(self._check_queue(queue))
        finally:
            queue.close()
        manifest = self._create_manifest(bucket, batch, source, summary)
        sent_before = 0 if self._args.again else manifest.sent
        answer_names = self._list_answer_names(bucket, batch) if self._args.again else set()
        messages = self._encode_messages(source, batch, sent_before, answer_names)
        print_message(
            self._console, f"batch {batch}: {summary.lines:,} lines, {sent_before:,} sent already"
        )
        progress = BatchProgress(summary.lines, sent_before, done_before=sent_before)
        try:
            asyncio.run(self._send(SqsQueue(client, bodies=bucket), messages, manifest, progress))
        except KeyboardInterrupt:
            return self._report_interruption(progress, "stopped by SIGINT")
        except (JobsError, InputError) as error:
            return self._report_interruption(progress, str(error))
        print_message(self._console, f"{progress.done:,} of {summary.lines:,} lines sent")
        return DONE

    async def _check_queue(self, queue: SqsQueue) -> None:
        await queue.get_attributes(self._args.queue_url)

    def _create_manifest(
        self, bucket: ResultBucket, batch: str, source: LineSource, summary: InputSummary
    ) -> BatchManifest:
        """Return the batch's manifest, written unless an earlier run did.

        Raises PreconditionFailed if the existing manifest belongs to another input.
        """
        manifest = BatchManifest(bucket, batch)
        ids = (parse_line(raw, number).custom_id for number, raw in enumerate(source.lines(), 1))
        header = BatchHeader(summary.digest, summary.lines, self._args.queue_url)
        if not manifest.create(header, ids):
            existing = manifest.header()
            if existing is None or existing.digest != summary.digest:
                raise PreconditionFailed(
                    f"{manifest.url} belongs to another input; choose another --batch"
                )
        return manifest

    def _list_answer_names(self, bucket: ResultBucket, batch: str) -> set[str]:
        """Return the names of the existing answers, for --again."""
        return {each.key.rpartition("/")[2] for each in bucket.list(results_prefix(batch))}

    def _encode_messages(
        self, source: LineSource, batch: str, sent_before: int, answer_names: set[str]
    ) -> Iterator[Json | None]:
        """Yield a message for each line after `sent_before`, or None if the line has an answer."""
        for number, raw in enumerate(islice(source.lines(), sent_before, None), sent_before + 1):
            line = parse_line(raw, number)
            name = result_key(batch, line.custom_id).rpartition("/")[2]
            yield None if name in answer_names else encode_message(batch, raw, line)

    async def _send(
        self,
        queue: SqsQueue,
        messages: Iterator[Json | None],
        manifest: BatchManifest,
        progress: BatchProgress,
    ) -> None:
        url = self._args.queue_url

        async def send(message: Json | None) -> None:
            if message is not None:
                await queue.enqueue(NewJob(endpoint=url, input=message))
            progress.record_line(ok=True, tokens=0)

        try:
            async with show_progress(progress, self._console):
                while group := [*islice(messages, _MESSAGES_PER_GROUP)]:
                    async with asyncio.TaskGroup() as tasks:
                        for message in group:
                            tasks.create_task(send(message))
                    await asyncio.to_thread(manifest.save_sent_lines, progress.done)
                    failpoint("sent-noted")
        except BaseExceptionGroup as failures:
            # The first failure cancelled the other tasks.
            raise failures.exceptions[0] from None
        finally:
            queue.close()

    def _report_interruption(self, progress: BatchProgress, reason: str) -> int:
        print_message(
            self._console,
            f"{reason}; {progress.done:,} of {progress.total:,} lines sent; "
            "run the same command again to resume",
        )
        return INTERRUPTED
