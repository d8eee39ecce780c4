"""`python -m batch worker`: answer the messages of an SQS queue."""

from __future__ import annotations

import argparse
import asyncio

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
from handler.engine_configs import build_engine
from handler.model_settings import resolve_models
from jobs import JobsError
from jobs.sqs.calls import sqs_client
from jobs.sqs.queue import SqsQueue


def run(given: argparse.Namespace, settings: BatchSettings, console: Console) -> int:
    """Work until a stop signal and return the exit code. Raises SettingError."""
    settings = resolve_models(settings)
    engine = build_engine(settings)
    doors = build_services(settings, engine, build_validation(settings))
    return uvloop.run(
        WorkerCommand(given, settings, console, engine, LineExecutor(doors, engine)).run()
    )


class WorkerCommand:
    """One worker, from checking its queue and bucket to its exit.

    Owned by the event loop that runs it.
    """

    def __init__(
        self,
        given: argparse.Namespace,
        settings: BatchSettings,
        console: Console,
        engine: AnyEngine,
        answerer: LineExecutor,
    ) -> None:
        self._given = given
        self._settings = settings
        self._console = console
        self._engine = engine
        self._answerer = answerer
        self._tally = BatchProgress(0)
        self._stop = StopSignals()

    async def run(self) -> int:
        """Work and return the exit code."""
        code = DONE
        with self._stop.heard():
            try:
                await self._work()
            except PreconditionFailed as error:
                print_message(self._console, str(error))
                return REFUSED
            except (EngineError, WorkerStopped) as error:
                print_message(self._console, f"{error}; unfinished messages return to the queue")
                code = INTERRUPTED
            except asyncio.CancelledError:
                if not self._stop.name:
                    raise
                # A single signal before the first message was received is a normal end.
                code = DONE if self._stop.times == 1 else INTERRUPTED
            finally:
                await self._engine.close()
        if self._stop.name:
            print_message(self._console, f"stopped by {self._stop.name}")
        print_message(
            self._console, f"{self._tally.done:,} messages answered, {self._tally.rates()}"
        )
        return code

    def _stopping(self, under_way: int) -> str:
        """Return what is waited for after a first signal, and for how long at most."""
        messages = "1 message" if under_way == 1 else f"{under_way:,} messages"
        limit_s = max(self._settings.request_timeout_s, self._settings.batch_poll_s)
        return (
            f"stopping: waiting for {messages} under way, up to {limit_s:g} s; "
            "Ctrl-C again ends at once, and what is under way comes again"
        )

    async def _work(self) -> None:
        url, model = self._given.queue_url, self._settings.served_model
        try:
            place = ResultBucket.at(
                self._given.results, max_message_bytes=self._settings.max_body_mb * 1_000_000
            )
            results = BucketResultStore(place, model)
            queue = SqsQueue(sqs_client(url), results, place)
            facts = await queue.facts(url)
            until_empty = self._given.until_empty
            terms = build_worker_config(
                self._settings, facts, self._engine.slots, until_empty=until_empty
            )
            await asyncio.to_thread(place.check)
        except (JobsError, ValueError) as error:
            raise PreconditionFailed(str(error)) from None
        print_message(self._console, f"loading {model}")
        await self._engine.ready()
        worker = QueueWorker(queue, results, self._answerer, self._tally, model, terms)

        def stop() -> None:
            print_message(self._console, self._stopping(worker.under_way))
            worker.stop()

        self._stop.act = stop
        try:
            async with show_worker_progress(self._tally, self._console):
                await worker.run()
        finally:
            queue.close()
