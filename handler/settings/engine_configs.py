"""Build engines from settings.

Separate from `composition`, so that an engine can load its model while that module is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from engine import AnyEngine, Engine, EngineConfig, EnginePool
from engine.hooks import EngineEvent, HostLoaded
from engine.models.memory import MemoryPlan
from handler.models.model_list import ModelEntry
from handler.settings.memory_plan import build_memory_plan, estimate_entry, has_room_for_all
from handler.settings.shared_settings import Settings

logger = logging.getLogger(__name__)


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
    """Return the configuration of each model by name, the default first; one without MODELS.

    Where the memory plan has no room for all models, each of them may use all the memory.
    """
    are_alone = plan is not None and not has_room_for_all(plan)
    if not settings.models:
        return {settings.served_model: settings.engine_config()}
    domains_by_model = settings.npu_domains()
    configs = {}
    for entry in settings.models:
        domains = domains_by_model.get(entry.served_name, (0,) * entry.copies)
        first, *others = (
            _settings_of_copy(settings, entry, each, are_alone=are_alone).engine_config()
            for each in domains
        )
        copies = tuple(config.backend for config in others)
        configs[entry.served_name] = replace(first, copies=copies)
    return configs


def add_model(settings: Settings, pool: EnginePool, entry: ModelEntry) -> tuple[Settings, Engine]:
    """Add a model to a pool that grows; return the settings with the model, and its engine."""
    grown = settings.with_model(entry)
    [domain] = grown.npu_domains().get(entry.served_name, (0,))
    config = _settings_of_copy(grown, entry, domain, are_alone=True).engine_config()
    return grown, pool.add(entry.served_name, config, estimate_entry(grown, entry))


def _settings_of_copy(
    settings: Settings, entry: ModelEntry, domain: int, *, are_alone: bool
) -> Settings:
    """Return settings with one copy of one model only."""
    overrides = {
        "context_length": entry.context_length,
        "rkllm_tokenizer": entry.tokenizer,
        ("rkllm_vision" if entry.path.suffix == ".rkllm" else "mmproj_path"): entry.mmproj,
    }
    return settings.model_copy(
        update={
            "models": (),
            "model_path": entry.path,
            "model_name": entry.served_name,
            # Each engine reads its own.
            "lora_adapters": entry.lora,
            "rkllm_lora": entry.lora,
            "rkllm_base_domain_id": domain,
            "engine_memory_mb": settings.memory_mb if are_alone else settings.memory_mb_of(entry),
            **{name: value for name, value in overrides.items() if value is not None},
        }
    )


def _log_model_loaded(event: EngineEvent) -> None:
    """Log that a model is loaded, or loaded again after a crash, and how long that took."""
    if not isinstance(event, HostLoaded):
        return
    # Imported here because it imports structlog, and the model should start loading before that.
    from handler.logs.json_lines import FIELDS

    fields = {"load_ms": round(event.after_s * 1000), "restarts": event.restarts}
    suffix = " again" if event.restarts else ""
    logger.info("model loaded%s in %.1f s", suffix, event.after_s, extra={FIELDS: fields})
