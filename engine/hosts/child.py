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
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from engine.backends import build
from engine.errors import EngineError, ModelLoadFailed
from engine.hosts.frame_sender import Outbox, exit_now
from engine.hosts.frames import FrameDecoder
from engine.hosts.memory_limit import limit_memory
from engine.request import SamplingParams, prompt_from_wire
from engine.runner import Runner

# How long unloading may take once the parent is gone or has asked for it.
UNLOAD_S = 5.0
_PR_SET_PDEATHSIG = 1


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
        limit_memory(config["memory_mb"])
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
            case {"run": run_id, "prompt": prompt, "sampling": sampling, "whole": whole}:
                if whole:
                    outbox.gather(run_id)
                runner.start(run_id, prompt_from_wire(prompt), SamplingParams.from_wire(sampling))
            case {"abort": run_id}:
                runner.abort(run_id)
                outbox.stir()
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
