"""`python -m handler doctor`: has the engine examined, and prints a report to post."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from engine import BackendConfig, EngineConfig, Timeouts
from engine.doctor import BEGINS
from engine.hosts.child_process import describe_exit, start_process
from engine.temporary_folders import ScratchFolder
from handler.doctor_report import Examination, Finding, report

# How many of the lines that were printed are kept, at the beginning and at the end.
_LINES = 20
_KEPT_BYTES = 64 * 1024


def main(configs: Sequence[EngineConfig]) -> int:
    """Print a report of each copy of each model, examined one after the other.

    Returns 0 if every step was done and 1 otherwise, which the reports say too.
    """
    whole = True
    for config in configs:
        for backend in (config.backend, *config.copies):
            whole &= _examine_one(backend, config.timeouts)
    return 0 if whole else 1


def _examine_one(backend: BackendConfig, timeouts: Timeouts) -> bool:
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = progress.add_task("starting", total=None)
    with progress:
        examination = examine(
            backend, timeouts, lambda step: progress.reset(task, description=step)
        )
    # Only now, for what is written while it spins would go to stderr with it.
    sys.stdout.write(report(backend, examination))
    return examination.whole


def examine(
    backend: BackendConfig, timeouts: Timeouts, on_step: Callable[[str], object]
) -> Examination:
    """Return what a process of its own finds, or found before it crashed, hung or was interrupted.

    A step may take LOAD_TIMEOUT_S until the model is loaded, and then as long as a run may be
    silent; `on_step` hears the name of each as it begins.
    """
    examination = Examination()
    with ScratchFolder() as scratch:
        # A file and not a pipe: nobody needs to read along for the process not to be held up.
        with Path(scratch.path, "printed").open("w+b") as printed:
            process = _start(backend, scratch.name, printed)
            lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            reader = threading.Thread(target=_read, args=(process, lines), name="findings")
            reader.start()
            try:
                examination.ended = _listen(lines, timeouts, examination.findings, on_step)
                examination.ended = examination.ended or _death(process.wait())
            except KeyboardInterrupt:
                examination.ended = "it was interrupted"
            finally:
                process.kill()
                process.wait()
                reader.join()
            examination.printed = _ends(printed)
    return examination


def _start(backend: BackendConfig, folder: str, printed: BinaryIO) -> subprocess.Popen[bytes]:
    # As a host is started: what is examined is what will be used.
    process = start_process(
        "engine.doctor",
        folder=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=printed,
    )
    assert process.stdin is not None  # noqa: S101 - opened as a pipe above
    with process.stdin as pipe:
        asked = {"backend": backend.backend, "options": dict(backend.options)}
        pipe.write(json.dumps(asked).encode())
    return process


def _listen(
    lines: queue.SimpleQueue[bytes],
    timeouts: Timeouts,
    findings: list[Finding],
    on_step: Callable[[str], object],
) -> str:
    """Collect findings until there are no more; return which clock ran out before that, or ""."""
    load = (timeouts.load_timeout_s, "LOAD_TIMEOUT_S")
    run = (
        timeouts.prefill_timeout_s + timeouts.stall_timeout_s,
        "PREFILL_TIMEOUT_S + STALL_TIMEOUT_S",
    )
    limit_s, clock = load
    began = time.monotonic()
    while True:
        try:
            line = lines.get(timeout=_within(began + limit_s - time.monotonic()))
        except queue.Empty:
            return f"it was not over after {limit_s:g} s ({clock}), and the process was killed"
        if not line:
            return ""
        step, name, value = json.loads(line)
        findings.append((step, name, value))
        if name == BEGINS:
            limit_s, clock = run if value else load
            began = time.monotonic()
            on_step(step)


def _within(left_s: float) -> float:
    """Return what a wait takes as its limit: a clock may be set to more."""
    return min(max(left_s, 0.0), threading.TIMEOUT_MAX)


def _read(process: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    assert process.stdout is not None  # noqa: S101 - opened as a pipe above
    with process.stdout as pipe:
        for line in pipe:
            lines.put(line)
    lines.put(b"")


def _death(code: int) -> str:
    # Nobody else kills like that, and `dmesg` knows.
    hint = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
    return f"the process {describe_exit(code)}{hint}" if code else ""


def _ends(file: BinaryIO) -> list[str]:
    """Return the first and the last lines of what may be a very long file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= 2 * _KEPT_BYTES:
        lines = _lines(file.read())
        if len(lines) <= 2 * _LINES:
            return lines
        first, last = lines, lines
    else:
        first = _lines(file.read(_KEPT_BYTES))
        file.seek(-_KEPT_BYTES, os.SEEK_END)
        last = _lines(file.read())
    return [*first[:_LINES], "...", *last[-_LINES:]]


def _lines(data: bytes) -> list[str]:
    return [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
