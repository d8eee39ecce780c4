"""Send a kept job again, and compare its end with the kept one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.terminal_text import escape_lines
from emulator.handler_tests.expectation import is_equal
from emulator.handler_tests.job_client import JobClient, JobRequestFailed
from emulator.handler_tests.job_error import format_job_error
from emulator.handler_tests.json_diff import diff_json
from handler.worker.terminal import format_json


async def replay_job(client: JobClient, job_id: str, timeout_s: float) -> tuple[bool, str]:
    """Send the input of a kept job as a new job and wait for its end.

    Returns whether it has COMPLETED with the output of the kept job, if that has COMPLETED too, and
    a text about both.

    Raises:
        JobRequestFailed: the job is not kept, or the new one has not ended in time.
    """
    kept = await client.get_request(job_id)
    new_id = await client.submit(kept["input"], timeout_s)
    try:
        job = await client.wait(new_id, timeout_s)
    except BaseException:
        await client.cancel(new_id)
        raise
    if job is None:
        await client.cancel(new_id)
        raise JobRequestFailed(
            f"the job {new_id} did not end within {timeout_s:g} s and was cancelled"
        )
    has_passed = job["status"] == "COMPLETED" and (
        kept["status"] != "COMPLETED" or is_equal(kept.get("output"), job.get("output"))
    )
    return has_passed, "\n".join(_describe(kept, job))


def _describe(kept: Mapping[str, Any], job: Mapping[str, Any]) -> list[str]:
    duration = f" in {job['executionTime'] / 1000:.2f} s" if "executionTime" in job else ""
    lines = [f"job {job['id']}: {job['status']}{duration}"]
    if job.get("error") is not None:
        lines.append(escape_lines(format_job_error(job["error"])))
    if "output" in job:
        lines.append(format_json(job["output"]))
    if job["status"] != kept["status"]:
        lines.append(f"the kept job is {kept['status']}")
    elif "output" in job and "output" in kept:
        if is_equal(kept["output"], job["output"]):
            lines.append("the output is the same as the kept one")
        else:
            lines += ["the output differs from the kept one:"]
            lines += diff_json(kept["output"], job["output"])
    return lines
