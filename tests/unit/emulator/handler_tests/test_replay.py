"""Replay a stored job."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.handler_tests.job_client import JobRequestFailed
from emulator.handler_tests.replay import replay_job
from tests.unit.emulator.handler_tests.fake_api import FakeJobApi


async def replay(kept: dict[str, Any], **end: Any) -> tuple[bool, list[str]]:
    api = FakeJobApi(lambda job_input: [end])
    api.kept["old"] = kept
    has_completed, text = await replay_job(api.client(), "old", 60)
    assert [body["input"] for body in api.bodies] == [kept["input"]]
    return has_completed, text.split("\n")


async def test_same_output_is_reported() -> None:
    kept = {"input": {"x": 1}, "status": "COMPLETED", "output": {"a": 1}}
    end = {"status": "COMPLETED", "output": {"a": 1}, "executionTime": 1234}
    assert await replay(kept, **end) == (
        True,
        [
            "job job-1: COMPLETED in 1.23 s",
            "{",
            '  "a": 1',
            "}",
            "the output is the same as the kept one",
        ],
    )


async def test_other_output_is_a_diff() -> None:
    kept = {"input": {"x": 1}, "status": "COMPLETED", "output": 1}
    has_passed, lines = await replay(kept, status="COMPLETED", output=2)
    assert not has_passed
    assert "the output differs from the kept one:" in lines
    assert lines[-2:] == ["-1", "+2"]


async def test_failed_replay_has_the_error_and_the_kept_status() -> None:
    kept = {"input": {"x": 1}, "status": "COMPLETED", "output": 1}
    has_completed, lines = await replay(kept, status="FAILED", error="bad \x1b")
    assert not has_completed
    assert lines == ["job job-1: FAILED", "bad \\x1b", "the kept job is COMPLETED"]


async def test_job_that_failed_before_passes_when_it_completes() -> None:
    kept = {"input": {"x": 1}, "status": "FAILED", "error": "no"}
    has_passed, lines = await replay(kept, status="COMPLETED", output=1)
    assert has_passed
    assert lines[-1] == "the kept job is FAILED"


async def test_job_that_is_not_kept_is_refused() -> None:
    with pytest.raises(JobRequestFailed, match="there is no job unknown"):
        await replay_job(FakeJobApi().client(), "unknown", 60)


async def test_job_that_takes_too_long_is_cancelled() -> None:
    api = FakeJobApi(lambda job_input: [{"status": "IN_PROGRESS"}])
    api.kept["old"] = {"input": {}, "status": "COMPLETED"}
    with pytest.raises(JobRequestFailed, match=r"did not end within 0\.001 s and was cancelled"):
        await replay_job(api.client(), "old", 0.001)
    assert api.paths[-1] == "POST /cancel/job-1"
