from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from common.setting_error import SettingError
from engine.models.memory import MemoryPlan
from handler.models.default_model import DEFAULT_MODEL_PATH
from handler.models.memory_need import estimate_bytes
from handler.models.model_list import ModelEntry
from handler.settings import memory_plan
from handler.settings.engine_configs import build_engine_configs
from handler.settings.memory_plan import build_memory_plan, has_room_for_all
from handler.settings.shared_settings import Settings

MB = 2**20


def plan_of(*sizes_mb: int, **settings: Any) -> MemoryPlan:
    """Return the plan of models a, b, … of these sizes."""
    entries = tuple(
        ModelEntry(path=Path(f"{name}.gguf"), memory_mb=size)
        for name, size in zip("abc", sizes_mb, strict=False)
    )
    plan = build_memory_plan(Settings(models=entries, **settings))
    assert plan is not None
    return plan


def test_single_model_has_no_plan_unless_it_is_unloaded() -> None:
    assert build_memory_plan(Settings(model_path=DEFAULT_MODEL_PATH)) is None
    plan = build_memory_plan(Settings(model_path=DEFAULT_MODEL_PATH, keep_alive="5m"))
    assert plan is not None
    assert (len(plan.need_bytes), plan.keep_alive_s) == (1, 300)


def test_models_on_threads_have_no_plan() -> None:
    entries = (ModelEntry(path=Path("a.gguf")),)
    settings = Settings(models=entries, engine_isolation="thread")
    assert build_memory_plan(settings) is None
    with pytest.raises(SettingError, match="MODEL_PULL needs ENGINE_ISOLATION=process"):
        build_memory_plan(settings, is_needed=True)


def test_all_models_that_fit_are_loaded_at_the_start() -> None:
    plan = plan_of(10, 20, 30, model_memory_mb=60)
    assert has_room_for_all(plan)
    assert plan.preloaded == ["a", "b", "c"]
    assert plan.keep_alive_s == math.inf


def test_first_models_that_fit_are_loaded_at_the_start() -> None:
    plan = plan_of(10, 30, 20, model_memory_mb=35)
    assert not has_room_for_all(plan)
    assert plan.preloaded == ["a", "c"]
    assert plan.budget_bytes == 35 * MB


def test_first_model_is_loaded_even_if_it_is_too_large() -> None:
    assert plan_of(50, 10, model_memory_mb=35).preloaded == ["a"]


def test_preload_models_names_the_models_of_the_start() -> None:
    assert plan_of(10, 30, 20, model_memory_mb=35, preload_models="b").preloaded == ["b"]
    assert plan_of(10, 20, preload_models="b, a").preloaded == ["b", "a"]


@pytest.mark.parametrize(
    ("names", "message"),
    [("x", "there is no model x, there is: a, b"), ("a,b", "take 40 MB together, and 35 MB")],
)
def test_preload_models_must_be_known_and_fit(names: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        plan_of(10, 30, model_memory_mb=35, preload_models=names)


def test_copies_count_several_times() -> None:
    entries = (ModelEntry(path=Path("a.gguf"), memory_mb=10, copies=3),)
    plan = build_memory_plan(Settings(models=(*entries, ModelEntry(path=Path("b.gguf")))))
    assert plan is not None
    assert plan.need_bytes["a"] == 30 * MB


def test_budget_is_a_share_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "available_bytes", lambda: 1000 * MB)
    assert plan_of(10, 20).budget_bytes == 800 * MB
    monkeypatch.setattr(memory_plan, "available_bytes", lambda: None)
    assert plan_of(10**6, 10**6).preloaded == ["a", "b"]


def test_models_that_take_turns_may_use_all_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = tuple(
        ModelEntry(path=DEFAULT_MODEL_PATH, name=name, memory_mb=30) for name in ("a", "b", "c")
    )
    settings = Settings(models=entries, model_memory_mb=40)
    taking_turns = build_engine_configs(settings, build_memory_plan(settings))
    together = build_engine_configs(settings)
    assert taking_turns["a"].backend.memory_mb == settings.memory_mb
    assert together["a"].backend.memory_mb < settings.memory_mb


def test_estimate_covers_what_was_measured() -> None:
    # The resident memory of the engine's process with the default model, in kB, by its tokens.
    for tokens, measured_kb in ((4096 * 4, 547_440), (512, 189_212), (2048 * 2, 270_496)):
        estimate = estimate_bytes(DEFAULT_MODEL_PATH, tokens)
        assert measured_kb * 1024 <= estimate <= 1.3 * measured_kb * 1024


def test_estimate_of_other_files_is_their_size(tmp_path: Path) -> None:
    path = tmp_path / "a.rkllm"
    path.write_bytes(b"x" * MB)
    assert estimate_bytes(path, 4096) - estimate_bytes(tmp_path / "b.rkllm", 1) == pytest.approx(
        MB * 1.05, abs=1
    )
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    assert estimate_bytes(tmp_path / "broken.gguf", 1) == estimate_bytes(tmp_path / "none.gguf", 1)
