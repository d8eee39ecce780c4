"""Try grammars in another process before an engine gets them.

A grammar of 50 bytes can end the process of a grammar library, or keep it busy for minutes. Which
ones do depends on the library, so a list of them would never be complete. Here such a grammar only
ends a process that does nothing else.
"""

from __future__ import annotations

import atexit
import json
import select
import signal
import subprocess
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from common.child_processes import describe_exit, start_module
from engine.errors import BackendFailed

Notation: TypeAlias = Literal["gbnf", "lark", "schema"]

# Some 3,000 fields of a schema. A larger grammar takes seconds to compile, during which no abort is
# possible.
MAX_GRAMMAR_SYMBOLS = 20_000
# Processor time for the preparation of a grammar, and for the beginnings of some answers to it. The
# largest schemas that are accepted take a twentieth of it.
MAX_PREPARATION_CPU_S, MAX_ANSWERS_CPU_S = 1.0, 0.3
# Only a machine that does not run the process at all takes longer.
_MAX_WAIT_S = 60.0
# Ended by these, a process was ended by its grammar, and would be again.
_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome: `grammar` in Lark, and why it cannot be followed; None if it can."""

    grammar: str = ""
    violation: str | None = None


class GrammarTrials:
    """Keeps the process in which grammars are tried, and starts it at the first trial.

    Any thread may call `run`; trials follow one another. The process ends when its input does, so
    it does not outlive this one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, notation: Notation, text: str) -> Trial:
        """Try a grammar. Raises BackendFailed if the process cannot be started or was killed."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                self._end()
                process = self._start()
            reply = self._exchange(process, json.dumps([notation, text]).encode())
            if reply:
                return Trial(*json.loads(reply))
            code = process.wait()
            self._end()
        if code == -signal.SIGPROF:
            return Trial(violation="it takes too long to prepare or to follow")
        if -code in _FAULTS:
            return Trial(
                violation=f"it needs too much memory or too many levels: the process that tried "
                f"it {describe_exit(code)}"
            )
        raise BackendFailed(f"a grammar could not be tried: its process {describe_exit(code)}")

    def close(self) -> None:
        """End the process; a later trial starts another one."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._process = start_module(
                "engine.schema.trial_process",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise BackendFailed(f"a grammar could not be tried: {error}") from error
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes) -> bytes:
        """Return the reply; nothing if the process has ended, or was killed for being late."""
        assert process.stdin is not None  # noqa: S101 - opened as a pipe
        assert process.stdout is not None  # noqa: S101 - opened as a pipe
        try:
            process.stdin.write(request + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return b""
        ready = select.poll()
        ready.register(process.stdout, select.POLLIN | select.POLLHUP)
        if not ready.poll(_MAX_WAIT_S * 1000):
            process.kill()
            return b""
        return process.stdout.readline()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None  # noqa: S101 - opened as pipes above
            try:
                pipe.close()
            except BrokenPipeError:
                # An ended process did not read this.
                continue
        process.kill()
        process.wait()


TRIALS = GrammarTrials()
atexit.register(TRIALS.close)


# Cached, because a batch often has the same grammar in every line.
@lru_cache(maxsize=64)
def try_grammar(notation: Notation, text: str) -> Trial:
    """Try a grammar and return the outcome. Raises BackendFailed if the trial itself failed."""
    return TRIALS.run(notation, text)
