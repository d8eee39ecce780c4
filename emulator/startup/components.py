"""Build the object graph of the server, start it and close it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.apis.openai.queue_routes import QueuedOpenAIRoutes
from emulator.autoscaling.autoscaler import Autoscaler
from emulator.autoscaling.containers.image_build import ImageBuild
from emulator.autoscaling.handler_state import HandlerState
from emulator.autoscaling.program.reload import CodeWatch
from emulator.autoscaling.program.worker_program import WorkerProgram, command_program
from emulator.autoscaling.worker_log import WorkerLogs
from emulator.autoscaling.worker_process import spawn_supervised
from emulator.autoscaling.worker_starter import WorkerStarter
from emulator.bucket.service import Bucket
from emulator.console.generation_tracker import GenerationTracker
from emulator.console.routes import ConsoleRoutes
from emulator.http.shutdown_state import ShutdownState
from emulator.metrics.definitions import Metrics
from emulator.metrics.gauges import build_job_metrics
from emulator.metrics.instruments import Metric
from emulator.middleware.faults.catalogue import describe_faults
from emulator.middleware.faults.rules import FaultRules
from emulator.runpod.client_routes import ClientRoutes
from emulator.runpod.job_log import log_ended, log_started
from emulator.runpod.job_response import LOCAL_WORKER_NAME, is_managed, worker_key, worker_name
from emulator.runpod.known_endpoints import KnownEndpoints
from emulator.runpod.result_watch import ResultWatch
from emulator.runpod.webhooks import Webhooks
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.runpod.worker_routes import WorkerRoutes
from emulator.server.graceful_shutdown import GracefulShutdown, RunningWork
from emulator.settings.emulator_settings import IN_MEMORY, EmulatorSettings
from emulator.status.endpoint_list import EndpointList
from emulator.status.health import Health
from emulator.status.worker_list import WorkerList
from emulator.status.worker_list_routes import WorkerListRoutes
from emulator.tracing.setup import Tracing, build_tracing
from engine import AnyEngine
from handler.composition import build_validation, warn_about_variables
from jobs import Job, JobStatus, MemoryJobStore, SqliteJournal

if TYPE_CHECKING:
    from emulator.startup.engine_components import EngineComponents

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Components:
    """The parts of one server, which all live as long as the application."""

    settings: EmulatorSettings
    # None if the server runs a user's handler, and has no engine of its own.
    engine_components: EngineComponents | None
    metrics: Metrics
    exported_metrics: Sequence[Metric]
    tracing: Tracing
    store: MemoryJobStore
    end_reporter: JobEndReporter
    webhooks: Webhooks
    worker_registry: WorkerRegistry
    # By endpoint: one, or that of each handler.
    autoscalers: Mapping[str, Autoscaler]
    # The bucket of the workers that the server starts; None if it gives them none.
    bucket: Bucket | None
    worker_logs: WorkerLogs
    result_watch: ResultWatch
    # Notice changes of the user's handlers; empty without handlers, or if RELOAD is off.
    code_watches: Sequence[CodeWatch]
    shutdown: ShutdownState
    workload: Workload
    graceful_shutdown: GracefulShutdown
    # The key in the URLs of managed workers; None if the server requires no key.
    managed_worker_key: str | None
    queued_openai_routes: QueuedOpenAIRoutes
    client_routes: ClientRoutes
    worker_routes: WorkerRoutes
    worker_list_routes: WorkerListRoutes
    console_routes: ConsoleRoutes
    health: Health
    # Whether the workers run a user's handler or image.
    runs_handlers: bool
    # None if FAULTS_PER_REQUEST is off.
    fault_rules: FaultRules | None = None

    def start_workers(self, url: str) -> None:
        """Start the worker processes; the server must be reachable at `url`."""
        for autoscaler in self.autoscalers.values():
            autoscaler.start(url)

    @property
    def _reload_parts(self) -> Sequence[CodeWatch | ImageBuild]:
        return [*self.code_watches, *self.workload.image_builds]

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Start all parts; close them at the end, after work that still runs was drained."""
        engine_components = self.engine_components
        try:
            if engine_components is not None:
                engine_components.spawn()
            # Only other workers may have survived a restart of the server with their jobs.
            await self.store.start(self._can_outlive_server, self.settings.lease_s)
            self.end_reporter.is_recovering = False
            # After the store, whose lock keeps other servers from the folder of its database.
            if self.bucket is not None:
                await self.bucket.start()
            self.worker_registry.start()
            if engine_components is not None:
                await engine_components.start()
            for reload_part in self._reload_parts:
                reload_part.start()
            yield
        finally:
            if engine_components is not None:
                await engine_components.watch.close()
            for reload_part in self._reload_parts:
                await reload_part.close()
            is_late = self.shutdown.deadline_passed.is_set()
            await self.workload.drain(0 if is_late else self.settings.drain_s)
            await self.worker_registry.close()
            await self.webhooks.close()
            await self.queued_openai_routes.close()
            if self.bucket is not None:
                await self.bucket.close()
            await self.result_watch.close()
            if engine_components is not None:
                await engine_components.close()
            self._warn_of_lost_jobs()
            await self.store.close()
            await self.tracing.close()

    def _warn_of_lost_jobs(self) -> None:
        waiting = self.store.count_by_status()[JobStatus.IN_QUEUE]
        if waiting and self.settings.job_db == IN_MEMORY:
            logger.warning(
                "%s in the queue are lost: JOB_DB=:memory: keeps nothing", f"{waiting:,} jobs"
            )

    def _can_outlive_server(self, key: str) -> bool:
        local = worker_key(self.settings.endpoint_id, LOCAL_WORKER_NAME)
        return key != local and not is_managed(worker_name(key))


