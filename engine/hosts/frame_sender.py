"""Sends the output of the engine process's runs to the parent, several tokens to a frame."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

from common.process_utils import exit_now
from engine.errors import EngineError
from engine.hosts.frames import encode
from engine.output import Delta, Finish
from engine.runs.channel import DeltaChannel

# Deltas in one frame, and bytes that the kernel may buffer (Linux doubles the value that it is
# given): the end of an aborted run waits behind at most these.
MAX_FRAME_DELTAS = 1_000
_SEND_BUFFER_BYTES = 64 * 1024
# A frame with more deltas is a burst: the sender then pauses to let more deltas gather, and leaves
# the interpreter lock to the producer.
BURST_DELTAS = 16
BURST_PAUSE_S = 0.001
# Delayed deltas are sent earlier when there are this many.
MAX_DELAYED_DELTAS = 1_000
_NEVER_S = threading.TIMEOUT_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePacing:
    """How many deltas may wait, and how long, before they are sent.

    Up to `max_pending_deltas` may wait for the parent to read them. Everything waits in one queue,
    the ends of runs included, except for the ends of aborted runs: a slot that was taken back must
    not wait behind the output of other runs.

    After a silence of `quiet_s`, a token is sent by the thread that brings it. At such a pace there
    is nothing to combine, and waking another thread costs half of the rest of a token's latency.

    Tokens of one run that follow each other faster than `min_send_interval_s` share frames: no
    reader sees them one by one, and each frame takes time from the model. No token waits longer
    than `max_delay_s` for another one. A young run sends more often: a token waits no longer than
    the share `max_delay_age_ratio` of the run's age, so that a short answer of a fast model is also
    streamed, and does not arrive in one or two frames.

    Tokens of a buffered run, which no client reads before its end, wait `buffered_delay_s`, which
    must always be less than STALL_TIMEOUT_S. A frame for each token would take time from the model,
    whose threads wait for each other.
    """

    max_pending_deltas: int = 8_000
    quiet_s: float = 0.001
    min_send_interval_s: float = 1 / 30
    max_delay_s: float = 0.05
    max_delay_age_ratio: float = 1 / 8
    buffered_delay_s: float = 0.2


_DEFAULT_PACING = FramePacing()


class FrameSender:
    """Sends what the runs produce, as many deltas to a frame as are pending.

    The runner's threads produce, and one sender thread drains: in a burst the frames grow, and not
    the number of wake-ups. A lone token, and the end of a run, are sent by the thread that brings
    them, together with everything pending, if that is possible without waiting. Every sender holds
    `_send_lock`, so the order is kept. Only the end of an aborted run overtakes: its remaining
    deltas are of no use any more. Tokens of a fast run and of a buffered run wait for others, to
    share a frame. If the parent does not read for a while, the producers wait. That slows down the
    model but no other reader: clients read from the parent, never from here.
    """

    def __init__(self, sock: socket.socket, pacing: FramePacing = _DEFAULT_PACING) -> None:
        self._sock = sock
        self.pacing = pacing
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._wakeup = threading.Event()
        self._has_room = threading.Event()
        self._has_room.set()
        self._is_closed = False
        self._send_lock = threading.Lock()
        self._last_send_s = 0.0
        # The rest of a frame for which the socket had no room.
        self._unsent = b""
        # Ends of aborted runs, which are sent before everything else.
        self._urgent: DeltaChannel[tuple[int, Any]] = DeltaChannel(self._wakeup.set)
        self._buffered_runs: set[int] = set()
        # By run: when its first token came, and when its last undelayed token came.
        self._first_token_s: dict[int, float] = {}
        self._undelayed_token_s: dict[int, float] = {}
        # How long the sender thread waits before it polls, and the shortest delay that producers
        # have asked for since its last poll.
        self._poll_s = _NEVER_S
        self._requested_poll_s = _NEVER_S
        # The latest time to send the delayed tokens of fast runs; 0 without any.
        self._flush_by_s = 0.0
        self._channel: DeltaChannel[tuple[int, Any]] = DeltaChannel(self._wakeup.set)
        threading.Thread(target=self._send_forever, name="frame-sender", daemon=True).start()

    def buffer_run(self, run_id: int) -> None:
        """Send the tokens of a run in few frames: no client reads its answer before the end."""
        self._buffered_runs.add(run_id)

    def on_delta(self, run_id: int, delta: Delta) -> None:
        """Send one token's text, at once or together with the next token of a fast run."""
        item, pending = (run_id, delta), self._channel.pending
        if run_id in self._buffered_runs:
            self._put_delayed(item, self.pacing.buffered_delay_s)
        elif len(pending) > BURST_DELTAS:
            self._channel.put(item)
        elif self._should_delay(run_id, now_s := time.monotonic()):
            self._flush_by_s = self._flush_by_s or now_s + self.pacing.max_delay_s
            self._put_delayed(item, self.pacing.max_delay_s)
        else:
            self._undelayed_token_s[run_id] = now_s
            if delta.logprob is None and now_s - self._last_send_s > self.pacing.quiet_s:
                self._send_now(item)
            else:
                # It is part of a burst, or has logprobs, which take long to encode: let the sender
                # thread write it.
                self._channel.put(item)
        if len(pending) > self.pacing.max_pending_deltas:
            self._wait_for_room()

    def _should_delay(self, run_id: int, now_s: float) -> bool:
        """Return whether a run has sent so recently that its next token shares a frame."""
        last_s = self._undelayed_token_s.get(run_id)
        if last_s is None:
            self._first_token_s[run_id] = now_s
            return False
        age_s = now_s - self._first_token_s[run_id]
        pacing = self.pacing
        return now_s - last_s < min(pacing.min_send_interval_s, pacing.max_delay_age_ratio * age_s)

    def _wait_for_room(self) -> None:
        self._has_room.clear()
        # Check again: room that was made before the line above would not be noticed.
        if len(self._channel.pending) > self.pacing.max_pending_deltas and not self._is_closed:
            self._wakeup.set()
            self._has_room.wait()
        else:
            # Another producer may be waiting for the event that was cleared.
            self._has_room.set()

    def _put_delayed(self, item: tuple[int, Any], delay_s: float) -> None:
        """Leave an item to the next frame, or to the sender thread, which polls in `delay_s`."""
        if len(self._channel.pending) >= MAX_DELAYED_DELTAS:
            self._channel.put(item)
            return
        self._channel.append_without_wake(item)
        if self._requested_poll_s > delay_s:
            self._requested_poll_s = delay_s
        if self._poll_s > delay_s:
            self._poll_s = delay_s
            self._wakeup.set()

    def wake_producers(self) -> None:
        """Wake the producers that wait for room, because the run of one of them was aborted."""
        self._has_room.set()

    def on_finished(self, run_id: int, finish: Finish) -> None:
        """Send the end of a run."""
        self._end_run(run_id, finish)

    def on_aborted(self, run_id: int, end: Finish | EngineError) -> None:
        """Send the end of an aborted run, before everything that is pending."""
        self._forget_run(run_id)
        self._urgent.append_without_wake((run_id, end))
        self._send_now()

    def on_failed(self, run_id: int, error: EngineError) -> None:
        """Send the error of a failed run."""
        self._end_run(run_id, error)

    def _end_run(self, run_id: int, end: Finish | EngineError) -> None:
        self._forget_run(run_id)
        self._send_now((run_id, end))

    def _forget_run(self, run_id: int) -> None:
        self._buffered_runs.discard(run_id)
        self._undelayed_token_s.pop(run_id, None)
        self._first_token_s.pop(run_id, None)

    def _send_now(self, last: tuple[int, Any] | None = None) -> None:
        """Send everything pending and then `last`, on this thread if that needs no waiting."""
        if not self._send_lock.acquire(blocking=False):
            self._enqueue(last)
            return
        try:
            has_many = len(self._channel.pending) > MAX_FRAME_DELTAS
            if self._unsent or self._is_closed or has_many:
                self._enqueue(last)
                return
            if last is not None and not (self._channel.pending or self._urgent.pending):
                batch = [last]
            else:
                last_items = [] if last is None else [last]
                batch = [*self._urgent.drain(), *self._drain(), *last_items]
            frame = encode(_build_frame(batch))
            self._unsent = frame
            sent_bytes = self._sock.send(frame, socket.MSG_DONTWAIT)
            self._unsent = frame[sent_bytes:]
            self._last_send_s = time.monotonic()
        except OSError:
            # The socket is full or closed: the sender thread waits, or gets the same error.
            self._wakeup.set()
        except Exception:
            _exit_on_failure()
        finally:
            self._send_lock.release()
        if self._unsent:
            self._wakeup.set()

    def _enqueue(self, last: tuple[int, Any] | None) -> None:
        """Let the sender thread send all pending items, and then `last`."""
        if last is None:
            self._wakeup.set()
        else:
            self._channel.put(last)

    def send_message(self, message: dict[str, Any]) -> None:
        """Send something that belongs to no run."""
        self._channel.put((0, message))

    def _send_forever(self) -> None:
        while True:
            self._wait()
            try:
                with self._send_lock:
                    sent_items = self._send_all()
                if sent_items > BURST_DELTAS:
                    time.sleep(BURST_PAUSE_S)
            except OSError:
                # The parent has closed the socket; the main thread notices it too, and unloads.
                self._is_closed = True
                self._has_room.set()
                return
            except Exception:
                _exit_on_failure()

    def _send_all(self) -> int:
        """Send everything pending and return the number of items.

        It is sent in several frames, so that the end of an aborted run can be sent between them.

        Raises OSError.
        """
        batch = self._drain()
        if self._unsent:
            unsent, self._unsent = self._unsent, b""
            self._sock.sendall(unsent)
        start = 0
        while start < len(batch) or self._urgent.pending:
            part = [*self._urgent.drain(), *batch[start : start + MAX_FRAME_DELTAS]]
            self._sock.sendall(encode(_build_frame(part)))
            start += MAX_FRAME_DELTAS
        self._last_send_s = time.monotonic()
        return len(batch)

    def _drain(self) -> list[tuple[int, Any]]:
        """Take everything pending, and wake the producers that wait for room."""
        # Before draining: a token that is put in between sets it again.
        self._flush_by_s = 0.0
        items = self._channel.drain()
        if not self._has_room.is_set():
            self._has_room.set()
        return items

    def _wait(self) -> None:
        """Wait until an item must be sent at once, or delayed items are due."""
        while not self._wakeup.wait(self._poll_s):
            requested_s = self._requested_poll_s
            # From here on a producer wakes this thread; items that were put before are seen below.
            self._poll_s = _NEVER_S
            pending, left_s = len(self._channel.pending), self._flush_by_s - time.monotonic()
            if pending and left_s > 0:
                self._poll_s = min(left_s, requested_s)
                continue
            self._poll_s, self._requested_poll_s = requested_s, _NEVER_S
            if pending:
                return
        self._wakeup.clear()


