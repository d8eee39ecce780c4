"""The server as one ASGI application."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from emulator.autoscaling.autoscaler import Autoscaler, is_managed
from emulator.batches.file_storage import NoRoom
from emulator.batches.service import BatchPlane, on_no_room
from emulator.console.generation_tracker import GenerationTracker
from emulator.console.pages import PageRoutes
from emulator.console.routes import ConsoleRoutes
from emulator.health import Health
from emulator.http.disconnect import ClientDisconnected
from emulator.http.operation_router import ByOperation
from emulator.http.responses import error_response, on_error, on_http_error
from emulator.http.shutdown_state import ShutdownState
from emulator.metrics.definitions import Metrics
from emulator.metrics.gauges import build_polled_metrics
from emulator.metrics.route import MetricsRoute
from emulator.metrics.validator import InstrumentedValidator
from emulator.middleware.auth import ApiKeyMiddleware
from emulator.middleware.draining import DrainGate
from emulator.middleware.fault_injection import FaultInjectionMiddleware
from emulator.middleware.origin_check import OriginCheckMiddleware
from emulator.middleware.request_id import RequestIdMiddleware
from emulator.openai.chat_rate_limit import ChatRateLimiter
from emulator.openai.queue_routes import QueuedOpenAIRoutes, on_call_failed
from emulator.openai.routes import OpenAIRoutes
from emulator.openai.system_status import RequestStatistics, SystemStatus
from emulator.openai.tokenize_routes import TokenizeRoutes
from emulator.openai.worker_output import CallFailed
from emulator.openapi.routes import DocsRoutes
from emulator.runpod.client_routes import JobRoutes
from emulator.runpod.draining_store import DrainingStore
from emulator.runpod.job_log import log_ended, log_started
from emulator.runpod.job_response import worker_key
from emulator.runpod.local_worker import NAME as LOCAL
from emulator.runpod.local_worker import LocalWorker
from emulator.runpod.webhooks import Webhooks
from emulator.runpod.worker_registry import Fleet
from emulator.runpod.worker_routes import WorkerRoutes
from emulator.server.engine_watch import EngineWatch
from emulator.server.graceful_shutdown import GracefulShutdown, RunningWork
from emulator.settings import IN_MEMORY, EmulatorSettings
from emulator.tracing.setup import Tracing, build_tracing
from engine import AnyEngine, engines_by_model
from engine.errors import EngineError
from handler.composition import build_result_uploader, build_services, build_validation
from handler.errors import ErrorInfo, ErrorMapping, HandlerError
from handler.setting_error import SettingError
from jobs import (
    Job,
    JobStatus,
    JobStore,
    MemoryJobStore,
    SqliteJournal,
    StoreFull,
    StoreUnavailable,
)

logger = logging.getLogger(__name__)

# What scripts of other origins may read beside the body.
_EXPOSED = (
    "x-request-id",
    "retry-after",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
)


def build_app(settings: EmulatorSettings, engine: AnyEngine) -> Starlette:
    """Return the application around an engine, which it starts and closes with itself.

    Raises:
        SettingError: what a setting names cannot be used.
    """
    checking = build_validation(settings)
    metrics = Metrics(checking.validator.issue_rules, checking.validator.notice_rules)
    engine.subscribe(metrics)
    tracing = build_tracing(settings, engine)
    answers = GenerationTracker()
    interval_s = settings.stream_interval_ms / 1000
    doors = build_services(
        settings,
        engine,
        checking,
        interval_s,
        stream_multi_prompt=settings.stream_multi_prompt,
        results=build_result_uploader(
            settings, settings.payload_limits(), settings.outbound_policy()
        ),
        validator=InstrumentedValidator(checking.validator, metrics.count_verdict),
        on_open=answers.add,
    )
    journal = None if settings.job_db == IN_MEMORY else SqliteJournal(Path(settings.job_db))

    def on_ended(job: Job) -> None:
        webhooks.tell(job)
        tracing.job_ended(job)
        if begun:
            log_ended(job)
            metrics.job_ended(job)

    # During recovery, `on_ended` also fires for jobs that ended before the restart.
    begun = False
    store = MemoryJobStore(
        settings.store_limits(), journal, on_ended=on_ended, on_started=log_started
    )
    webhooks = Webhooks(
        store,
        tries=settings.webhook_tries,
        pause_s=settings.webhook_pause_s,
        outbound_policy=settings.outbound_policy(),
    )
    fleet = Fleet(store, lease_s=settings.lease_s, grace_s=settings.worker_grace_s)
    endpoint = settings.endpoint_id
    drain = ShutdownState()
    sent = tracing.wrap_store(store)
    queue = QueuedOpenAIRoutes(sent, doors.openai, drain, settings)
    worker = LocalWorker(
        store,
        doors.jobs,
        engine,
        fleet,
        endpoint,
        settings.stream_mode,
        tracing.enter_job,
        # A limit that was set is meant for jobs as well.
        policy_decides="request_timeout_s" not in settings.model_fields_set,
        max_losses=settings.store_limits().max_losses,
    )
    own_key = secrets.token_urlsafe(32) if settings.keys() else None
    launcher = Autoscaler(
        store,
        fleet,
        endpoint,
        settings.scaling_policy(),
        command=settings.worker_command,
        api_key=next(iter(settings.keys()), None),
        own_key=own_key,
        allows_private_targets=settings.outbound_policy().allows_private,
        local=LOCAL,
    )
    max_body_bytes = int(settings.max_body_mb * 1e6)
    statistics = RequestStatistics()
    engine.subscribe(statistics)
    batches = BatchPlane(settings, doors, engine, metrics.count_batch_line)
    told = [
        *metrics.families,
        *build_polled_metrics(settings, engine, store, fleet, journal, batches.batches),
    ]
    openai = OpenAIRoutes(
        doors.openai,
        _build_rate_limiter(settings.rate_limit_chat),
        SystemStatus(engines_by_model(engine, settings.served_model), statistics, told),
        TokenizeRoutes(doors.models, max_body_bytes),
        max_body_bytes,
        interval_s,
    )
    seen = cast("JobStore", DrainingStore(sent, drain))
    jobs = JobRoutes(seen, fleet, settings)
    workers = WorkerRoutes(seen, fleet, settings, drain)
    health = Health(
        engine, engines_by_model(engine, settings.served_model), journal, drain, batches.set_aside
    )
    console = ConsoleRoutes(
        seen, fleet, engines_by_model(engine, settings.served_model), answers, settings
    )
    local = worker_key(endpoint, LOCAL)

    async def give_back(limit_s: float) -> None:
        await asyncio.gather(worker.drain(limit_s), launcher.drain(limit_s), batches.drain(limit_s))

    def under_way() -> RunningWork:
        return RunningWork(
            jobs=store.count_by_status()[JobStatus.IN_PROGRESS],
            requests=drain.active_requests,
            batches=sum(not each.status.final for each in batches.batches()),
        )

    ending = GracefulShutdown(drain, settings.drain_s, store.wait_until_idle, give_back, under_way)

    def has_other_workers() -> bool:
        return bool(settings.workers) or not settings.local_worker or fleet.has_workers

    watch = EngineWatch(engine, has_other_workers, ending.fail)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        nonlocal begun
        loading: asyncio.Task[None] | None = None
        try:
            engine.spawn()
            # A worker that is neither in this process nor its own may have lived through its end.
            await store.start(lambda key: key != local and not is_managed(key), settings.lease_s)
            begun = True
            await batches.start()
            fleet.start()
            if settings.local_worker:
                worker.start()
            else:
                loading = asyncio.create_task(_load(engine))
            watch.start()
            yield
        finally:
            await watch.close()
            await give_back(0 if drain.deadline_passed.is_set() else settings.drain_s)
            await fleet.close()
            await webhooks.close()
            await queue.close()
            await batches.close()
            if loading is not None:
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)
            await engine.close()
            await store.close()
            await tracing.close()

    routes = [
        health.route(),
        MetricsRoute(told).route(),
        *openai.routes(),
        *batches.routes(),
        *queue.routes(),
        *jobs.routes(),
        *workers.routes(),
        *console.routes(),
    ]
    page = PageRoutes().routes()
    app = Starlette(
        routes=[ByOperation(routes), *routes, *DocsRoutes(routes, settings).routes(), *page],
        middleware=_middleware(settings, drain, store, metrics, tracing, own_key),
        lifespan=lifespan,
        # What is none of these is answered by RequestIds.
        exception_handlers={
            HTTPException: on_http_error,
            HandlerError: on_error,
            EngineError: on_error,
            CallFailed: on_call_failed,
            StoreFull: _on_full,
            NoRoom: on_no_room,
            StoreUnavailable: _on_unavailable,
            ClientDisconnected: _on_gone,
            # Starlette's own, of a client that left in the middle of its body.
            ClientDisconnect: _on_gone,
        },
    )
    app.state.ending = ending
    app.state.listening = launcher.start
    return app


async def _load(engine: AnyEngine) -> None:
    """See to it that a model is loaded that no worker of this process waits for.

    Spawned alone, it would begin to load and be found loading until the first call came.
    """
    try:
        await engine.ready()
    except EngineError as error:
        logger.error("the engine did not start: %s", error)


def _build_rate_limiter(rate: str) -> ChatRateLimiter:
    try:
        return ChatRateLimiter(rate)
    except ValueError as error:
        raise SettingError(
            f'RATE_LIMIT_CHAT: {error}; it is written like "10/minute", and off for none'
        ) from None


def _middleware(
    settings: EmulatorSettings,
    drain: ShutdownState,
    store: JobStore,
    metrics: Metrics,
    tracing: Tracing,
    own_key: str | None,
) -> list[Middleware]:
    """Return what every call passes through, the outermost first."""
    found = [
        Middleware(RequestIdMiddleware, on_end=metrics.count_request),
        # Inside RequestIds, so that refused requests are logged and counted. Before everything
        # else, so that they are neither traced nor rate-limited, and the key is not looked at.
        Middleware(
            OriginCheckMiddleware,
            hosts=settings.host_check(),
            origins=settings.origins(),
            has_keys=bool(settings.keys()),
        ),
        *tracing.middleware(),
        Middleware(DrainGate, shutdown=drain),
    ]
    if origins := settings.origins():
        # Outermost: a browser shows its script no answer without these headers, not even a
        # refusal. What it asks beforehand, without a key, ends here and has no name.
        found.insert(0, _cors(origins))
    if keys := settings.keys():
        opened = settings.open_paths()
        found.append(Middleware(ApiKeyMiddleware, keys=keys, open_paths=opened, worker_key=own_key))
    if settings.runpod_rate_limits:
        # Its package takes 0.1 s to import, and most do without.
        from emulator.middleware.rate_limit import RateLimitMiddleware

        found.append(Middleware(RateLimitMiddleware, default_endpoint=settings.endpoint_id))
    if rates := settings.fault_rates():
        found.append(Middleware(FaultInjectionMiddleware, rates=rates, store=store))
    return found


def _cors(origins: tuple[str, ...]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],
        # Browsers ask for it where a page from elsewhere calls a server at home.
        allow_private_network=True,
        expose_headers=_EXPOSED,
    )


async def _on_full(request: Request, error: Exception) -> Response:
    return error_response(
        ErrorInfo(str(error), ErrorMapping(429, "rate_limit_error", retryable=True))
    )


async def _on_unavailable(request: Request, error: Exception) -> Response:
    return error_response(
        ErrorInfo(str(error), ErrorMapping(503, "service_unavailable_error", retryable=True))
    )


async def _on_gone(request: Request, error: Exception) -> Response:
    # Nobody reads it; 499 is what proxies log for a client that left.
    return Response(status_code=499)
