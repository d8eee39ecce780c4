"""The short form of tests/long/test_rkllm_thousand.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import EngineFactory
from tests.integration.engine.rkllm.many import SCRIPT, TIMEOUTS, backend, check_requests


@pytest.mark.parametrize("abort_share", [0, pytest.param(0.2, marks=pytest.mark.long)])
async def test_concurrent_answers_are_complete_and_separate(
    engine_factory: EngineFactory,
    model: Callable[[str], Path],
    library: Path,
    isolation: str,
    fast_restarts: None,
    abort_share: float,
) -> None:
    # R4, R8, R11, R31
    fault_share = 0.06 if abort_share and isolation == "process" else 0
    engine = engine_factory(backend(model(SCRIPT), library), isolation=isolation, **TIMEOUTS)
    await check_requests(
        engine, 60, seed=random.randrange(2**32), abort_share=abort_share, fault_share=fault_share
    )
    if not fault_share:
        assert engine.restarts == 0
