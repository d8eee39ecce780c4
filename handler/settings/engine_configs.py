"""Build engines from settings.

Separate from `composition`, so that an engine can load its model while that module is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from common.setting_error import SettingError
from engine import AnyEngine, BackendConfig, Engine, EngineConfig, EnginePool, Timeouts
from engine.backends.options import (
    BackendName,
    BackendOptions,
    LlamaCppOptions,
    OpenAIOptions,
    RkllmOptions,
    ScriptedOptions,
)
from engine.hooks import EngineEvent, HostLoaded
from engine.models.memory import MemoryPlan
from handler.models.model_list import ModelEntry
from handler.models.served_model import ServedModel
from handler.settings.memory_plan import build_memory_plan, estimate_model, has_room_for_all
from handler.settings.shared_settings import DEFAULT_SLOTS, UPSTREAM_SLOTS, Settings

logger = logging.getLogger(__name__)

_LOAD_SHARE = 0.95


def build_engine(settings: Settings, *, grows: bool = False) -> AnyEngine:
    """Return the engine of the one model, or a pool of engines for several.

    One model that is unloaded when it is not used has a pool too, and so has one if models may be
    added later (`grows`). Raises SettingError.
    """
    plan = build_memory_plan(settings, is_needed=grows)
    configs = build_engine_configs(settings, plan)
    engine: AnyEngine
    if len(configs) > 1 or plan is not None:
        engine = EnginePool(configs, memory_plan=plan)
    else:
        engine = Engine(configs[settings.served_model])
    engine.subscribe(_log_model_loaded)
    return engine


def build_engine_configs(
    settings: Settings, plan: MemoryPlan | None = None
) -> Mapping[str, EngineConfig]:
    """Return the configuration of each model by name, the default first.

    Where the memory plan has no room for all models, each of them may use all the memory. Raises
    SettingError if ENGINE is `none`, which only the server can do without.
    """
    if settings.engine == "none":
        raise SettingError(
            "ENGINE=none is for the server alone: a worker, a batch and the doctor need an engine"
        )
    models = settings.model_list
    are_alone = len(models) == 1 and models[0].copies == 1
    are_alone |= plan is not None and not has_room_for_all(plan)
    return {model.name: _build_config(settings, model, are_alone=are_alone) for model in models}


def build_engine_config(settings: Settings) -> EngineConfig:
    """Return the configuration of the engine for the one model, or for the default."""
    return build_engine_configs(settings)[settings.served_model]


def add_model(settings: Settings, pool: EnginePool, entry: ModelEntry) -> tuple[Settings, Engine]:
    """Add a model to a pool that grows; return the settings with the model, and its engine."""
    grown = settings.with_model(entry)
    model = grown.model_list[-1]
    config = _build_config(grown, model, are_alone=True)
    return grown, pool.add(model.name, config, estimate_model(grown, model))


def _build_config(settings: Settings, model: ServedModel, *, are_alone: bool) -> EngineConfig:
    memory_mb = settings.memory_mb if are_alone else settings.memory_mb_of(model)
    domains = settings.npu_domains().get(model.name, (0,) * model.copies)
    first, *copies = (
        BackendConfig(build_backend_options(settings, model, domain, number), memory_mb)
        for number, domain in enumerate(domains, 1)
    )
    return EngineConfig(
        backend=first,
        copies=tuple(copies),
        isolation=settings.engine_isolation,
        slots=_slots(settings, model.backend),
        max_queue=settings.max_queue,
        timeouts=Timeouts(
            prefill_timeout_s=settings.prefill_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
            abort_grace_s=settings.abort_grace_s,
            request_timeout_s=settings.request_timeout_s,
            load_timeout_s=settings.load_timeout_s,
            neighbour_grace_s=settings.engine_drain_s,
            down_limit_s=settings.engine_down_exit_s,
        ),
    )


def build_backend_options(
    settings: Settings, model: ServedModel, domain: int, copy: int = 1
) -> BackendOptions:
    """Return the options of the backend for one copy of a model, in a memory domain of the NPU.

    `copy` is its number, from 1.
    """
    if model.backend == "scripted":
        return ScriptedOptions(model_path=_text(model.path), model_name=model.name)
    if model.backend == "openai":
        return OpenAIOptions(
            model_name=model.name,
            model_id=_text(model.path) or model.name,
            urls=tuple(settings.upstream_urls),
            key=settings.upstream_secret,
            context_length=model.context_length,
            slots=_slots(settings, model.backend),
            # The engine itself gives up a moment later.
            load_timeout_s=settings.load_timeout_s * _LOAD_SHARE,
        )
    if model.backend == "rkllm":
        options = _rkllm_options(settings, model, domain, copy)
        return replace(options, kv_reuse=False, n_batch=1) if settings.deterministic else options
    return LlamaCppOptions(
        model_path=_text(model.path) or "",
        model_name=model.name,
        context_length=model.context_length,
        slots=settings.max_concurrency or DEFAULT_SLOTS,
        threads=settings.threads,
        deterministic=settings.deterministic,
        draft_path=_text(model.draft),
        mmproj_path=_text(model.projector),
        adapters=tuple(model.adapters),
    )


def _rkllm_options(settings: Settings, model: ServedModel, domain: int, copy: int) -> RkllmOptions:
    return RkllmOptions(
        model_path=_text(model.path) or "",
        model_name=model.name,
        context_length=model.context_length,
        lib_path=_text(model.library),
        abi=settings.rkllm_abi,
        sampling=settings.rkllm_sampling,
        tokenizer=_text(model.tokenizer),
        cpu_mask=settings.rkllm_cpu_mask,
        base_domain_id=domain,
        pooling=settings.rkllm_pooling,
        mode=settings.rkllm_mode,
        kv_reuse=settings.rkllm_kv_reuse,
        n_batch=settings.rkllm_n_batch,
        profile=_text(settings.rkllm_profile),
        record=_text(settings.rkllm_record),
        record_text=settings.rkllm_record_text,
        record_process=f"copy {copy}",
        device_lock=settings.rkllm_device_lock,
        encoder_lock=any(each.has_vision_encoder for each in settings.model_list),
        vision=_text(model.projector),
        vision_size=settings.rkllm_vision_size,
        vision_cores=settings.rkllm_vision_cores,
        vision_tokens=settings.rkllm_vision_tokens,
        adapters=tuple(model.adapters),
    )


def _slots(settings: Settings, backend: BackendName) -> int:
    if settings.deterministic:
        return 1
    if backend == "rkllm":
        return settings.rkllm_n_batch
    default = UPSTREAM_SLOTS if backend == "openai" else DEFAULT_SLOTS
    return settings.max_concurrency or default


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _log_model_loaded(event: EngineEvent) -> None:
    """Log that a model is loaded, or loaded again after a crash, and how long that took."""
    if not isinstance(event, HostLoaded):
        return
    # Imported here because it imports structlog, and the model should start loading before that.
    from handler.logs.json_lines import FIELDS

    fields = {"load_ms": round(event.after_s * 1000), "restarts": event.restarts}
    suffix = " again" if event.restarts else ""
    logger.info("model loaded%s in %.1f s", suffix, event.after_s, extra={FIELDS: fields})
