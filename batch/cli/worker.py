"""`python -m batch worker`: answer the messages of an SQS queue."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

import uvloop
from rich.console import Console

from batch.cli.output import print_message
from batch.cli.run import DONE, INTERRUPTED, REFUSED, PreconditionFailed
from batch.cli.signals import StopSignals
from batch.cli.worker_display import show_worker_progress
from batch.line_executor import LineExecutor
from batch.progress import BatchProgress
from batch.queue.result_bucket import ResultBucket
from batch.queue.result_store import BucketResultStore
from batch.queue.worker import QueueWorker, WorkerStopped
from batch.queue.worker_config import build_worker_config
from batch.settings import BatchSettings
from engine import AnyEngine
from engine.errors import EngineError
from handler.composition import build_services, build_validation
from handler.settings.engine_configs import build_engine
from handler.settings.model_settings import resolve_models
from jobs import JobsError
from jobs.sqs.calls import sqs_client
from jobs.sqs.queue import SqsQueue


def run(args: argparse.Namespace, settings: BatchSettings, console: Console) -> int:
    """Answer messages until a stop signal and return the exit code. Raises SettingError."""
    settings = resolve_models(settings)
    engine = build_engine(settings)
    services = build_services(settings, engine, build_validation(settings))
    return uvloop.run(
        WorkerCommand(args, settings, console, engine, LineExecutor(services, engine)).run()
    )


class WorkerCommand:
    """One worker, from checking its queue and bucket to its exit.

    Owned by the event loop that runs it.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        settings: BatchSettings,
        console: Console,
        engine: AnyEngine,
        executor: LineExecutor,
    ) -> None:
        self._args = args
        self._settings = settings
        self._console = console
        self._engine = engine
        self._executor = executor
        self._progress = BatchProgress(0)
        self._signals = StopSignals()

    async def run(self) -> int:
        """Answer messages until the worker stops and return the exit code."""
        exit_code = DONE
        with self._signals.handling():
            try:
                await self._work()
            except PreconditionFailed as error:
                print_message(self._console, str(error))
                return REFUSED
            except (EngineError, WorkerStopped) as error:
                print_message(self._console, f"{error}; unfinished messages return to the queue")
                exit_code = INTERRUPTED
            except asyncio.CancelledError:
                if not self._signals.first_signal:
                    raise
                # Before the first message is received, the first signal cancels this task, which
                # is a normal end.
                exit_code = DONE if self._signals.count == 1 else INTERRUPTED
            finally:
                await self._engine.close()
        if self._signals.first_signal:
            print_message(self._console, f"stopped by {self._signals.first_signal}")
        rates = self._progress.format_rates()
        print_message(self._console, f"{self._progress.done:,} messages answered, {rates}")
        return exit_code

    def _stop(self, worker: QueueWorker) -> None:
        """Stop receiving messages, and print how long the messages in progress can take."""
        count = worker.in_progress
        messages = "1 message" if count == 1 else f"{count:,} messages"
        limit_s = max(self._settings.request_timeout_s, self._settings.batch_poll_s)
        print_message(
            self._console,
            f"stopping: waiting for {messages} under way, up to {limit_s:g} s; "
            "Ctrl-C again ends at once; messages in progress return to the queue",
        )
        worker.stop()

    async def _work(self) -> None:
        """Check queue and bucket, load the model and answer messages until the worker stops."""
        url, model = self._args.queue_url, self._settings.served_model
        try:
            bucket = ResultBucket.from_url(
                self._args.results, max_message_bytes=self._settings.max_body_mb * 1_000_000
            )
            results = BucketResultStore(bucket, model)
            queue = SqsQueue(sqs_client(url), results, bucket)
            attributes = await queue.get_attributes(url)
            until_empty = self._args.until_empty
            config = build_worker_config(
                self._settings, attributes, self._engine.slots, until_empty=until_empty
            )
            await asyncio.to_thread(bucket.check)
        except (JobsError, ValueError) as error:
            raise PreconditionFailed(str(error)) from None
        print_message(self._console, f"loading {model}")
        await self._engine.ready()
        worker = QueueWorker(queue, results, self._executor, self._progress, model, config)
        self._signals.begin_stop = partial(self._stop, worker)
        try:
            async with show_worker_progress(self._progress, self._console):
                await worker.run()
        finally:
            queue.close()
