"""A backend whose tokens contain the time of their production.

The pieces of the scripted engine are fixed before it runs, so they cannot contain the time. The
tokens of this backend are `@<nanoseconds>;` of CLOCK_MONOTONIC, which all processes of a machine
share, so a reader can compute their latency. The engine selects backends by name and does not have
this one, so `install` replaces the scripted engine for model files that end in `.stamps.json`. In
the engine's own process, which the benchmarks do not start, `hook/sitecustomize.py` calls it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import engine.backends
from engine import Capabilities, FinishReason, SamplingParams
from engine.backends.base import (
    Backend,
    OnPiece,
    Operations,
    RunResult,
)
from engine.backends.options import BackendOptions
from engine.request import Prompt

SUFFIX = ".stamps.json"
STAMP = re.compile(rb"@(\d+);")

_ROOT = Path(__file__).resolve().parent.parent
_HOOK = Path(__file__).resolve().parent / "hook"


class StampingBackend:
    """Generates time stamps at a steady pace, with an immediate first token."""

    def __init__(self, model_path: str, model_name: str = "stamps") -> None:
        self._path = Path(model_path)
        self._name = model_name
        self._lock = threading.Lock()
        self._aborts: dict[int, threading.Event] = {}

    def load(self) -> Capabilities:
        """Read the pace and the number of slots."""
        script = json.loads(self._path.read_bytes())
        self._gap_s = 1 / script["tokens_per_s"]
        return Capabilities(
            backend="scripted",
            model=self._name,
            context_length=2**31,
            slots=script["slots"],
            token_prompts=True,
            chat_template=True,
        )

    @property
    def operations(self) -> Operations:
        """There are none: only generations are measured."""
        return {}

    def run(
        self, run_id: int, prompt: Prompt, sampling: SamplingParams, on_piece: OnPiece
    ) -> RunResult:
        """Generate stamps until the limit or an abort."""
        aborted = threading.Event()
        with self._lock:
            self._aborts[run_id] = aborted
        due = time.monotonic()
        count = 0
        for count in itertools.count(1):
            if aborted.wait(max(due - time.monotonic(), 0)):
                break
            if on_piece(b"@%d;" % time.monotonic_ns(), count, None):
                break
            due += self._gap_s
        with self._lock:
            del self._aborts[run_id]
        return RunResult(reason=FinishReason.LENGTH, prompt_tokens=1, completion_tokens=count)

    def abort(self, run_id: int) -> None:
        """Wake up the run."""
        with self._lock:
            aborted = self._aborts.get(run_id)
        if aborted is not None:
            aborted.set()

    def close(self) -> None:
        """Do nothing: there are no resources."""


_build = engine.backends.build


def build(options: BackendOptions) -> Backend:
    """Return the engine's backend, or this one for stamps."""
    if options.backend == "scripted" and str(options.model_path).endswith(SUFFIX):
        return StampingBackend(str(options.model_path), options.model_name)
    return _build(options)


def install() -> None:
    """Install the stamping backend for engines of this process."""
    import engine.hosts.thread

    modules: tuple[Any, ...] = (engine.backends, engine.hosts.thread)
    for module in modules:
        module.build = build


def environment() -> dict[str, str]:
    """Return environment variables that install it in a process and its engine hosts."""
    return {"PYTHONPATH": os.pathsep.join((str(_ROOT), str(_HOOK)))}
