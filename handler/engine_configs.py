"""The engines that the settings ask for.

Apart from the rest of the assembly, so that an engine can load while that is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine import AnyEngine, Engine, EngineConfig, EnginePool
from handler.load_log import log_loaded
from handler.model_list import ModelEntry
from handler.settings import Settings


def build_engine(settings: Settings) -> AnyEngine:
    """Return the engine of the one model, or a pool of engines for several."""
    configs = engine_configs(settings)
    engine: AnyEngine = (
        EnginePool(configs) if len(configs) > 1 else Engine(configs[settings.served_model])
    )
    engine.subscribe(log_loaded)
    return engine


def engine_configs(settings: Settings) -> Mapping[str, EngineConfig]:
    """Return them by the models' names, the default's first; one where there is no MODELS."""
    if not settings.models:
        return {settings.served_model: settings.engine_config()}
    on_npu = settings.npu_domains()
    configs = {}
    for entry in settings.models:
        domains = on_npu.get(entry.served_name, (0,) * entry.copies)
        first, *others = (_of(settings, entry, each).engine_config() for each in domains)
        copies = tuple(config.backend for config in others)
        configs[entry.served_name] = replace(first, copies=copies)
    return configs


def _of(settings: Settings, entry: ModelEntry, domain: int) -> Settings:
    """Return the settings of one copy, as they would be if it were alone."""
    own = {"context_length": entry.context_length, "rkllm_tokenizer": entry.tokenizer}
    return settings.model_copy(
        update={
            "models": (),
            "model_path": entry.path,
            "model_name": entry.served_name,
            "rkllm_base_domain_id": domain,
            "engine_memory_mb": settings.memory_mb_of(entry),
            **{name: value for name, value in own.items() if value is not None},
        }
    )
