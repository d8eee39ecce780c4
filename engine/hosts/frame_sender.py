"""The way out of the engine's process: what its runs say, gathered into frames."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from typing import Any, NoReturn

import orjson

from engine.channel import DeltaChannel
from engine.errors import EngineError
from engine.hosts.frames import add_header, encode
from engine.hosts.process_utils import exit_now
from engine.output import Delta, Finish

# Deltas that may wait for the parent to read. All that is said waits in one line, ends too, but for
# those of aborted runs: a slot that was taken back must not wait behind the chatter of others.
MAX_PENDING = 8_000
# Deltas in a frame, and bytes that the kernel may hold (it takes twice of what it is told): such an
# end comes behind no more than that.
MAX_FRAME = 1_000
_KERNEL_BYTES = 64 * 1024
# A token after so long a silence is sent by the thread that brings it: at a reader's pace there is
# nothing to gather, and waking another thread costs half of what is left of a token's way.
QUIET_S = 0.001
# Tokens of a run that follow one another sooner share frames, and none waits longer than LATE_S for
# another: nobody sees them one by one, and each frame takes time from the model, as below.
PACE_S = 1 / 30
LATE_S = 0.05
# A young run sends more often: it waits no longer for another token than this share of its age, so
# that a short answer of a fast model is a stream as well, and not one frame or two.
AGE_SHARE = 1 / 8
# More in one frame is a burst: the sender then lets more gather, and leaves the interpreter, which
# they share, to the producer.
BURST = 16
GATHER_S = 0.001
# What nobody reads along gathers for so long: a frame for each token of it would take time from the
# model, whose threads wait for each other. Any STALL_TIMEOUT_S has to be longer than this.
WHOLE_S = 0.2
# So much of it is sent sooner.
MOST_GATHERED = 1_000
_NEVER_S = threading.TIMEOUT_MAX
# As JSON of `_frame`: one token of one run, without log-probability.
_ALONE = b'{"deltas":[[%d,[%b],null]]}'


class FrameSender:
    """Sends what the runs produce, as much as has gathered in one frame.

    Threads of the runner put, one sender thread drains: under a burst the frames grow instead of
    the number of wake-ups. A lone token, and a run's end, are sent with all that waits by then by
    the thread that puts them, if that can be done without waiting; whoever sends holds `_sending`,
    so order is kept, and only the end of an aborted run comes before what it still had to say,
    which nobody wants any more. Tokens of a fast run, and of answers that are wanted `whole`, wait
    for others to share a frame with. When the parent does not read for a while the producers wait,
    which slows the model down and nobody else: clients are read from in the parent, never here.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        self._awake = threading.Event()
        self._room = threading.Event()
        self._room.set()
        self._parted = False
        self._sending = threading.Lock()
        self._sent_s = 0.0
        # The end of a frame that the socket had no room for.
        self._rest = b""
        # Ends of aborted runs, which come before all that waits.
        self._first: DeltaChannel[tuple[int, Any]] = DeltaChannel(self._awake.set)
        # Runs that nobody reads along.
        self._whole: set[int] = set()
        # When each run's first token came, and its last one that did not wait for another.
        self._begun_s: dict[int, float] = {}
        self._told_s: dict[int, float] = {}
        # After how long the sender looks by itself, and what was asked since it has looked.
        self._tick_s = _NEVER_S
        self._asked_s = _NEVER_S
        # Until when tokens of fast runs may wait, if any do.
        self._due_s = 0.0
        self._channel: DeltaChannel[tuple[int, Any]] = DeltaChannel(self._awake.set)
        threading.Thread(target=self._send_forever, name="outbox", daemon=True).start()

    def buffer_run(self, run_id: int) -> None:
        """Send the tokens of a run in few frames, for its answer is wanted whole."""
        self._whole.add(run_id)

    def delta(self, run_id: int, delta: Delta) -> None:
        """One token's text: sent at once, or with the next one of a fast run."""
        item, pending = (run_id, delta), self._channel.pending
        if run_id in self._whole:
            self._put_late(item, WHOLE_S)
        elif len(pending) > BURST:
            self._channel.put(item)
        elif self._is_early(run_id, now_s := time.monotonic()):
            self._due_s = self._due_s or now_s + LATE_S
            self._put_late(item, LATE_S)
        else:
            self._told_s[run_id] = now_s
            if delta.logprob is None and now_s - self._sent_s > QUIET_S:
                self._send_now(item)
            else:
                # One of many that come now, or more to write than the model should wait for.
                self._channel.put(item)
        if len(pending) > MAX_PENDING:
            self._wait_for_room()

    def _is_early(self, run_id: int, now_s: float) -> bool:
        """Return whether a run has sent so recently that its next token shares a frame."""
        last_s = self._told_s.get(run_id)
        if last_s is None:
            self._begun_s[run_id] = now_s
            return False
        return now_s - last_s < min(PACE_S, AGE_SHARE * (now_s - self._begun_s[run_id]))

    def _wait_for_room(self) -> None:
        self._room.clear()
        # Looked at again: room made before the line above would be waited for in vain.
        if len(self._channel.pending) > MAX_PENDING and not self._parted:
            self._awake.set()
            self._room.wait()
        else:
            # It may be another producer's that was cleared.
            self._room.set()

    def _put_late(self, item: tuple[int, Any], late_s: float) -> None:
        """Leave an item to the next frame, or to the sender, which looks once in `late_s`."""
        if len(self._channel.pending) >= MOST_GATHERED:
            self._channel.put(item)
            return
        self._channel.append_without_wake(item)
        if self._asked_s > late_s:
            self._asked_s = late_s
        if self._tick_s > late_s:
            self._tick_s = late_s
            self._awake.set()

    def wake_producers(self) -> None:
        """Wake the producers that wait for room: the run of one of them has been aborted."""
        self._room.set()

    def finished(self, run_id: int, finish: Finish) -> None:
        """The run has ended."""
        self._end(run_id, finish)

    def aborted(self, run_id: int, end: Finish | EngineError) -> None:
        """The run has ended after an abort."""
        self._forget(run_id)
        self._first.append_without_wake((run_id, end))
        self._send_now()

    def failed(self, run_id: int, error: EngineError) -> None:
        """The run has failed."""
        self._end(run_id, error)

    def _end(self, run_id: int, end: Finish | EngineError) -> None:
        self._forget(run_id)
        self._send_now((run_id, end))

    def _forget(self, run_id: int) -> None:
        self._whole.discard(run_id)
        self._told_s.pop(run_id, None)
        self._begun_s.pop(run_id, None)

    def _send_now(self, last: tuple[int, Any] | None = None) -> None:
        """Send all that waits and `last`, on this thread where that need not wait for anything."""
        if not self._sending.acquire(blocking=False):
            self._leave(last)
            return
        try:
            first, pending = self._first.pending, self._channel.pending
            if self._rest or self._parted or len(pending) > MAX_FRAME:
                self._leave(last)
                return
            if last is None or first or pending or type(last[1]) is not Delta:
                said = [] if last is None else [last]
                frame = encode(_frame([*self._first.drain(), *self._drain(), *said]))
            else:
                # Alone it finds all caches cold, and each step takes ten times as long.
                frame = add_header(_ALONE % (last[0], orjson.dumps(last[1].text)))
            self._rest = frame
            sent = self._sock.send(frame, socket.MSG_DONTWAIT)
            self._rest = frame[sent:]
            self._sent_s = time.monotonic()
        except OSError:
            # No room, or nobody there: the sender waits, or finds out as well.
            self._awake.set()
        except Exception:
            _fail()
        finally:
            self._sending.release()
        if self._rest:
            self._awake.set()

    def _leave(self, last: tuple[int, Any] | None) -> None:
        """Have the sender send what waits, and `last` behind it."""
        if last is None:
            self._awake.set()
        else:
            self._channel.put(last)

    def message(self, message: dict[str, Any]) -> None:
        """Send something that belongs to no run."""
        self._channel.put((0, message))

    def _send_forever(self) -> None:
        while True:
            self._wait()
            try:
                with self._sending:
                    sent = self._send_all()
                if sent > BURST:
                    time.sleep(GATHER_S)
            except OSError:
                # Nobody reads any more; the main thread finds out too and unloads.
                self._parted = True
                self._room.set()
                return
            except Exception:
                _fail()

    def _send_all(self) -> int:
        """Send what waits, in frames between which an aborted run's end can come; return how much.

        Raises OSError.
        """
        batch = self._drain()
        if self._rest:
            rest, self._rest = self._rest, b""
            self._sock.sendall(rest)
        at = 0
        while at < len(batch) or self._first.pending:
            part = [*self._first.drain(), *batch[at : at + MAX_FRAME]]
            self._sock.sendall(encode(_frame(part)))
            at += MAX_FRAME
        self._sent_s = time.monotonic()
        return len(batch)

    def _drain(self) -> list[tuple[int, Any]]:
        """Take all that waits, and let those go on that wait for room."""
        # Before: what comes in between sets it anew.
        self._due_s = 0.0
        waiting = self._channel.drain()
        if not self._room.is_set():
            self._room.set()
        return waiting

    def _wait(self) -> None:
        """Return when there is something to send: something urgent, or what has waited enough."""
        while not self._awake.wait(self._tick_s):
            asked_s = self._asked_s
            # Who puts something from here on wakes this thread; what was put before is seen below.
            self._tick_s = _NEVER_S
            waiting, left_s = len(self._channel.pending), self._due_s - time.monotonic()
            if waiting and left_s > 0:
                self._tick_s = min(left_s, asked_s)
                continue
            self._tick_s, self._asked_s = asked_s, _NEVER_S
            if waiting:
                return
        self._awake.clear()


