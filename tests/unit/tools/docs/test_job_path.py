"""The functions of one job, as the page about the architecture lists them."""

from __future__ import annotations

import sys
from types import CodeType

import pytest

from tools.docs.job_path import PAGE, page, trace_job

# A reader follows a job through at most this many functions.
MAX_FUNCTIONS = 45


@pytest.fixture
async def traced() -> list[CodeType]:
    return await trace_job()


async def test_page_lists_the_functions_of_a_job(traced: list[CodeType]) -> None:
    text = PAGE.read_text()
    assert page(text, traced) == text, "write it: python -m tools.docs.job_path"


async def test_job_runs_few_functions_of_the_handler(traced: list[CodeType]) -> None:
    assert {"handler", "run_encoded", "encode_answer"} <= {code.co_name for code in traced}
    assert len(traced) <= MAX_FUNCTIONS


async def test_trace_leaves_no_profiler_behind(traced: list[CodeType]) -> None:
    assert sys.getprofile() is None
