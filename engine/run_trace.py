"""One run of a backend, watched from outside: what came, when, and on which thread."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from engine.backends.base import Backend, RunResult
from engine.generation import Generation
from engine.output import TokenLogprob
from engine.request import Prompt, SamplingParams


@dataclass(slots=True)
class RunTrace:
    """What was seen of a run; `stamps` is when each callback came."""

    started: float
    returned: float = 0.0
    aborted: float | None = None
    stamps: list[float] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    end: RunResult = field(default_factory=RunResult)

    @property
    def first_s(self) -> float | None:
        """From the start to the first callback."""
        return self.stamps[0] - self.started if self.stamps else None

    @property
    def callbacks(self) -> int:
        """How many came, also those that the backend kept to itself since the run was aborted."""
        return len(self.stamps) if self.end.callbacks is None else self.end.callbacks

    @property
    def rate(self) -> float | None:
        """Tokens a second between the first and the last one."""
        spent = self.stamps[-1] - self.stamps[0] if self.stamps else 0.0
        return (len(self.stamps) - 1) / spent if spent > 0 else None

    @property
    def abort_s(self) -> float | None:
        """From the abort to the return; None for a run that had ended before."""
        if self.aborted is None or self.aborted > self.returned:
            return None
        return self.returned - self.aborted


def trace_run(
    backend: Backend,
    run_id: int,
    prompt: Prompt,
    *,
    max_tokens: int,
    abort_at_token: int | None = None,
    abort_after_s: float | None = None,
) -> RunTrace:
    """Run a prompt as the engine does, on this thread; return what was seen."""
    watched = RunTrace(time.monotonic())
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.7, top_p=0.9, top_k=50)
    generation = Generation(sampling, lambda delta: watched.text.append(delta.text))

    def abort() -> None:
        watched.aborted = time.monotonic()
        generation.cancel()
        backend.abort(run_id)

    def on_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
        watched.stamps.append(time.monotonic())
        watched.threads.add(threading.get_ident())
        watched.ids.append(token_id)
        done = generation.on_piece(piece, token_id, logprob)
        if len(watched.stamps) == abort_at_token:
            threading.Thread(target=abort).start()
        return done

    timer = threading.Timer(abort_after_s or 0, abort)
    if abort_after_s is not None:
        timer.start()
    try:
        watched.end = backend.run(run_id, prompt, sampling, on_piece)
    finally:
        watched.returned = time.monotonic()
        timer.cancel()
    return watched