class JobEndReporter:
    """Reports jobs that have ended to their webhooks, to tracing, to the log and to the metrics.

    Also to the registry of workers. While the store recovers the jobs of an earlier server, only
    webhooks and tracing get them. The store calls `report`, and the webhooks and the registry need
    the store, so they are set afterwards.
    """

    def __init__(self, tracing: Tracing, metrics: Metrics) -> None:
        self._tracing = tracing
        self._metrics = metrics
        self.webhooks: Webhooks | None = None
        self.worker_registry: WorkerRegistry | None = None
        self.is_recovering = True

    def report(self, job: Job) -> None:
        """Report a job that has ended."""
        if self.webhooks is not None:
            self.webhooks.send(job)
        self._tracing.job_ended(job)
        if not self.is_recovering:
            log_ended(job)
            self._metrics.job_ended(job)

    def report_stop(self, job: Job) -> None:
        """Report a job that its worker must stop."""
        if self.worker_registry is not None:
            self.worker_registry.record_stop(job)


@dataclass(frozen=True)
class Workload:
    """The work that a shutdown waits for."""

    store: MemoryJobStore
    shutdown: ShutdownState
    autoscalers: Sequence[Autoscaler]
    engine_components: EngineComponents | None
    # Build images again whose project has changed.
    image_builds: Sequence[ImageBuild] = ()

    async def drain(self, limit_s: float) -> None:
        """Stop taking work, and give running jobs and batches `limit_s` to finish.

        Jobs that still run then return to the queue. Images that were replaced are removed, because
        no worker uses them any more.
        """
        drains = [autoscaler.drain(limit_s) for autoscaler in self.autoscalers]
        if self.engine_components is not None:
            drains.append(self.engine_components.drain(limit_s))
        await asyncio.gather(*drains)
        for image_build in self.image_builds:
            await image_build.remove_replaced()

    def count(self) -> RunningWork:
        """Count the running jobs, requests and batches."""
        engine_components = self.engine_components
        batches = () if engine_components is None else engine_components.batches.batches()
        return RunningWork(
            jobs=self.store.count_by_status()[JobStatus.IN_PROGRESS],
            requests=self.shutdown.active_requests,
            batches=sum(not each.status.is_final for each in batches),
        )


