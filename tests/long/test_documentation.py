"""Every page of the documentation with the model that a newcomer has, long commands included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.reader import LONG_LIMIT_S
from tests.acceptance.reading import long_pages, read_page


@pytest.mark.timeout(2 * LONG_LIMIT_S)
@pytest.mark.parametrize("page", long_pages())
def test_a_page_does_what_it_says(page: str, tmp_path: Path, model_path: Path) -> None:
    read_page(page, tmp_path, long=True)
