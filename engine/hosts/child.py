"""The engine host process: a backend alone with its native library.

Started by `ProcessHost` as `python -m engine.hosts.child FD PARENT_PID`. It reads orders from the
socket on its main thread, runs the backend on others, and sends what comes of it from one more.
It ends when told to, when the socket closes, or when its parent dies, whatever the backend does.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

from engine.backends import build
from engine.channel import DeltaChannel
from engine.errors import EngineError, ModelLoadFailed
from engine.hosts.frames import FrameDecoder, encode
from engine.output import Delta, Finish
from engine.request import SamplingParams, prompt_from_wire
from engine.runner import Runner

# Deltas that may wait for the parent to read. All that is said waits in one line, ends too, so a
# long one keeps a request's end, and its slot, from everybody while others chatter.
MAX_PENDING = 8_000
# A token after so long a silence is sent by the thread that brings it: at a reader's pace there is
# nothing to gather, and waking another thread costs half of what is left of a token's way.
QUIET_S = 0.001
# More in one frame is a burst: the sender then lets more gather, and leaves the interpreter, which
# they share, to the producer.
BURST = 16
GATHER_S = 0.001
# How long unloading may take once the parent is gone or has asked for it.
UNLOAD_S = 5.0
_PR_SET_PDEATHSIG = 1


class Outbox:
    """Sends what the runs produce, as much as has gathered in one frame.

    Threads of the runner put, one sender thread drains: under a burst the frames grow instead of
    the number of wake-ups. A lone token is sent by the thread that puts it, if that can be done
    without waiting; whoever sends holds `_sending`, so order is kept. When the parent does not
    read for a while the producers wait, which slows the model down and nobody else: clients are
    read from in the parent, never here.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._awake = threading.Event()
        self._room = threading.Event()
        self._room.set()
        self._parted = False
        self._sending = threading.Lock()
        self._sent_s = 0.0
        # The end of a frame that the socket had no room for.
        self._rest = b""
        self._channel: DeltaChannel[tuple[int, Any]] = DeltaChannel(self._awake.set)
        threading.Thread(target=self._send_forever, name="outbox", daemon=True).start()

    def delta(self, run_id: int, delta: Delta) -> None:
        """One token's text."""
        lone = delta.logprob is None and time.monotonic() - self._sent_s > QUIET_S
        if lone and self._send_now(run_id, delta):
            return
        self._channel.put((run_id, delta))
        if len(self._channel) > MAX_PENDING:
            self._room.clear()
            # Looked at again: room made before the line above would be waited for in vain.
            if len(self._channel) > MAX_PENDING and not self._parted:
                self._room.wait()

    def _send_now(self, run_id: int, delta: Delta) -> bool:
        if len(self._channel) or not self._sending.acquire(blocking=False):
            return False
        try:
            # Looked at again: what was put a moment ago comes first.
            if len(self._channel) or self._rest or self._parted:
                return False
            frame = encode({"deltas": [[run_id, [delta.text], None]]})
            sent = self._sock.send(frame, socket.MSG_DONTWAIT)
            self._rest = frame[sent:]
            self._sent_s = time.monotonic()
        except (OSError, TypeError, ValueError):
            # No room, nobody there, no JSON: the sender waits or says what there is to say.
            return False
        finally:
            self._sending.release()
        if self._rest:
            self._awake.set()
        return True

    def finished(self, run_id: int, finish: Finish) -> None:
        """The run has ended."""
        self._channel.put((run_id, finish))

    def failed(self, run_id: int, error: EngineError) -> None:
        """The run has failed."""
        self._channel.put((run_id, error))

    def message(self, message: dict[str, Any]) -> None:
        """Send something that belongs to no run."""
        self._channel.put((0, message))

    def _send_forever(self) -> None:
        while True:
            self._awake.wait()
            self._awake.clear()
            try:
                with self._sending:
                    batch = self._channel.drain()
                    self._room.set()
                    rest, self._rest = self._rest, b""
                    self._sock.sendall(rest + encode(_frame(batch)) if batch else rest)
                    self._sent_s = time.monotonic()
                if len(batch) > BURST:
                    time.sleep(GATHER_S)
            except OSError:
                # Nobody reads any more; the main thread finds out too and unloads.
                self._parted = True
                self._room.set()
                return
            except Exception:
                # A host that cannot tell what it does is of no use: the parent starts another.
                traceback.print_exc()
                exit_now(1)


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


def exit_now(code: int) -> NoReturn:
    """End the process at once: threads that are stuck in a native library cannot be joined."""
    os._exit(code)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, even if it is wedged by then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        exit_now(0)


def ignore_signals() -> None:
    """Leave Ctrl-C and SIGTERM, which reach the whole group, to the parent: it drains first.

    Called again after loading, because llama.cpp's server installs handlers of its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _orders(sock: socket.socket) -> Iterator[Any]:
    decoder = FrameDecoder()
    # A parent that dies with something unread resets the connection instead of closing it.
    with suppress(ConnectionResetError):
        while data := sock.recv(65536):
            yield from decoder.feed(data)


def serve(sock: socket.socket) -> None:
    """Load the backend that the first frame describes, then carry out orders until told to stop."""
    outbox = Outbox(sock)
    orders = _orders(sock)
    config = next(orders)
    try:
        runner = Runner(build(config["backend"], config["options"]), outbox)
        capabilities = runner.load()
    except Exception as error:
        failure: Exception = error
        if not isinstance(failure, EngineError):
            traceback.print_exc()
            failure = ModelLoadFailed(f"the engine did not load: {error}")
        outbox.message({"load_failed": failure.to_wire()})
        ignore_signals()
        # Until the parent, who must get to read this, has done so and asks for the end.
        next(orders, None)
        return
    outbox.message({"loaded": capabilities.to_wire()})
    ignore_signals()
    for order in orders:
        match order:
            case {"run": run_id, "prompt": prompt, "sampling": sampling}:
                runner.start(run_id, prompt_from_wire(prompt), SamplingParams.from_wire(sampling))
            case {"abort": run_id}:
                runner.abort(run_id)
            case {"call": call_id, "op": op, "payload": payload}:
                argument = prompt_from_wire(payload)

                def answer(result: Any, error: EngineError | None, call_id: int = call_id) -> None:
                    wire = error and error.to_wire()
                    outbox.message({"answer": call_id, "result": result, "error": wire})

                runner.call(op, argument, answer)
            case {"close": _}:
                break
    # Also when the socket closed. What is wedged in the library must not keep the process.
    watchdog = threading.Timer(UNLOAD_S, exit_now, (1,))
    watchdog.daemon = True
    watchdog.start()
    runner.close()


def main() -> None:
    """Run the host on the socket and for the parent given as arguments."""
    faulthandler.enable()
    ignore_signals()
    die_with_parent(int(sys.argv[2]))
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except Exception:
        # Not left to the interpreter, which would wait for threads that are stuck in the library.
        traceback.print_exc()
        exit_now(1)
    exit_now(0)


if __name__ == "__main__":
    main()
