"""What the engine of each model is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine import EngineConfig
from handler.model_list import ModelEntry
from handler.settings import Settings


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
            **{name: value for name, value in own.items() if value is not None},
        }
    )
