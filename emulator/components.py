"""Build the object graph of the server, start it and close it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from emulator.autoscaling.autoscaler import Autoscaler, is_managed
from emulator.batches.service import BatchService
from emulator.console.generation_tracker import GenerationTracker
from emulator.console.routes import ConsoleRoutes
from emulator.health import Health
from emulator.http.shutdown_state import ShutdownState
from emulator.metrics.definitions import Metrics
from emulator.metrics.gauges import build_polled_metrics
from emulator.metrics.instruments import Metric
from emulator.metrics.validator import InstrumentedValidator
from emulator.openai.chat_rate_limit import ChatRateLimiter
from emulator.openai.queue_routes import QueuedOpenAIRoutes
from emulator.openai.routes import OpenAIRoutes
from emulator.openai.system_status import RequestStatistics, SystemStatus
from emulator.openai.tokenize_routes import TokenizeRoutes
from emulator.runpod.client_routes import ClientRoutes
from emulator.runpod.draining_store import DrainingStore
from emulator.runpod.job_log import log_ended, log_started
from emulator.runpod.job_response import worker_key
from emulator.runpod.local_worker import LOCAL_WORKER_NAME, LocalWorker
from emulator.runpod.webhooks import Webhooks
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.runpod.worker_routes import WorkerRoutes
from emulator.server.engine_watch import EngineWatch
from emulator.server.graceful_shutdown import GracefulShutdown, RunningWork
from emulator.settings import IN_MEMORY, EmulatorSettings
from emulator.tracing.setup import Tracing, build_tracing
from engine import AnyEngine, engines_by_model
from engine.errors import EngineError
from handler.composition import Services, build_result_uploader, build_services, build_validation
from handler.setting_error import SettingError
from jobs import Job, JobStatus, MemoryJobStore, SqliteJournal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Components:
    """The parts of one server, which all live as long as the application."""

    settings: EmulatorSettings
    engine: AnyEngine
    metrics: Metrics
    exported_metrics: Sequence[Metric]
    tracing: Tracing
    store: MemoryJobStore
    end_reporter: JobEndReporter
    webhooks: Webhooks
    worker_registry: WorkerRegistry
    local_worker: LocalWorker
    autoscaler: Autoscaler
    batches: BatchService
    shutdown: ShutdownState
    workload: Workload
    graceful_shutdown: GracefulShutdown
    engine_watch: EngineWatch
    # The key in the URLs of managed workers; None if the server requires no key.
    managed_worker_key: str | None
    openai_routes: OpenAIRoutes
    queued_openai_routes: QueuedOpenAIRoutes
    client_routes: ClientRoutes
    worker_routes: WorkerRoutes
    console_routes: ConsoleRoutes
    health: Health

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Start all parts; close them at the end, after work that still runs was drained."""
        load_task: asyncio.Task[None] | None = None
        try:
            self.engine.spawn()
            # Only other workers may have survived a restart of the server with their jobs.
            await self.store.start(self._can_outlive_server, self.settings.lease_s)
            self.end_reporter.is_recovering = False
            await self.batches.start()
            self.worker_registry.start()
            if self.settings.local_worker:
                self.local_worker.start()
            else:
                load_task = asyncio.create_task(_load_model(self.engine))
            self.engine_watch.start()
            yield
        finally:
            await self.engine_watch.close()
            is_late = self.shutdown.deadline_passed.is_set()
            await self.workload.drain(0 if is_late else self.settings.drain_s)
            await self.worker_registry.close()
            await self.webhooks.close()
            await self.queued_openai_routes.close()
            await self.batches.close()
            if load_task is not None:
                load_task.cancel()
                await asyncio.gather(load_task, return_exceptions=True)
            await self.engine.close()
            await self.store.close()
            await self.tracing.close()

    def _can_outlive_server(self, key: str) -> bool:
        return key != worker_key(self.settings.endpoint_id, LOCAL_WORKER_NAME) and not is_managed(
            key
        )


class JobEndReporter:
    """Reports jobs that have ended to their webhooks, to tracing, to the log and to the metrics.

    While the store recovers the jobs of an earlier server, only webhooks and tracing get them. The
    store calls `report`, and the webhooks need the store, so `webhooks` is set afterwards.
    """

    def __init__(self, tracing: Tracing, metrics: Metrics) -> None:
        self._tracing = tracing
        self._metrics = metrics
        self.webhooks: Webhooks | None = None
        self.is_recovering = True

    def report(self, job: Job) -> None:
        """Report a job that has ended."""
        if self.webhooks is not None:
            self.webhooks.send(job)
        self._tracing.job_ended(job)
        if not self.is_recovering:
            log_ended(job)
            self._metrics.job_ended(job)


@dataclass(frozen=True)
class Workload:
    """The work that a shutdown waits for."""

    store: MemoryJobStore
    shutdown: ShutdownState
    local_worker: LocalWorker
    autoscaler: Autoscaler
    batches: BatchService

    async def drain(self, limit_s: float) -> None:
        """Start no more work, wait up to `limit_s` for running work, and requeue the rest."""
        await asyncio.gather(
            self.local_worker.drain(limit_s),
            self.autoscaler.drain(limit_s),
            self.batches.drain(limit_s),
        )

    def count(self) -> RunningWork:
        """Count the running jobs, requests and batches."""
        return RunningWork(
            jobs=self.store.count_by_status()[JobStatus.IN_PROGRESS],
            requests=self.shutdown.active_requests,
            batches=sum(not each.status.is_final for each in self.batches.batches()),
        )


