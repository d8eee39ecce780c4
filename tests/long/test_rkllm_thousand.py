"""A thousand sequential requests on the fake librkllmrt.so: each answer has exactly its own tokens.

Other servers lose the last token of an answer and send it to the next user (rkllm.md §4).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import EngineFactory
from tests.fake_rkllm import build, write_script
from tests.integration.engine.rkllm.many import SCRIPT, TIMEOUTS, backend, check_requests

COUNT = 1000


@pytest.mark.parametrize("abi", ["1.2", "1.3"])
@pytest.mark.parametrize(
    ("isolation", "abort_share", "fault_share"),
    [("process", 0, 0), ("thread", 0, 0), ("process", 0.2, 0.02), ("thread", 0.2, 0)],
)
async def test_a_thousand_requests(
    engine_factory: EngineFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    abi: str,
    isolation: str,
    abort_share: float,
    fault_share: float,
) -> None:
    # R4, R8, R11, R30, R31
    monkeypatch.setattr("engine.hosts.losses.restart_policy.FIRST_BACKOFF_S", 0.01)
    model = write_script(tmp_path / "model.rkllm", SCRIPT)
    engine = engine_factory(backend(model, build(abi, tmp_path)), isolation=isolation, **TIMEOUTS)
    seed = random.randrange(2**32)
    await check_requests(engine, COUNT, seed=seed, abort_share=abort_share, fault_share=fault_share)
    assert fault_share or engine.restarts == 0
