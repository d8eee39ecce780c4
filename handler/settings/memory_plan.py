"""Plan which models are loaded at the start, and how much memory all of them may take."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from common.setting_error import SettingError
from engine.hosts.memory_limit import DEFAULT_SHARE, available_bytes
from engine.models.memory import MemoryPlan
from handler.models.memory_need import estimate_bytes
from handler.models.served_model import ServedModel
from handler.settings.shared_settings import DEFAULT_SLOTS, Settings

logger = logging.getLogger(__name__)

_MB = 2**20
# The budget on a machine that does not report its memory: all models fit.
_UNKNOWN_BYTES = 2**60


def build_memory_plan(settings: Settings, *, is_needed: bool = False) -> MemoryPlan | None:
    """Return the plan; None for a single model that always stays loaded, unless it `is_needed`.

    Raises:
        SettingError: PRELOAD_MODELS has an unknown name, or models that do not fit together; or a
            plan is needed for a model on a thread.
    """
    if settings.engine_isolation == "thread":
        if is_needed:
            raise SettingError(
                "MODEL_PULL needs ENGINE_ISOLATION=process: a thread keeps its model"
            )
        return None
    if len(settings.model_list) < 2 and settings.keep_alive_s == math.inf and not is_needed:
        return None
    need_bytes = _find_needs(settings)
    budget_bytes = _find_budget(settings)
    return MemoryPlan(
        budget_bytes=budget_bytes,
        need_bytes=need_bytes,
        preloaded=_choose_preloaded(settings, need_bytes, budget_bytes),
        keep_alive_s=settings.keep_alive_s,
    )


def has_room_for_all(plan: MemoryPlan) -> bool:
    """Return whether all models may be loaded at the same time."""
    return sum(plan.need_bytes.values()) <= plan.budget_bytes


def _find_budget(settings: Settings) -> int:
    if settings.model_memory_mb is not None:
        return settings.model_memory_mb * _MB
    total = available_bytes()
    return _UNKNOWN_BYTES if total is None else int(total * DEFAULT_SHARE)


def _find_needs(settings: Settings) -> Mapping[str, int]:
    return {model.name: estimate_model(settings, model) for model in settings.model_list}


def estimate_model(settings: Settings, model: ServedModel) -> int:
    """Return the memory that all copies of a model take."""
    if model.memory_mb is not None:
        return model.copies * model.memory_mb * _MB
    if model.path is None:
        return 0
    slots = 1 if settings.deterministic else settings.max_concurrency or DEFAULT_SLOTS
    tokens = model.context_length * slots
    return model.copies * estimate_bytes(model.path, tokens, model.projector)


def _choose_preloaded(
    settings: Settings, need_bytes: Mapping[str, int], budget_bytes: int
) -> Sequence[str]:
    names = [each.strip() for each in settings.preload_models.split(",") if each.strip()]
    for name in names:
        if name not in need_bytes:
            raise SettingError(
                f"PRELOAD_MODELS: there is no model {name}, there is: {', '.join(need_bytes)}"
            )
    if names:
        total_mb = sum(need_bytes[name] for name in names) // _MB
        if len(names) > 1 and total_mb * _MB > budget_bytes:
            raise SettingError(
                f"PRELOAD_MODELS: these models take {total_mb} MB together, and "
                f"{budget_bytes // _MB} MB are allowed (MODEL_MEMORY_MB)"
            )
        return names
    chosen: list[str] = []
    for name, need in need_bytes.items():
        # The first one is loaded in any case.
        if not chosen or sum(need_bytes[each] for each in chosen) + need <= budget_bytes:
            chosen.append(name)
    return chosen
