"""What a worker that has not asked for a job seems to do instead, by what it prints."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.autoscaling.worker_exit import last_printed_line

# A program that is silent for this long may still load a model, and is only named.
NAMED_AFTER_S = 30.0
# RunPod gives a worker seven minutes to start and load its model, unless this variable is set.
START_TIMEOUT_VARIABLE = "RUNPOD_INIT_TIMEOUT"
START_TIMEOUT_S = 420.0
# RunPod's SDK prints this when it serves a test API instead of taking jobs.
_TEST_API = "Starting API server"
# Uvicorn, Flask, gunicorn and gradio print this when they are ready.
_SERVES_HTTP = (
    "Uvicorn running on ",
    "Running on http",
    "Listening at: http",
    "Running on local URL",
)


def explain_no_worker(output: Sequence[str]) -> str | None:
    """Return why a program will never ask for a job, as a predicate; None if it may."""
    if any(_TEST_API in line for line in output):
        return (
            "serves the SDK's own test API and takes no jobs from a queue; start it without "
            "--rp_serve_api and without RUNPOD_REALTIME_PORT"
        )
    return None


def describe_long_start(output: Sequence[str], age_s: float) -> str:
    """Return the state of a worker that has not asked for a job for long, as a predicate."""
    text = f"has not asked for a job in {age_s:.0f} s"
    if serves_http(output):
        return (
            f"{text} and serves HTTP itself: it looks like a load-balancing worker, and this "
            'endpoint has a queue, from which runpod.serverless.start({"handler": handler}) '
            "takes jobs"
        )
    line = last_printed_line(output)
    return f"{text}; its last line: {line}" if line else f"{text} and printed nothing"


def serves_http(output: Sequence[str]) -> bool:
    """Return whether a program prints that it serves HTTP."""
    return any(sign in line for line in output for sign in _SERVES_HTTP)


def parse_start_timeout(value: str | None) -> float:
    """Return the time limit of a start in seconds; an unusable value counts as unset."""
    try:
        timeout_s = float(value or "")
    except ValueError:
        return START_TIMEOUT_S
    return timeout_s if 0 < timeout_s < float("inf") else START_TIMEOUT_S