def build_components(
    settings: EmulatorSettings,
    engine: AnyEngine | None,
    programs: Mapping[str, WorkerProgram] | None = None,
) -> Components:
    """Build all objects of a server and connect them, without starting any.

    A server that only runs the user's handlers has no `engine`.
    `programs` are those of the worker processes that the server starts, by their endpoints; None
    stands for this package's worker.

    Raises:
        SettingError: a setting cannot be used.
    """
    if programs is None:
        program = command_program(settings.worker_command, settings.worker_python)
        programs = {settings.endpoint_id: program}
    shutdown = ShutdownState()
    tracker = GenerationTracker()
    if engine is None:
        warn_about_variables(settings)
        validation = None
    else:
        validation = build_validation(settings)
    metrics = (
        Metrics(())
        if validation is None
        else Metrics(validation.validator.issue_rules, validation.validator.notice_rules)
    )
    tracing = build_tracing(settings, engine)
    end_reporter = JobEndReporter(tracing, metrics)
    journal = None if settings.job_db == IN_MEMORY else SqliteJournal(Path(settings.job_db))
    store = MemoryJobStore(
        settings.store_limits(),
        journal,
        on_enqueued=tracing.job_enqueued,
        on_started=log_started,
        on_ended=end_reporter.report,
        on_stopped=end_reporter.report_stop,
    )
    end_reporter.webhooks = webhooks = Webhooks(
        store,
        max_attempts=settings.webhook_tries,
        retry_delay_s=settings.webhook_pause_s,
        targets=settings.outbound_policy(),
    )
    worker_registry = WorkerRegistry(
        store, lease_s=settings.lease_s, grace_s=settings.worker_grace_s
    )
    end_reporter.worker_registry = worker_registry
    managed_worker_key = secrets.token_urlsafe(32) if settings.keys() else None
    result_watch = ResultWatch(store)
    worker_logs = WorkerLogs(on_printed=result_watch.read_line)
    result_watch.catch_up = worker_logs.catch_up
    # Not for this package's worker: it uses a bucket for results that RunPod would refuse.
    is_own = any(program.is_own_worker for program in programs.values())
    has_bucket = settings.workers and settings.bucket_store_mb and not is_own
    bucket = Bucket(settings) if has_bucket else None
    autoscalers = {
        endpoint: Autoscaler(
            store,
            worker_registry,
            endpoint,
            settings.scaling_policy(),
            WorkerStarter(
                endpoint,
                program,
                logs=worker_logs,
                api_key=next(iter(settings.keys()), None),
                own_key=managed_worker_key,
                allows_private_targets=settings.outbound_policy().allows_private,
                bucket=bucket,
                is_only_one=len(programs) == 1,
                spawn=partial(spawn_supervised, volume=program.volume),
            ),
            requeues_on_reload=settings.reload_jobs == "requeue",
            ends_old_first=settings.reload == "replace" or bool(settings.worker_command),
            local=LOCAL_WORKER_NAME,
        )
        for endpoint, program in programs.items()
    }
    exported_metrics: list[Metric] = [
        *metrics.families,
        *build_job_metrics(settings, list(programs), store, worker_registry, journal),
    ]
    engine_components: EngineComponents | None = None
    if engine is not None and validation is not None:
        # Only now: a server without an engine starts sooner without these modules.
        from emulator.startup.engine_components import build_engine_components

        engine_components = build_engine_components(
            settings,
            engine,
            validation,
            store=store,
            worker_registry=worker_registry,
            metrics=metrics,
            tracker=tracker,
            tracing=tracing,
            exported_metrics=exported_metrics,
            # Called much later, when `graceful_shutdown` is there.
            shut_down=lambda reason: graceful_shutdown.fail(reason),
        )
    image_builds = {
        endpoint: ImageBuild(
            program.image,
            autoscalers[endpoint].use_image,
            autoscalers[endpoint].record_failed_build,
        )
        for endpoint, program in programs.items()
        if program.image is not None and program.image.build_folder is not None
    }
    workload = Workload(
        store,
        shutdown,
        list(autoscalers.values()),
        engine_components,
        list(image_builds.values()),
    )
    graceful_shutdown = GracefulShutdown(
        shutdown, settings.drain_s, store.wait_until_idle, workload.drain, workload.count
    )
    handlers = {
        endpoint: HandlerState(program, autoscalers[endpoint])
        for endpoint, program in programs.items()
        if program.name is not None
    }
    known_endpoints = KnownEndpoints(list(handlers), store, worker_registry)
    return Components(
        settings=settings,
        engine_components=engine_components,
        metrics=metrics,
        exported_metrics=exported_metrics,
        tracing=tracing,
        store=store,
        end_reporter=end_reporter,
        webhooks=webhooks,
        worker_registry=worker_registry,
        autoscalers=autoscalers,
        bucket=bucket,
        worker_logs=worker_logs,
        result_watch=result_watch,
        code_watches=_build_code_watches(settings, programs, autoscalers, image_builds),
        shutdown=shutdown,
        workload=workload,
        graceful_shutdown=graceful_shutdown,
        managed_worker_key=managed_worker_key,
        queued_openai_routes=QueuedOpenAIRoutes(
            store,
            None if engine_components is None else engine_components.services.openai,
            shutdown,
            settings,
            check_endpoint=known_endpoints.check,
        ),
        client_routes=ClientRoutes(
            store,
            worker_registry,
            settings,
            shutdown,
            bucket,
            check_endpoint=known_endpoints.check,
        ),
        worker_routes=WorkerRoutes(store, worker_registry, settings, shutdown, result_watch),
        worker_list_routes=WorkerListRoutes(
            EndpointList(autoscalers, store.list_endpoints, settings.execution_timeout_ms),
            WorkerList(worker_registry, autoscalers),
            worker_logs,
        ),
        console_routes=ConsoleRoutes(
            store,
            worker_registry,
            None if engine_components is None else engine_components.engines,
            handlers,
            tracker,
            settings,
            faults=describe_faults() if settings.faults_per_request else None,
        ),
        runs_handlers=bool(handlers),
        health=Health(engine_components, list(handlers.values()), journal, shutdown),
        fault_rules=(
            FaultRules(settings.endpoint_id, settings.fault_seed)
            if settings.faults_per_request
            else None
        ),
    )


