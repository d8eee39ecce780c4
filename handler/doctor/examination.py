"""Run the doctor's examination in a process of its own, and collect its findings."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from common.child_processes import describe_exit
from common.temporary_folders import ScratchFolder
from engine import BackendConfig, Timeouts
from engine.doctor.examiner import BEGINS
from engine.hosts.child_process import start_process
from handler.doctor.bundle import LOG_LEVEL, Bundle
from handler.doctor.report import INTERRUPTED, Examination, Finding

# How much of the process's output is kept, at its start and again at its end.
_MAX_LINES = 20
_MAX_BYTES = 64 * 1024
# Python sees a Ctrl-C that comes just before a wait begins only after that wait.
_LONGEST_WAIT_S = 0.5


def examine(
    backend: BackendConfig,
    timeouts: Timeouts,
    on_step: Callable[[str], object],
    *,
    trial: str | None = None,
    steps: Sequence[str] | None = None,
    cpus: Sequence[int] = (),
    bundle: Bundle | None = None,
) -> Examination:
    """Return the findings of a separate process, also if it crashed, hung or was interrupted.

    Until the model is loaded a step may take LOAD_TIMEOUT_S; after that, as long as a run may be
    without output. `on_step` is called with the name of each step when it starts. With `trial` the
    process makes only that trial of RKLLM's, and with `steps` it takes only these. `cpus` are the
    CPUs that it may use, if not all. A `bundle` gets all that the process prints, which is more.
    """
    examination = Examination()
    request = {
        **backend.to_wire(),
        "trial": trial,
        "steps": steps,
        "cpus": cpus,
    }
    with ScratchFolder() as scratch:
        # A file, not a pipe: the process would block on a full pipe that is not read.
        path = Path(scratch.path, "printed")
        if bundle is not None:
            path = bundle.next_printed(trial or "examination")
        variables = {} if bundle is None else LOG_LEVEL
        with path.open("w+b") as printed:
            process = _start_examination(request, scratch.name, printed, variables)
            lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            reader = threading.Thread(target=_read_lines, args=(process, lines), name="findings")
            reader.start()
            try:
                examination.ended = _collect_findings(
                    lines, timeouts, examination.findings, on_step
                )
                examination.ended = examination.ended or _describe_exit(process.wait())
            except KeyboardInterrupt:
                examination.ended = INTERRUPTED
            finally:
                process.kill()
                process.wait()
                reader.join()
            examination.printed = _first_and_last_lines(printed)
    return examination


def _start_examination(
    request: dict[str, Any], folder: str, printed: BinaryIO, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # Started like an engine process, so that the report applies to the worker.
    process = start_process(
        "engine.doctor.examiner",
        folder=folder,
        variables=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=printed,
    )
    assert process.stdin is not None  # noqa: S101 - opened as a pipe above
    with process.stdin as pipe:
        pipe.write(json.dumps(request).encode())
    return process


def _collect_findings(
    lines: queue.SimpleQueue[bytes],
    timeouts: Timeouts,
    findings: list[Finding],
    on_step: Callable[[str], object],
) -> str:
    """Collect findings until the process closes its output.

    Returns "", or a sentence about the time limit that was exceeded.
    """
    load = (timeouts.load_timeout_s, "LOAD_TIMEOUT_S")
    run = (
        timeouts.prefill_timeout_s + timeouts.stall_timeout_s,
        "PREFILL_TIMEOUT_S + STALL_TIMEOUT_S",
    )
    limit_s, setting = load
    started_at = time.monotonic()
    while True:
        left_s = started_at + limit_s - time.monotonic()
        try:
            line = lines.get(timeout=min(max(left_s, 0.0), _LONGEST_WAIT_S))
        except queue.Empty:
            if left_s > _LONGEST_WAIT_S:
                continue
            return f"it was not over after {limit_s:g} s ({setting}), and the process was killed"
        if not line:
            return ""
        step, name, value = json.loads(line)
        findings.append((step, name, value))
        if name == BEGINS:
            limit_s, setting = run if value else load
            started_at = time.monotonic()
            on_step(step)


def _read_lines(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    assert process.stdout is not None  # noqa: S101 - opened as a pipe above
    with process.stdout as pipe:
        for line in pipe:
            lines.put(line)
    lines.put(b"")


def _describe_exit(code: int) -> str:
    # Usually the kernel's out-of-memory killer; `dmesg` has its log.
    hint = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
    return f"the process {describe_exit(code)}{hint}" if code else ""


def _first_and_last_lines(file: BinaryIO) -> list[str]:
    """Return the first and the last lines of a file, which may be very long."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= 2 * _MAX_BYTES:
        lines = _split_lines(file.read())
        if len(lines) <= 2 * _MAX_LINES:
            return lines
        first, last = lines, lines
    else:
        first = _split_lines(file.read(_MAX_BYTES))
        file.seek(-_MAX_BYTES, os.SEEK_END)
        last = _split_lines(file.read())
    return [*first[:_MAX_LINES], "...", *last[-_MAX_LINES:]]


def _split_lines(data: bytes) -> list[str]:
    return [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
