"""The fake librkllmrt.so, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_rkllm import build


@pytest.fixture(scope="session")
def fake_library(fake_rkllm_folder: Path) -> Callable[[str], Path]:
    """Return a function that builds the fake library of a version."""
    return lambda abi: build(abi, fake_rkllm_folder)
