"""Run one local job: `python -m handler` outside RunPod.

The SDK is not used: its import takes a second, and it prints each result itself. The job, its id
and the exit code are the same as in the SDK's own local test.
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
from handler.delivery.outbound_targets import is_loopback
from handler.input.request import is_openai_call
from handler.job.job_handler import JobHandler
from handler.worker.terminal import TerminalReport

_TEST_INPUT = Path("test_input.json")
_INTERRUPTED_EXIT_CODE = 130


class BadTestInput(Exception):
    """The test input is not a job; the message gives the reason."""


def is_local() -> bool:
    """Return whether to run one local job, by the SDK's own rule: no job source is configured.

    The SDK's servers (`--rp_serve_api`, RUNPOD_REALTIME_PORT) are job sources too.
    """
    if "--rp_serve_api" in sys.argv[1:]:
        return False
    if any(argument.startswith("--test_input") for argument in sys.argv[1:]):
        return True
    job_sources = ("RUNPOD_WEBHOOK_GET_JOB", "RUNPOD_REALTIME_PORT")
    return not any(os.environ.get(name) for name in job_sources)


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

    On a terminal this prints the answer's text, the verdict and the formatted output, or the error
    of a failed job. Otherwise stdout gets the output as one line of JSON, or `{"error": …}`.
    """
    try:
        return asyncio.run(_run_and_print(jobs, engine, mode))
    except KeyboardInterrupt:
        return _INTERRUPTED_EXIT_CODE


async def _run_and_print(jobs: JobHandler, engine: AnyEngine, mode: str) -> int:
    report = TerminalReport() if sys.stdout.isatty() else None
    try:
        job = read_job()
        bind_contextvars(job_id=job["id"])
        output = await _run_job(jobs, job, mode, report)
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


async def _run_job(
    jobs: JobHandler, job: Mapping[str, Any], mode: str, report: TerminalReport | None
) -> Any:
    """Return the output that the platform would store: the job's, or a list in generator mode."""
    if mode != "generator" and (report is None or is_openai_call(job["input"])):
        output = await jobs.run(job)
    else:
        is_in_result = True

        def include_in_result(is_included: bool) -> None:
            nonlocal is_in_result
            is_in_result = is_included

        outputs = []
        async for each in jobs.stream(job, include_in_result=include_in_result):
            if report is not None:
                report.add(each)
            if is_in_result:
                outputs.append(each)
        failed = bool(outputs) and isinstance(outputs[-1], dict) and "error" in outputs[-1]
        output = outputs if mode == "generator" and not failed else outputs[-1]
    if isinstance(output, dict):
        # This key is for the platform only.
        output.pop("refresh_worker", None)
    return output


def read_job() -> dict[str, Any]:
    """Read the job from `--test_input`, or else from test_input.json. Raises BadTestInput."""
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
