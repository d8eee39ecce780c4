"""A worker that AWS Lambda calls with the messages of a queue: `batch.aws_lambda.handler`.

Settings as for `python -m batch worker`, with BATCH_QUEUE_URL and BATCH_RESULTS for its options.
The event source mapping needs ReportBatchItemFailures.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from batch.line_executor import LineExecutor
from batch.progress import BatchProgress
from batch.queue.event_queue import LambdaEventQueue, read_jobs
from batch.queue.result_bucket import ResultBucket
from batch.queue.result_store import BucketResultStore
from batch.queue.worker import QueueWorker, WorkerConfig
from batch.queue.worker_config import build_worker_config
from batch.settings import BatchSettings
from handler.composition import build_services, build_validation
from handler.engine_configs import build_engine
from handler.logs import configure_logging
from handler.model_settings import resolve_models
from handler.settings import read_settings
from jobs.sqs.calls import sqs_client
from jobs.sqs.queue import SqsQueue

# Left of the function's time when what is still under way is given up, to tell what has ended.
_TIMEOUT_MARGIN_S = 5.0


class MessageNotSettled(Exception):
    """A message has no answer yet and is to come again."""


class LambdaContext(Protocol):
    """What is needed of Lambda's context."""

    def get_remaining_time_in_millis(self) -> int:
        """Return how long the call may last."""


class LambdaWorker:
    """An engine that outlives the calls, and answers the messages of each.

    Its event loop has a thread of its own, for Lambda calls from another; one call at a time.
    """

    def __init__(self, settings: BatchSettings) -> None:
        """Load the model. Raises SettingError, JobsError, ValueError, EngineError."""
        settings = resolve_models(settings)
        self._settings = settings
        self._place = ResultBucket.from_url(
            settings.batch_results, max_message_bytes=settings.max_body_mb * 1_000_000
        )
        self._results = BucketResultStore(self._place, settings.served_model)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="worker", daemon=True)
        self._thread.start()
        self._engine = build_engine(settings)
        doors = build_services(settings, self._engine, build_validation(settings))
        self._answerer = LineExecutor(doors, self._engine)
        self._terms = asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()

    def answer(self, event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
        """Answer an event's messages and return which of them are to come again."""
        left_s = context.get_remaining_time_in_millis() / 1000 - _TIMEOUT_MARGIN_S
        work = self._work(event, left_s)
        ended = asyncio.run_coroutine_threadsafe(work, self._loop).result()

        def settle(record: SQSRecord) -> None:
            if record.message_id not in ended:
                raise MessageNotSettled(record.message_id)

        # That none has ended is no reason for Lambda to see an error where there is none.
        processor = BatchProcessor(EventType.SQS, raise_on_entire_batch_failure=False)
        return dict(process_partial_response(dict(event), settle, processor))

    def close(self) -> None:
        """End the engine and the event loop."""
        asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _begin(self) -> WorkerConfig:
        queue = SqsQueue(sqs_client(self._settings.batch_queue_url))
        try:
            facts = await queue.get_attributes(self._settings.batch_queue_url)
        finally:
            queue.close()
        await self._engine.ready()
        return build_worker_config(self._settings, facts, self._engine.slots, until_empty=True)

    async def _work(self, event: Mapping[str, Any], left_s: float) -> set[str]:
        jobs = await asyncio.to_thread(read_jobs, event["Records"], self._place)
        queue = LambdaEventQueue(jobs, self._results)
        model = self._settings.served_model
        worker = QueueWorker(
            queue, self._results, self._answerer, BatchProgress(0), model, self._terms
        )
        try:
            async with asyncio.timeout(left_s):
                await worker.run()
        except TimeoutError:
            # What has ended is kept and told; the rest comes again.
            pass
        return queue.ended


_worker: LambdaWorker | None = None


def handler(event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answer an event of SQS: Lambda's entry point."""
    global _worker
    if _worker is None:
        settings = read_settings(BatchSettings)
        configure_logging(settings.log_level, settings.log_format, texts=settings.log_texts)
        _worker = LambdaWorker(settings)
    return _worker.answer(event, context)
