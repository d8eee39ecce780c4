"""One local job: `python -m handler` where there is no RunPod.

It does without the SDK, whose import takes a second and which prints each result itself. The job,
its id and the exit code are those of the SDK's own local test.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from structlog.contextvars import bind_contextvars

from engine import AnyEngine
from handler.job import JobHandler
from handler.outbound_targets import is_loopback
from handler.terminal import TerminalReport

_TEST_INPUT = Path("test_input.json")
_INTERRUPTED = 130


class BadTestInput(Exception):
    """The test input holds no job; the message gives the reason."""


def is_local() -> bool:
    """Return whether to run one job here, by the SDK's own rule: no one else sends any.

    The SDK's servers (`--rp_serve_api`, RUNPOD_REALTIME_PORT) take any number of jobs.
    """
    if "--rp_serve_api" in sys.argv[1:]:
        return False
    if any(argument.startswith("--test_input") for argument in sys.argv[1:]):
        return True
    remote = ("RUNPOD_WEBHOOK_GET_JOB", "RUNPOD_REALTIME_PORT")
    return not any(os.environ.get(name) for name in remote)


def has_local_platform() -> bool:
    """Return whether the server that this worker takes jobs from is on this machine."""
    url = os.environ.get("RUNPOD_WEBHOOK_GET_JOB", "")
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)


def run_local(jobs: JobHandler, engine: AnyEngine, mode: str) -> int:
    """Run the job in `--test_input` or test_input.json, print its output, return the exit code.

    On a terminal the answer's text, the verdict and the output are printed for people; a failed job
    prints its error. Elsewhere stdout is the output as one line of JSON, or `{"error": …}`.
    """
    try:
        return asyncio.run(_run(jobs, engine, mode))
    except KeyboardInterrupt:
        return _INTERRUPTED


async def _run(jobs: JobHandler, engine: AnyEngine, mode: str) -> int:
    report = TerminalReport() if sys.stdout.isatty() else None
    try:
        job = read_job()
        bind_contextvars(job_id=job["id"])
        output = await _output(jobs, job, mode, report)
    except BadTestInput as error:
        output = {"error": str(error)}
    finally:
        await engine.close()
    failed = isinstance(output, dict) and bool(output.get("error"))
    if report is not None:
        report.end(output)
    else:
        sys.stdout.buffer.write(orjson.dumps(output) + b"\n")
        sys.stdout.flush()
    return int(failed)


async def _output(
    jobs: JobHandler, job: Mapping[str, Any], mode: str, report: TerminalReport | None
) -> Any:
    """Return what the platform would keep of the job: its output, or a list in generator mode."""
    if mode != "generator" and (report is None or "openai_route" in job["input"]):
        output = await jobs.run(job)
    else:
        is_kept = True

        def keep(kept: bool) -> None:
            nonlocal is_kept
            is_kept = kept

        outputs = []
        async for each in jobs.stream(job, keep=keep):
            if report is not None:
                report.add(each)
            if is_kept:
                outputs.append(each)
        failed = bool(outputs) and isinstance(outputs[-1], dict) and "error" in outputs[-1]
        output = outputs if mode == "generator" and not failed else outputs[-1]
    if isinstance(output, dict):
        # Meant for the platform.
        output.pop("refresh_worker", None)
    return output


def read_job() -> dict[str, Any]:
    """Return the job of `--test_input`, else of test_input.json. Raises BadTestInput."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--test_input")
    text: str | bytes | None = parser.parse_known_args()[0].test_input
    try:
        job = orjson.loads(_TEST_INPUT.read_bytes() if text is None else text)
    except FileNotFoundError:
        job = {}
    except (ValueError, OSError) as error:
        raise BadTestInput(f"the test input is not JSON: {error}") from None
    if not isinstance(job, dict):
        raise BadTestInput("the test input is not a JSON object")
    if job.get("input") is None:
        raise BadTestInput("no job: --test_input or test_input.json must have input")
    return {"id": "local_test", **job}
