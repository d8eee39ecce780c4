"""The engine host process: runs one backend with its native library.

Started by `ProcessSupervisor` as `python -m engine.hosts.child FD PARENT_PID`. Its main thread
reads commands from the socket, other threads run the backend, and one more sends the results. The
process ends on the command `close`, when the socket closes, or when its parent dies, whatever the
backend is doing.
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

from common.process_utils import (
    die_with_parent,
    exit_now,
    ignore_signals,
    raise_open_files_limit,
)
from engine.backends import build
from engine.backends.options import options_from_wire
from engine.errors import EngineError, ModelLoadFailed
from engine.hosts.frame_sender import FrameSender
from engine.hosts.frames import build_decoder
from engine.hosts.memory_limit import limit_memory
from engine.request import SamplingParams, prompt_from_wire
from engine.runs.runner import Runner

# How long unloading may take after `close` or the end of the connection.
UNLOAD_TIMEOUT_S = 5.0


def _read_commands(sock: socket.socket) -> Iterator[Any]:
    decoder = build_decoder()
    # A parent that dies with unread data resets the connection instead of closing it.
    with suppress(ConnectionResetError):
        while data := sock.recv(65536):
            yield from decoder.feed(data)


def serve(sock: socket.socket) -> None:
    """Load the backend that the first frame describes, then run commands until `close`."""
    frame_sender = FrameSender(sock)
    commands = _read_commands(sock)
    config = next(commands)
    try:
        limit_memory(config["memory_mb"])
        runner = Runner(
            build(options_from_wire(config["backend"], config["options"])), frame_sender
        )
        capabilities = runner.load()
    except Exception as error:
        failure: Exception = error
        if not isinstance(failure, EngineError):
            traceback.print_exc()
            failure = ModelLoadFailed(f"the engine did not load: {error}")
        frame_sender.send_message({"load_failed": failure.to_wire()})
        ignore_signals()
        # Keep the socket open until the parent has read the message and closes the connection.
        next(commands, None)
        return
    if config["try_run"]:
        runner.try_run()
    frame_sender.send_message({"loaded": capabilities.to_wire(), "has_run": config["try_run"]})
    ignore_signals()
    _run_commands(commands, runner, frame_sender)
    # Also when the socket has closed: a stuck library must not keep the process alive.
    watchdog = threading.Timer(UNLOAD_TIMEOUT_S, exit_now, (1,))
    watchdog.daemon = True
    watchdog.start()
    runner.close()


def _run_commands(
    commands: Iterator[dict[str, Any]], runner: Runner, frame_sender: FrameSender
) -> None:
    """Run commands until `close`, or until the socket is closed."""
    for command in commands:
        match command:
            case {"run": run_id, "prompt": prompt, "sampling": sampling, "buffered": buffered}:
                if buffered:
                    frame_sender.buffer_run(run_id)
                runner.start(run_id, prompt_from_wire(prompt), SamplingParams.from_wire(sampling))
            case {"abort": run_id}:
                runner.abort(run_id)
                frame_sender.wake_producers()
            case {"call": call_id, "op": op, "payload": payload}:
                argument = prompt_from_wire(payload)

                def reply(result: Any, error: EngineError | None, call_id: int = call_id) -> None:
                    wire = error and error.to_wire()
                    frame_sender.send_message({"answer": call_id, "result": result, "error": wire})

                runner.call(op, argument, reply)
            case {"close": _}:
                return


def main() -> None:
    """Run the host on the socket and for the parent given as arguments."""
    faulthandler.enable()
    ignore_signals()
    die_with_parent(int(sys.argv[2]))
    raise_open_files_limit()
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except Exception:
        # The interpreter's own exit would wait for threads that are stuck in the library.
        traceback.print_exc()
        exit_now(1)
    exit_now(0)


if __name__ == "__main__":
    main()