def _frame(batch: list[tuple[int, Any]]) -> dict[str, Any]:
    """Group a batch by run; a run's end always comes after its deltas, so order is kept."""
    texts: dict[int, list[str]] = {}
    logprobs: dict[int, list[Any]] = {}
    frame: dict[str, Any] = {}
    for run_id, item in batch:
        if type(item) is Delta:
            of_run = texts.get(run_id)
            if of_run is None:
                of_run = texts[run_id] = []
            of_run.append(item.text)
            if (logprob := item.logprob) is not None:
                # JSON has no bytes; Latin-1 has a character for each.
                raw = logprob.raw.decode("latin-1")
                said = (logprob.token, logprob.logprob, logprob.top, raw, logprob.offset)
                entry = [len(of_run) - 1, *said]
                logprobs.setdefault(run_id, []).append(entry)
        elif isinstance(item, Finish):
            frame.setdefault("finished", []).append([run_id, item.to_wire()])
        elif isinstance(item, EngineError):
            frame.setdefault("failed", []).append([run_id, item.to_wire()])
        else:
            frame.setdefault("messages", []).append(item)
    if texts:
        frame["deltas"] = [[key, of_run, logprobs.get(key)] for key, of_run in texts.items()]
    return frame


def _fail() -> NoReturn:
    """End a host that cannot tell what it does: it is of no use, and the parent starts another."""
    traceback.print_exc()
    exit_now(1)