def build_components(settings: EmulatorSettings, engine: AnyEngine) -> Components:
    """Return the parts of a server around an engine; nothing is started yet.

    Raises:
        SettingError: a setting cannot be used.
    """
    shutdown = ShutdownState()
    tracker = GenerationTracker()
    metrics, services = _build_services(settings, engine, tracker)
    tracing = build_tracing(settings, engine)
    statistics = RequestStatistics()
    engine.subscribe(statistics)
    end_reporter = JobEndReporter(tracing, metrics)
    journal = None if settings.job_db == IN_MEMORY else SqliteJournal(Path(settings.job_db))
    store = MemoryJobStore(
        settings.store_limits(), journal, on_ended=end_reporter.report, on_started=log_started
    )
    traced_store = tracing.wrap_store(store)
    routes_store = DrainingStore(traced_store, shutdown)
    end_reporter.webhooks = webhooks = Webhooks(
        store,
        max_attempts=settings.webhook_tries,
        retry_delay_s=settings.webhook_pause_s,
        targets=settings.outbound_policy(),
    )
    worker_registry = WorkerRegistry(
        store, lease_s=settings.lease_s, grace_s=settings.worker_grace_s
    )
    local_worker = LocalWorker(
        store,
        services.jobs,
        engine,
        worker_registry,
        settings.endpoint_id,
        settings.stream_mode,
        tracing.enter_job,
        # REQUEST_TIMEOUT_S applies to jobs as well if it is set.
        use_policy_timeout="request_timeout_s" not in settings.model_fields_set,
        max_lost_attempts=settings.store_limits().max_losses,
    )
    managed_worker_key = secrets.token_urlsafe(32) if settings.keys() else None
    autoscaler = Autoscaler(
        store,
        worker_registry,
        settings.endpoint_id,
        settings.scaling_policy(),
        command=settings.worker_command,
        api_key=next(iter(settings.keys()), None),
        own_key=managed_worker_key,
        allows_private_targets=settings.outbound_policy().allows_private,
        local=LOCAL_WORKER_NAME,
    )
    batches = BatchService(settings, services, engine, metrics.count_batch_line)
    workload = Workload(store, shutdown, local_worker, autoscaler, batches)
    graceful_shutdown = GracefulShutdown(
        shutdown, settings.drain_s, store.wait_until_idle, workload.drain, workload.count
    )
    has_other_workers = partial(_has_other_workers, settings, worker_registry)
    exported_metrics = [
        *metrics.families,
        *build_polled_metrics(settings, engine, store, worker_registry, journal, batches.batches),
    ]
    engines = engines_by_model(engine, settings.served_model)
    max_body_bytes = int(settings.max_body_mb * 1e6)
    return Components(
        settings=settings,
        engine=engine,
        metrics=metrics,
        exported_metrics=exported_metrics,
        tracing=tracing,
        store=store,
        end_reporter=end_reporter,
        webhooks=webhooks,
        worker_registry=worker_registry,
        local_worker=local_worker,
        autoscaler=autoscaler,
        batches=batches,
        shutdown=shutdown,
        workload=workload,
        graceful_shutdown=graceful_shutdown,
        engine_watch=EngineWatch(engine, has_other_workers, graceful_shutdown.fail),
        managed_worker_key=managed_worker_key,
        openai_routes=OpenAIRoutes(
            services.openai,
            _build_chat_rate_limiter(settings.rate_limit_chat),
            SystemStatus(engines, statistics, exported_metrics),
            TokenizeRoutes(services.models, max_body_bytes),
            max_body_bytes,
            settings.stream_interval_ms / 1000,
        ),
        queued_openai_routes=QueuedOpenAIRoutes(traced_store, services.openai, shutdown, settings),
        client_routes=ClientRoutes(routes_store, worker_registry, settings),
        worker_routes=WorkerRoutes(routes_store, worker_registry, settings, shutdown),
        console_routes=ConsoleRoutes(routes_store, worker_registry, engines, tracker, settings),
        health=Health(engine, engines, journal, shutdown, batches.damaged_ids),
    )


def _build_services(
    settings: EmulatorSettings, engine: AnyEngine, tracker: GenerationTracker
) -> tuple[Metrics, Services]:
    """Return the handlers of jobs and OpenAI requests, with metrics of the engine and verdicts."""
    validation = build_validation(settings)
    metrics = Metrics(validation.validator.issue_rules, validation.validator.notice_rules)
    engine.subscribe(metrics)
    services = build_services(
        settings,
        engine,
        validation,
        settings.stream_interval_ms / 1000,
        stream_multi_prompt=settings.stream_multi_prompt,
        results=build_result_uploader(
            settings, settings.payload_limits(), settings.outbound_policy()
        ),
        validator=InstrumentedValidator(validation.validator, metrics.count_verdict),
        on_open=tracker.add,
    )
    return metrics, services


def _build_chat_rate_limiter(rate: str) -> ChatRateLimiter:
    try:
        return ChatRateLimiter(rate)
    except ValueError as error:
        raise SettingError(
            f'RATE_LIMIT_CHAT: {error}; it is written like "10/minute", and off for none'
        ) from None


def _has_other_workers(settings: EmulatorSettings, worker_registry: WorkerRegistry) -> bool:
    """Return whether the server is useful without its own engine."""
    return bool(settings.workers) or not settings.local_worker or worker_registry.has_workers


async def _load_model(engine: AnyEngine) -> None:
    """Load the model of a server without a local worker, which otherwise waits for it.

    An engine that is only spawned would report that it is loading until the first request.
    """
    try:
        await engine.ready()
    except EngineError as error:
        logger.error("the engine did not start: %s", error)