def _build_code_watches(
    settings: EmulatorSettings,
    programs: Mapping[str, WorkerProgram],
    autoscalers: Mapping[str, Autoscaler],
    image_builds: Mapping[str, ImageBuild],
) -> list[CodeWatch]:
    if settings.reload == "off":
        return []
    of_handlers = [
        CodeWatch(
            program.folders,
            partial(_reload, autoscalers[endpoint]),
            autoscalers[endpoint].retry_start,
            data=None if program.volume is None else program.volume.folder,
        )
        for endpoint, program in programs.items()
        if program.file is not None
    ]
    of_images = [
        CodeWatch(
            programs[endpoint].folders,
            image_build.request,
            data=None if (image := programs[endpoint].image) is None else image.volume,
            # Any file may be a part of the image, other than the jobs of this server.
            is_code=partial(_is_no_job_file, Path(settings.job_db).name),
        )
        for endpoint, image_build in image_builds.items()
    ]
    return [*of_handlers, *of_images]


def _is_no_job_file(database: str, path: str) -> bool:
    return not any(part.startswith(database) for part in Path(path).parts)


def _reload(autoscaler: Autoscaler, names: Sequence[str]) -> None:
    logger.info("%s changed: a new worker of %s starts", ", ".join(names), autoscaler.endpoint)
    autoscaler.reload()