def _build_frame(batch: list[tuple[int, Any]]) -> dict[str, Any]:
    """Group a batch by run; a run's end always comes after its deltas, so the order is kept."""
    texts: dict[int, list[str]] = {}
    logprobs: dict[int, list[Any]] = {}
    frame: dict[str, Any] = {}
    for run_id, item in batch:
        if type(item) is Delta:
            run_texts = texts.get(run_id)
            if run_texts is None:
                run_texts = texts[run_id] = []
            run_texts.append(item.text)
            if (logprob := item.logprob) is not None:
                # JSON has no bytes; Latin-1 has one character for each byte.
                raw = logprob.raw.decode("latin-1")
                values = (logprob.token, logprob.logprob, logprob.top, raw, logprob.offset)
                logprobs.setdefault(run_id, []).append([len(run_texts) - 1, *values])
        elif isinstance(item, Finish):
            frame.setdefault("finished", []).append([run_id, item.to_wire()])
        elif isinstance(item, EngineError):
            frame.setdefault("failed", []).append([run_id, item.to_wire()])
        else:
            frame.setdefault("messages", []).append(item)
    if texts:
        frame["deltas"] = [[key, run_texts, logprobs.get(key)] for key, run_texts in texts.items()]
    return frame


def _exit_on_failure() -> NoReturn:
    """End a host that cannot send its output; the parent starts another one."""
    traceback.print_exc()
    exit_now(1)
