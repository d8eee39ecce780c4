"""Records one run of a backend: its callbacks, their times and their threads."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from engine.backends.base import Backend, RunResult
from engine.output import TokenLogprob
from engine.request import Prompt, SamplingParams
from engine.runs.generation import Generation


@dataclass(slots=True)
class RunTrace:
    """The record of a run; times are monotonic seconds, one in `callback_times` per callback."""

    started: float
    returned: float = 0.0
    aborted: float | None = None
    callback_times: list[float] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    end: RunResult = field(default_factory=RunResult)

    @property
    def first_s(self) -> float | None:
        """Seconds from the start to the first callback."""
        return self.callback_times[0] - self.started if self.callback_times else None

    @property
    def callbacks(self) -> int:
        """The number of callbacks, including callbacks that the backend dropped after an abort."""
        return len(self.callback_times) if self.end.callbacks is None else self.end.callbacks

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second between the first and the last one."""
        duration_s = (
            self.callback_times[-1] - self.callback_times[0] if self.callback_times else 0.0
        )
        return (len(self.callback_times) - 1) / duration_s if duration_s > 0 else None

    @property
    def abort_s(self) -> float | None:
        """Seconds from the abort to the return; None if the run had ended before."""
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
    lora: str | None = None,
) -> RunTrace:
    """Run a prompt on this thread, as the engine does, and return the record of the run."""
    trace = RunTrace(time.monotonic())
    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=0.7, top_p=0.9, top_k=50, lora=lora
    )
    generation = Generation(sampling, lambda delta: trace.text.append(delta.text))

    def abort() -> None:
        trace.aborted = time.monotonic()
        generation.cancel()
        backend.abort(run_id)

    def on_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
        trace.callback_times.append(time.monotonic())
        trace.threads.add(threading.get_ident())
        trace.ids.append(token_id)
        done = generation.on_piece(piece, token_id, logprob)
        if len(trace.callback_times) == abort_at_token:
            threading.Thread(target=abort).start()
        return done

    timer = threading.Timer(abort_after_s or 0, abort)
    if abort_after_s is not None:
        timer.start()
    try:
        trace.end = backend.run(run_id, prompt, sampling, on_piece)
    finally:
        trace.returned = time.monotonic()
        timer.cancel()
    return trace
