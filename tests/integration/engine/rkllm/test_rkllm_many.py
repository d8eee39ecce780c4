"""The short form of tests/long/test_rkllm_thousand.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import EngineFactory
from tests.integration.engine.rkllm.many import CLOCKS, SCRIPT, backend, serve_many


@pytest.mark.parametrize("cut_off", [0, 0.2])
async def test_concurrent_answers_are_complete_and_separate(
    engine_factory: EngineFactory,
    model: Callable[[str], Path],
    library: Path,
    isolation: str,
    fast_restarts: None,
    cut_off: float,
) -> None:
    # R4, R8, R11, R31
    faulty = 0.06 if cut_off and isolation == "process" else 0
    engine = engine_factory(backend(model(SCRIPT), library), isolation=isolation, **CLOCKS)
    await serve_many(engine, 60, seed=random.randrange(2**32), cut_off=cut_off, faulty=faulty)
    if not faulty:
        assert engine.restarts == 0
