"""The stand-in for librkllmrt.so, compiled once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_rkllm import build


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds the stand-in for a version."""
    folder = tmp_path_factory.mktemp("fake_rkllm_unit")
    return lambda abi, **defines: build(abi, folder, **defines)
