"""A worker for AWS Lambda, which calls `batch.aws_lambda.handler` with the messages of a queue.

Of an installation, Lambda calls `worker_rkllm.aws_lambda.handler`, which is the same function.

The settings are those of `python -m batch worker`, with BATCH_QUEUE_URL and BATCH_RESULTS in place
of its options.
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
from batch.queue.worker import QueueWorker
from batch.queue.worker_config import WorkerConfig, build_worker_config
from batch.settings import BatchSettings
from handler.composition import build_services, build_validation
from handler.logs.configuration import configure_logging
from handler.settings.engine_configs import build_engine
from handler.settings.model_settings import resolve_models
from handler.settings.shared_settings import read_settings
from jobs.sqs.calls import sqs_client
from jobs.sqs.queue import SqsQueue

# Remaining time of the function at which unfinished messages are cancelled, so that the finished
# ones are still reported.
_TIMEOUT_MARGIN_S = 5.0


class MessageNotSettled(Exception):
    """A message has no answer yet, so SQS must deliver it again."""


class LambdaContext(Protocol):
    """The part of Lambda's context object that the worker uses."""

    def get_remaining_time_in_millis(self) -> int:
        """Return the remaining time of the call, in milliseconds."""


class LambdaWorker:
    """Keeps an engine loaded between calls and answers the messages of each call.

    The event loop runs in a thread of its own, because Lambda calls from the main thread. There is
    one call at a time.
    """

    def __init__(self, settings: BatchSettings) -> None:
        """Load the model. Raises SettingError, JobsError, ValueError, EngineError."""
        settings = resolve_models(settings)
        self._settings = settings
        self._bucket = ResultBucket.from_url(
            settings.batch_results, max_message_bytes=settings.max_body_mb * 1_000_000
        )
        self._results = BucketResultStore(self._bucket, settings.served_model)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="worker", daemon=True)
        self._thread.start()
        self._engine = build_engine(settings)
        services = build_services(settings, self._engine, build_validation(settings))
        self._executor = LineExecutor(services, self._engine)
        self._config = asyncio.run_coroutine_threadsafe(self._prepare(), self._loop).result()

    def answer(self, event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
        """Answer an event's messages and return the messages that SQS must deliver again."""
        time_limit_s = context.get_remaining_time_in_millis() / 1000 - _TIMEOUT_MARGIN_S
        answering = self._answer_records(event, time_limit_s)
        finished = asyncio.run_coroutine_threadsafe(answering, self._loop).result()

        def settle(record: SQSRecord) -> None:
            if record.message_id not in finished:
                raise MessageNotSettled(record.message_id)

        # By default the processor raises an error if no message is finished; Lambda would report a
        # failed call.
        processor = BatchProcessor(EventType.SQS, raise_on_entire_batch_failure=False)
        return dict(process_partial_response(dict(event), settle, processor))

    def close(self) -> None:
        """Close the engine and the event loop."""
        asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _prepare(self) -> WorkerConfig:
        queue = SqsQueue(sqs_client(self._settings.batch_queue_url))
        try:
            attributes = await queue.get_attributes(self._settings.batch_queue_url)
        finally:
            queue.close()
        await self._engine.ready()
        return build_worker_config(self._settings, attributes, self._engine.slots, until_empty=True)

    async def _answer_records(self, event: Mapping[str, Any], time_limit_s: float) -> set[str]:
        jobs = await asyncio.to_thread(read_jobs, event["Records"], self._bucket)
        queue = LambdaEventQueue(jobs, self._results)
        model = self._settings.served_model
        worker = QueueWorker(
            queue, self._results, self._executor, BatchProgress(0), model, self._config
        )
        try:
            async with asyncio.timeout(time_limit_s):
                await worker.run()
        except TimeoutError:
            # SQS delivers the unfinished messages again.
            pass
        return queue.finished


_worker: LambdaWorker | None = None


def handler(event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answer an SQS event. This is the entry point for Lambda."""
    global _worker
    if _worker is None:
        settings = read_settings(BatchSettings)
        configure_logging(settings.log_level, settings.log_format, texts=settings.log_texts)
        _worker = LambdaWorker(settings)
    return _worker.answer(event, context)
