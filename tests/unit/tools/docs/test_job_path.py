"""The functions of one job, as the page about the architecture lists them."""

from __future__ import annotations

import sys
from types import CodeType

import pytest

from tools.docs.job_path import PAGE, PATH, build_tables, page, trace_job

# A job calls at most this many functions in other modules.
MAX_FUNCTIONS = 45


@pytest.fixture
async def traced() -> list[CodeType]:
    return await trace_job()


async def test_page_lists_the_functions_of_a_job(traced: list[CodeType]) -> None:
    text = PAGE.read_text()
    assert page(text, traced) == text, "write it: python -m tools.docs.job_path"


async def test_path_has_ten_functions_and_the_others_have_their_own_table(
    traced: list[CodeType],
) -> None:
    lines = list(build_tables(traced))
    end = lines.index("")
    assert [line.split("`")[3] for line in lines[2:end]] == list(PATH)
    assert len(PATH) == 10
    others = "\n".join(lines[end:])
    assert "`log_prompt`" in others
    assert not [name for name in PATH if f"`{name}`" in others]


async def test_function_that_no_job_calls_any_more_is_named(
    traced: list[CodeType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.docs.job_path.PATH", (*PATH, "Pipeline.walk"))
    with pytest.raises(ValueError, match=r"^a job does not call Pipeline\.walk: change PATH$"):
        list(build_tables(traced))


async def test_job_runs_few_functions_of_the_handler(traced: list[CodeType]) -> None:
    assert {"handler", "run_encoded", "encode_answer"} <= {code.co_name for code in traced}
    assert len(traced) <= MAX_FUNCTIONS


async def test_trace_leaves_no_profiler_behind(traced: list[CodeType]) -> None:
    assert sys.getprofile() is None
