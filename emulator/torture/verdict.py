"""Judge what a client printed and its exit code."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from emulator.torture.answer import is_part_of, is_same_answer
from emulator.torture.shape import Expected, Shape

# Signals of a process that has crashed or was killed; the shell's exit code for one is 128 + n.
_CRASH_SIGNALS = (
    *(signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS),
    *(signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGSYS),
)
_CRASH_CODES = {128 + number: int(number) for number in _CRASH_SIGNALS}


class Verdict(StrEnum):
    """The verdict on a client after one run."""

    RIGHT = "right"
    LOST_TEXT = "lost text"
    INVENTED_TEXT = "invented text"
    HALF_ANSWER = "half answer taken for whole"
    HUNG = "hung"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRun:
    """One run of the client: what it printed, and how it ended.

    `exit_code` is None if its time was over before it ended, so that it was killed.
    """

    printed: str
    errors: str
    exit_code: int | None
    duration_s: float
    requests: int

    @property
    def signal_number(self) -> int | None:
        """The signal that ended the client, or its shell; None if none did."""
        code = self.exit_code or 0
        return -code if code < 0 else _CRASH_CODES.get(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on one run, with a sentence that explains it."""

    verdict: Verdict
    detail: str

    @property
    def is_right(self) -> bool:
        """Whether the client did what an honest client can do."""
        return self.verdict is Verdict.RIGHT


def judge(shape: Shape, run: ClientRun, answer: str, *, is_call: bool = False) -> Judgement:
    """Return the verdict on a run.

    A client that fails is never judged by what it printed before: its exit code says that this is
    not an answer. A client that succeeds says that it printed the whole answer.
    """
    if run.exit_code is None:
        return _judgement(Verdict.HUNG, "it had not ended when its time was over")
    if (ended_by := run.signal_number) is not None:
        return _judgement(Verdict.CRASHED, f"it was ended by signal {ended_by}")
    if run.exit_code != 0:
        if shape.expected is Expected.ANSWER:
            return _judgement(
                Verdict.CRASHED, f"it failed with code {run.exit_code} on a whole answer"
            )
        return _judgement(Verdict.RIGHT, f"it failed with code {run.exit_code}")
    expected = answer if shape.has_text else ""
    if shape.expected is not Expected.FAILURE and is_same_answer(
        run.printed, expected, is_call=is_call
    ):
        return _judgement(Verdict.RIGHT, "it printed the whole answer")
    return _judge_success(shape, run, answer, is_call=is_call)


def _judge_success(shape: Shape, run: ClientRun, answer: str, *, is_call: bool) -> Judgement:
    """Return the verdict on a run that succeeded and must not, or printed another text."""
    printed = run.printed.rstrip("\r\n")
    is_complete = is_same_answer(printed, answer, is_call=is_call)
    if not is_complete and not is_part_of(printed, answer):
        return _judgement(
            Verdict.INVENTED_TEXT, "it succeeded, and printed text that the answer does not have"
        )
    size = f"{len(printed)} of {len(answer)} characters"
    if shape.expected is Expected.ANSWER:
        return _judgement(Verdict.LOST_TEXT, f"it succeeded, and printed {size}")
    return _judgement(Verdict.HALF_ANSWER, f"it succeeded on a broken answer, and printed {size}")


def _judgement(verdict: Verdict, detail: str) -> Judgement:
    return Judgement(verdict=verdict, detail=detail)
