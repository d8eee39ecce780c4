"""The parts of a server that need an engine. A server for a user's handler has no engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common.setting_error import SettingError
from emulator.apis.messages.routes import MessagesRoutes
from emulator.apis.ollama.routes import OllamaRoutes
from emulator.apis.openai.chat_rate_limit import ChatRateLimiter
from emulator.apis.openai.routes import OpenAIRoutes
from emulator.apis.openai.system_status import RequestStatistics, SystemStatus
from emulator.apis.openai.tokenize_routes import TokenizeRoutes
from emulator.apis.responses.background import BackgroundResponses
from emulator.apis.responses.routes import ResponsesRoutes
from emulator.batches.service import BatchService
from emulator.console.generation_tracker import GenerationTracker
from emulator.http.call_answers import CallAnswers
from emulator.http.route_facts import ApiRoute
from emulator.metrics.definitions import Metrics
from emulator.metrics.gauges import build_engine_metrics, build_npu_metrics
from emulator.metrics.instruments import Metric
from emulator.metrics.validator import InstrumentedValidator
from emulator.runpod.local_worker import LocalWorker
from emulator.runpod.worker_registry import WorkerRegistry
from emulator.server.engine_watch import EngineWatch
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.tracing.setup import Tracing
from engine import AnyEngine, Engine, EnginePool, engines_by_model
from engine.errors import EngineError
from handler.apis.ollama.pull import ModelPuller
from handler.composition import (
    Services,
    ValidationSetup,
    build_result_uploader,
    build_services,
)
from handler.models.model_file import ModelSource
from handler.models.model_list import ModelEntry, model_name_from_path
from handler.models.registry import ModelRegistry
from handler.settings.engine_configs import add_model
from handler.settings.shared_settings import Settings
from jobs import JobStore

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class EngineComponents:
    """The engine, the services that answer with it, and what they need; owned by the event loop."""

    settings: EmulatorSettings
    engine: AnyEngine
    # The engines by model name.
    engines: Mapping[str, Engine]
    services: Services
    local_worker: LocalWorker
    batches: BatchService
    watch: EngineWatch
    # The routes of all APIs.
    routes: Sequence[ApiRoute]
    puller: ModelPuller
    _load_task: asyncio.Task[None] | None = None

    def spawn(self) -> None:
        """Start the engine, which loads its model while the other parts start."""
        self.engine.spawn()

    async def start(self) -> None:
        """Start batches and the local worker; the store must have started."""
        await self.batches.start()
        if self.settings.local_worker:
            self.local_worker.start()
        else:
            self._load_task = asyncio.create_task(_load_model(self.engine))
        self.watch.start()
        self.puller.start()

    async def drain(self, limit_s: float) -> None:
        """Stop taking work, and give running jobs and batches `limit_s` to finish.

        Jobs that still run then return to the queue.
        """
        await asyncio.gather(self.local_worker.drain(limit_s), self.batches.drain(limit_s))

    async def close(self) -> None:
        """Close batches, downloads and engine; the watch must be closed."""
        await self.puller.close()
        await self.batches.close()
        if self._load_task is not None:
            self._load_task.cancel()
            await asyncio.gather(self._load_task, return_exceptions=True)
        await self.engine.close()


def build_engine_components(
    settings: EmulatorSettings,
    engine: AnyEngine,
    validation: ValidationSetup,
    *,
    store: JobStore,
    worker_registry: WorkerRegistry,
    metrics: Metrics,
    tracker: GenerationTracker,
    tracing: Tracing,
    exported_metrics: list[Metric],
    shut_down: Callable[[str], None],
) -> EngineComponents:
    """Return the parts around an engine, and add its metrics to `exported_metrics`.

    `shut_down` is called with a reason when the engine is dead and no other worker is there.

    Raises:
        SettingError: a setting cannot be used.
    """
    engine.subscribe(metrics)
    services = build_services(
        settings,
        engine,
        validation,
        settings.stream_interval_ms / 1000,
        results=build_result_uploader(
            settings, settings.payload_limits(), settings.outbound_policy()
        ),
        validator=InstrumentedValidator(validation.validator, metrics.count_verdict),
        on_open=tracker.add,
        names=settings.name_map(),
    )
    _check_name_map(settings, services.models)
    statistics = RequestStatistics()
    engine.subscribe(statistics)
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
    batches = BatchService(settings, services, engine, metrics.count_batch_line)
    exported_metrics += build_engine_metrics(settings, engine, batches.batches)
    if "rkllm" in settings.backends:
        exported_metrics += build_npu_metrics()
    background = BackgroundResponses(
        store, services.calls.responses, settings.endpoint_id, settings.policy_limits().default
    )
    services.calls.responses.add_source(background)
    engines = engines_by_model(engine, settings.served_model)
    puller = _build_puller(settings, engine, services)
    max_body_bytes = int(settings.max_body_mb * 1e6)
    answers = CallAnswers(
        max_body_bytes, settings.stream_interval_ms / 1000, settings.stream_comments_after_s
    )
    return EngineComponents(
        settings=settings,
        engine=engine,
        engines=engines,
        services=services,
        local_worker=local_worker,
        batches=batches,
        watch=EngineWatch(
            engine,
            partial(_has_other_workers, settings, worker_registry),
            shut_down,
            stays=not settings.engine_dead_exit,
        ),
        routes=[
            *OpenAIRoutes(
                services.openai,
                _build_chat_rate_limiter(settings.rate_limit_chat),
                SystemStatus(engines, statistics, exported_metrics),
                TokenizeRoutes(services.models, max_body_bytes),
                answers,
            ).routes(),
            *ResponsesRoutes(services.calls.responses, background, answers).routes(),
            *MessagesRoutes(services.calls.messages, answers).routes(),
            *OllamaRoutes(services.calls.ollama, puller, answers).routes(),
        ],
        puller=puller,
    )


def _build_puller(
    settings: EmulatorSettings,
    engine: AnyEngine,
    services: Services,
) -> ModelPuller:
    """Return the puller, which adds models to the engine if MODEL_PULL is on."""
    current: Settings = settings

    def add(path: Path, requested_name: str) -> None:
        nonlocal current
        if (served := services.files.find_name(path)) is not None:
            services.models.add_alias(served, requested_name)
            return
        assert isinstance(engine, EnginePool)  # noqa: S101 - MODEL_PULL makes it one
        own_name = model_name_from_path(path)
        names = [own_name, requested_name] if own_name not in services.models.names else []
        entry = ModelEntry(path=path, name=",".join(names or [requested_name]))
        current, added = add_model(current, engine, entry)
        services.models.add(services.build_pipeline(added, entry.served_names))
        services.files.add(entry.served_name, ModelSource(path, current.context_length))

    return ModelPuller(
        lambda name: services.models.find_name(name) is not None,
        add if settings.model_pull else None,
    )


def _check_name_map(settings: EmulatorSettings, models: ModelRegistry) -> None:
    for model in settings.name_map().models:
        if model not in models.names:
            raise SettingError(
                f"MODEL_NAME_MAP: there is no model {model}, there is: {', '.join(models.names)}"
            )


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
