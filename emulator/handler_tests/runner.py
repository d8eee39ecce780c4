"""Run the tests of a handler one after the other, as jobs of a server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from emulator.handler_tests.expectation import find_mismatch
from emulator.handler_tests.job_client import JobClient, JobRequestFailed
from emulator.handler_tests.job_error import format_job_error
from emulator.handler_tests.local_server import HandlerNotStarted
from emulator.tests_file.reader import HandlerTest


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerTestResult:
    """How one test has ended.

    `duration_s` is the time that the job ran on the worker, or until it was cancelled.
    `status` is the job's; None if there was no job. `failure` is a sentence, None if the test has
    passed. `error` is the job's own error, `output_lines` are what the worker printed during the
    test. `is_start_failure` means that the worker did not start, which all later tests share.
    """

    test: HandlerTest
    duration_s: float = 0.0
    status: str | None = None
    failure: str | None = None
    diff: Sequence[str] = ()
    error: str = ""
    output_lines: Sequence[str] = ()
    is_start_failure: bool = False

    @property
    def has_passed(self) -> bool:
        """Whether the job has ended as expected."""
        return self.failure is None


class WorkerControl(Protocol):
    """The worker that runs the tests."""

    async def wait_until_ready(self) -> None:
        """Return when a worker waits for jobs. Raises HandlerNotStarted."""

    def restart_worker(self) -> None:
        """Replace the worker."""


class HandlerTestRunner:
    """Runs tests in order; a test that takes too long is cancelled, and gets a new worker.

    `on_start` is called with each test before it runs; `take_output` returns what the worker has
    printed since its last call.
    """

    def __init__(
        self,
        client: JobClient,
        worker: WorkerControl,
        *,
        default_timeout_ms: int,
        take_output: Callable[[], Sequence[str]] = tuple,
        on_start: Callable[[HandlerTest], object] = lambda test: None,
    ) -> None:
        self._client = client
        self._worker = worker
        self._default_timeout_ms = default_timeout_ms
        self._take_output = take_output
        self._on_start = on_start

    async def run(self, tests: Sequence[HandlerTest]) -> AsyncIterator[HandlerTestResult]:
        """Yield the result of each test when it has ended.

        If no worker starts, all remaining tests fail with the reason.
        """
        not_started: HandlerNotStarted | None = None
        for test in tests:
            if not_started is None:
                self._on_start(test)
                try:
                    await self._worker.wait_until_ready()
                except HandlerNotStarted as error:
                    not_started = error
                else:
                    yield await self._run_test(test)
                    continue
            yield HandlerTestResult(
                test=test,
                failure=not_started.reason,
                output_lines=not_started.output.splitlines() or self._take_output(),
                is_start_failure=True,
            )

    async def _run_test(self, test: HandlerTest) -> HandlerTestResult:
        # The output of the worker's start belongs to no test.
        self._take_output()
        timeout_ms = test.timeout_ms or self._default_timeout_ms
        started_at = time.monotonic()
        try:
            job_id = await self._client.submit(test.input, timeout_ms / 1000)
            job = await self._client.wait(job_id, timeout_ms / 1000)
            if job is None:
                await self._client.cancel(job_id)
        except JobRequestFailed as error:
            return HandlerTestResult(
                test=test, duration_s=time.monotonic() - started_at, failure=str(error)
            )
        duration_s = time.monotonic() - started_at
        if job is None:
            output_lines = self._take_output()
            self._worker.restart_worker()
            return HandlerTestResult(
                test=test,
                duration_s=duration_s,
                status="CANCELLED",
                failure=f"the job did not end within {timeout_ms} ms (timeout) and was cancelled",
                output_lines=output_lines,
            )
        # Without the time in the queue: the SDK takes a job up to a second after the one before.
        duration_s = job.get("executionTime", duration_s * 1000) / 1000
        mismatch = find_mismatch(test, job["status"], job.get("output"))
        if mismatch is None:
            return HandlerTestResult(test=test, duration_s=duration_s, status=job["status"])
        return HandlerTestResult(
            test=test,
            duration_s=duration_s,
            status=job["status"],
            failure=mismatch.reason,
            diff=mismatch.diff,
            error=format_job_error(job.get("error")),
            output_lines=self._take_output(),
        )
