"""Run every page of the documentation with the default model, including the long commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.page_checks import long_pages, run_page
from tests.acceptance.page_runner import LONG_LIMIT_S


@pytest.mark.timeout(2 * LONG_LIMIT_S)
@pytest.mark.parametrize("page", long_pages())
def test_page_runs_as_written(page: str, tmp_path: Path, default_model_path: Path) -> None:
    run_page(page, tmp_path, long=True)
