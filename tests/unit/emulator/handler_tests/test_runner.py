"""Running tests in order: results, timeouts, and workers that do not start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from emulator.handler_tests.local_server import HandlerNotStarted
from emulator.handler_tests.runner import HandlerTestResult, HandlerTestRunner
from emulator.tests_file.reader import HandlerTest
from tests.unit.emulator.handler_tests.fake_api import FakeJobApi


class FakeWorker:
    """A worker whose `failures` have one entry for each test: an error, or None if it starts."""

    def __init__(self, failures: Sequence[HandlerNotStarted | None] = ()) -> None:
        self._failures = list(failures)
        self.restarts = 0
        self.lines = ["start line"]

    async def wait_until_ready(self) -> None:
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure

    def restart_worker(self) -> None:
        self.restarts += 1

    def take_output(self) -> Sequence[str]:
        lines, self.lines = self.lines, ["a line"]
        return lines


def answer(job_input: Any) -> list[Mapping[str, Any]]:
    end: Mapping[str, Any] = job_input["end"]
    return [{"status": "IN_QUEUE"}, end]


def build_test(name: str, *, timeout_ms: int | None = None, **end: Any) -> HandlerTest:
    return HandlerTest(name=name, input={"end": end}, timeout_ms=timeout_ms, expected_output=1)


async def run(
    tests: Sequence[HandlerTest], worker: FakeWorker, api: FakeJobApi, timeout_ms: int = 60_000
) -> list[HandlerTestResult]:
    runner = HandlerTestRunner(
        api.client("e"), worker, default_timeout_ms=timeout_ms, take_output=worker.take_output
    )
    return [result async for result in runner.run(tests)]


async def test_results_are_in_order_with_their_reasons() -> None:
    error = json.dumps({"error_message": "no", "error_traceback": "Traceback: no"})
    tests = [
        build_test("passes", status="COMPLETED", output=1, executionTime=1500),
        build_test("differs", status="COMPLETED", output=2),
        build_test("fails", status="FAILED", error=error),
    ]
    api, worker = FakeJobApi(answer), FakeWorker()
    passed, differs, failed = await run(tests, worker, api)
    assert (passed.has_passed, passed.duration_s, passed.status) == (True, 1.5, "COMPLETED")
    assert (differs.failure, differs.diff[-2:]) == ("the output differs", ["-1", "+2"])
    assert differs.output_lines == ["a line"]
    assert (failed.failure, failed.error) == (
        "the status is FAILED, expected COMPLETED",
        "Traceback: no",
    )
    assert [body["input"] for body in api.bodies] == [test.input for test in tests]
    assert worker.restarts == 0


async def test_job_that_takes_too_long_is_cancelled_and_its_worker_replaced() -> None:
    tests = [
        build_test("slow", timeout_ms=1, status="IN_PROGRESS"),
        build_test("slow by default", status="IN_PROGRESS"),
        build_test("next", timeout_ms=60_000, status="COMPLETED", output=1),
    ]
    api, worker = FakeJobApi(answer), FakeWorker()
    slow, by_default, following = await run(tests, worker, api, timeout_ms=2)
    assert slow.failure == "the job did not end within 1 ms (timeout) and was cancelled"
    assert by_default.failure == "the job did not end within 2 ms (timeout) and was cancelled"
    assert (slow.status, slow.output_lines) == ("CANCELLED", ["a line"])
    assert following.has_passed
    assert worker.restarts == 2
    assert [path for path in api.paths if "cancel" in path] == [
        "POST /v2/e/cancel/job-1",
        "POST /v2/e/cancel/job-2",
    ]


async def test_worker_that_does_not_start_fails_all_remaining_tests() -> None:
    end: dict[str, Any] = {"status": "COMPLETED", "output": 1}
    worker = FakeWorker([None, HandlerNotStarted("it broke", "line 1\nline 2")])
    api = FakeJobApi(answer)
    tests = [build_test(name, **end) for name in "abc"]
    first, second, third = await run(tests, worker, api)
    assert first.has_passed
    for result in (second, third):
        assert (result.failure, result.status, result.is_start_failure) == ("it broke", None, True)
        assert result.output_lines == ["line 1", "line 2"]
    assert len(api.bodies) == 1


async def test_request_that_the_server_refuses_fails_only_its_test() -> None:
    api, worker = FakeJobApi(answer), FakeWorker()
    api.refusals = 1
    tests = [build_test(name, status="COMPLETED", output=1) for name in "ab"]
    first, second = await run(tests, worker, api)
    assert first.failure == "POST /v2/e/run was refused with status 429: try later"
    assert (first.status, second.has_passed) == (None, True)
