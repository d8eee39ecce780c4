"""The engine host process: a backend alone with its native library.

Started by `ProcessHost` as `python -m engine.hosts.child FD PARENT_PID`. It reads orders from the
socket on its main thread, runs the backend on others, and sends what comes of it from one more.
It ends when told to, when the socket closes, or when its parent dies, whatever the backend does.
"""

from __future__ import annotations

import faulthandler
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from engine.backends import build
from engine.errors import EngineError, ModelLoadFailed
from engine.hosts.frame_sender import FrameSender
from engine.hosts.frames import FrameDecoder
from engine.hosts.memory_limit import limit_memory
from engine.hosts.process_utils import die_with_parent, exit_now, ignore_signals
from engine.request import SamplingParams, prompt_from_wire
from engine.runner import Runner

# How long unloading may take once the parent is gone or has asked for it.
UNLOAD_S = 5.0


def _orders(sock: socket.socket) -> Iterator[Any]:
    decoder = FrameDecoder()
    # A parent that dies with something unread resets the connection instead of closing it.
    with suppress(ConnectionResetError):
        while data := sock.recv(65536):
            yield from decoder.feed(data)


def serve(sock: socket.socket) -> None:
    """Load the backend that the first frame describes, then carry out orders until told to stop."""
    frame_sender = FrameSender(sock)
    orders = _orders(sock)
    config = next(orders)
    try:
        limit_memory(config["memory_mb"])
        runner = Runner(build(config["backend"], config["options"]), frame_sender)
        capabilities = runner.load()
    except Exception as error:
        failure: Exception = error
        if not isinstance(failure, EngineError):
            traceback.print_exc()
            failure = ModelLoadFailed(f"the engine did not load: {error}")
        frame_sender.message({"load_failed": failure.to_wire()})
        ignore_signals()
        # Until the parent, who must get to read this, has done so and asks for the end.
        next(orders, None)
        return
    frame_sender.message({"loaded": capabilities.to_wire()})
    ignore_signals()
    for order in orders:
        match order:
            case {"run": run_id, "prompt": prompt, "sampling": sampling, "buffered": buffered}:
                if buffered:
                    frame_sender.buffer_run(run_id)
                runner.start(run_id, prompt_from_wire(prompt), SamplingParams.from_wire(sampling))
            case {"abort": run_id}:
                runner.abort(run_id)
                frame_sender.wake_producers()
            case {"call": call_id, "op": op, "payload": payload}:
                argument = prompt_from_wire(payload)

                def answer(result: Any, error: EngineError | None, call_id: int = call_id) -> None:
                    wire = error and error.to_wire()
                    frame_sender.message({"answer": call_id, "result": result, "error": wire})

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
