"""Some requests in one run of the runtime, whose answers go on in step."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.backends.base import OnPiece, RunResult
from engine.backends.rkllm.structs import LLMCallState
from engine.output import FinishReason
from engine.request import SamplingParams

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)
_WAITING = int(LLMCallState.RKLLM_RUN_WAITING)
_FINISH = int(LLMCallState.RKLLM_RUN_FINISH)


@dataclass(slots=True, eq=False)
class BatchedRequest:
    """One request of those that may run together, those whose `shares` are equal.

    `woken` is set when it is aborted, by any thread, and when its answer has ended: the thread of
    its run waits for that, and for nothing else. What is counted is written under the lock of its
    batch alone.
    """

    prompt: list[int]
    sampling: SamplingParams
    context_length: int
    on_piece: OnPiece
    woken: threading.Event = field(default_factory=threading.Event)
    shares: Hashable = None
    batch: Batch | None = None
    tokens: int = 0
    error: Exception | None = None
    # Nobody was left after it, so that it sees to the end of the run.
    last: bool = False

    @property
    def limit(self) -> int:
        """How many tokens are taken; beyond the context the runtime would shift its window."""
        room = self.context_length - len(self.prompt)
        return min(self.sampling.max_tokens or room, room)

    def take(self, text: bytes | None, token_id: int, *, waiting: bool) -> bool:
        """Take what a callback has in its place; return whether the answer ends here."""
        if token_id < 0:
            return True
        piece = text or b""
        if waiting and not _is_valid_utf8(piece):
            # The state is of all places. Of this one the bytes come with a later token.
            piece = b""
        self.tokens += 1
        enough = self.on_piece(piece, token_id, None)
        return enough or self.tokens >= self.limit

    def end(self) -> RunResult:
        """Return what it was; what the runtime says of a run is about all of them."""
        full = len(self.prompt) + self.tokens >= self.context_length
        batch = self.batch
        return RunResult(
            reason=FinishReason.LENGTH if full else FinishReason.STOP,
            prompt_tokens=len(self.prompt),
            completion_tokens=self.tokens,
            prefill_ms=0.0 if batch is None else batch.prefill_ms,
            reload_ms=0.0 if batch is None else batch.reload_ms,
        )


class Batch:
    """One run's members, each in a place of its own, of as many `places` as the run has.

    An answer that has ended, or is not wanted any more, leaves: its sequence may go on, and what it
    brings is dropped. Whoever leaves last stays until the run has returned, for a runtime that does
    not hear the abort must be found out by somebody's clock. The lock is held while a callback
    hands out its tokens, so that none comes after a member has left; it is taken by the thread that
    calls back, by those of the members and by the one that runs batches.
    """

    # What a run for numbers has: batches have none.
    take = None

    def __init__(self, members: Sequence[BatchedRequest], places: int) -> None:
        self.number = 0
        self.code = 0
        self.stopped = False
        self.finished = False
        self.failed = False
        self.reload_ms = 0.0
        self.prefill_ms = 0.0
        self.sampling = members[0].sampling
        self.limit = max(member.limit for member in members)
        self.returned = threading.Event()
        self._members = tuple(members)
        self._places = places
        self._began: float | None = None
        self._lock = threading.Lock()
        self._living = dict(enumerate(members))
        for member in members:
            member.batch = self

    def __len__(self) -> int:
        return len(self._members)

    def begin(self) -> list[list[int]]:
        """Return the prompts by their places; of members that have left, as little as there can be.

        Called when the run is known to the runtime, just before its call.
        """
        with self._lock:
            self._began = time.monotonic()
            return [
                member.prompt if place in self._living else member.prompt[:1]
                for place, member in enumerate(self._members)
            ]

    def take_result(self, result: Any, state: int) -> bool:
        """Take a callback's array of results; return whether the run is to be aborted."""
        if state == _FINISH:
            self.finished = True
        elif state not in (_NORMAL, _WAITING):
            self.failed = True
        elif not self.stopped and result:
            with self._lock:
                return self._hand_out(result, waiting=state == _WAITING)
        return False

    def _hand_out(self, result: Any, *, waiting: bool) -> bool:
        if self._began is not None:
            self.prefill_ms = (time.monotonic() - self._began) * 1000
            self._began = None
        for place, member in tuple(self._living.items()):
            found = result[place]
            if member.take(found.text, found.token_id, waiting=waiting):
                self._let_go(place)
        # What nobody wants may go on, without a member too; with all ended, the run ends itself.
        return not self._living and any(
            result[place].token_id >= 0 for place in range(self._places)
        )

    def _let_go(self, place: int) -> None:
        member = self._living.pop(place)
        member.last = not self._living
        member.woken.set()

    def leave(self, member: BatchedRequest) -> bool:
        """Drop what is yet to come for a member; return whether it has to see to the run's end."""
        with self._lock:
            for place, living in tuple(self._living.items()):
                if living is member:
                    self._let_go(place)
                    self.stopped = member.last
        return member.last

    def close(self, error: Exception | None) -> None:
        """Take the run's return: who has not ended yet ends with it, by an error if given."""
        with self._lock:
            left = tuple(self._living.values())
            self._living.clear()
        self.returned.set()
        for member in left:
            member.error = error
            member.woken.set()


def _is_valid_utf8(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
