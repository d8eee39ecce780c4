"""The process that a backend runs in: how it is started, ended and described."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from common.child_processes import OWN_PROCESS_VARIABLE, describe_exit, start_module
from engine.hosts.output_tail import OutputTail

# How llama.cpp's threads wait for one another; the policy is the variable that users set.
_POLICY = "OMP_WAIT_POLICY"
_DEFAULT_WAIT_ENV = {_POLICY: "PASSIVE", "GOMP_SPINCOUNT": "300"}
# A child that has closed its socket gets this long to exit before it is killed.
_EXIT_GRACE_S = 1.0
_EXIT_POLL_S = 0.01
_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
# How long to wait for the last lines of a process that has ended. They are in the pipe already, but
# a process that it started may keep the pipe open.
_LAST_LINES_TIMEOUT_S = 0.5
# A child that is stuck in a driver does not even end by SIGKILL: it is left behind after this long.
KILL_TIMEOUT_S = 30.0


class EngineProcess:
    """A running `engine.hosts.child`, which has been sent its configuration.

    `socket` is this side's end of the connection; its reader closes it.
    """

    def __init__(
        self,
        config: bytes,
        folder: str,
        output_tail: OutputTail,
        shared_files: Sequence[int] = (),
    ) -> None:
        """Start the process, which inherits the descriptors in `shared_files`.

        Raises OSError, or RuntimeError if no thread can be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._popen = start_process(
                    "engine.hosts.child",
                    str(theirs.fileno()),
                    folder=folder,
                    pass_fds=(theirs.fileno(), *shared_files),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            self._listen(output_tail)
        except BaseException:
            ours.close()
            raise
        self.socket = ours
        self._output_tail = output_tail
        self._started_at = time.monotonic()
        # If the child has died already, the reader of the socket notices it.
        with suppress(OSError):
            ours.sendall(config)

    def _listen(self, output_tail: OutputTail) -> None:
        assert self._popen.stdout is not None  # noqa: S101 - opened as a pipe above
        try:
            output_tail.listen(self._popen.stdout)
        except BaseException:
            self._popen.kill()
            self._popen.wait()
            self._popen.stdout.close()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def age_s(self) -> float:
        """How many seconds ago it was started."""
        return time.monotonic() - self._started_at

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._popen.poll()

    @property
    def has_crashed(self) -> bool:
        """Whether a fault ended the process, and not a signal from outside."""
        code = self._popen.poll()
        return code is not None and -code in _FAULTS

    def kill(self) -> None:
        """Send SIGKILL if the process is still running."""
        if self._popen.poll() is None:
            self._popen.kill()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait on this thread until the process has ended. Raises subprocess.TimeoutExpired."""
        self._popen.wait(timeout_s)

    def end(self, grace_s: float, kill_timeout_s: float = 0.0) -> None:
        """Wait up to `grace_s` seconds for the process to exit, then kill it; blocks this thread.

        A process that is stuck in a driver can outlive the kill: this method waits for it for
        `kill_timeout_s` seconds more, then returns.
        """
        try:
            self.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.wait(kill_timeout_s)

    async def wait_for_exit(self) -> str:
        """Wait for the exit and the last output, and return how the process ended.

        Kills a process that has only closed its socket, after a moment.
        """
        kill_at = time.monotonic() + _EXIT_GRACE_S
        give_up_at = kill_at + KILL_TIMEOUT_S
        # Polled, and not awaited in a thread: a machine in trouble may have no thread to give.
        while (code := self.returncode) is None:
            now = time.monotonic()
            if now > give_up_at:
                return f"the engine process {self.pid} did not end, even by SIGKILL"
            if now > kill_at:
                self.kill()
            await asyncio.sleep(_EXIT_POLL_S)
        give_up_at = time.monotonic() + _LAST_LINES_TIMEOUT_S
        while not self._output_tail.is_complete:
            if time.monotonic() > give_up_at:
                break
            await asyncio.sleep(_EXIT_POLL_S)
        return f"the engine process {describe_exit(code)}"


def thread_wait_env(known: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that set how llama.cpp's threads wait for one another.

    Leaves out the variables that `known` has. The threads wait hundreds of times per token.
    Sleeping each time costs a quarter of the throughput, and endless spinning costs as much, or far
    more as soon as another program needs a core. So they spin for some 15 µs and then sleep
    (decision 15).
    """
    if _POLICY in known:
        return {}
    return {name: value for name, value in _DEFAULT_WAIT_ENV.items() if name not in known}


def start_process(
    module: str,
    *arguments: str,
    folder: str,
    variables: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a module with this process's id as its last argument. Raises OSError.

    `folder` is its folder for temporary files, and `variables` go into its environment.
    """
    own = {**thread_wait_env(os.environ), "TMPDIR": folder, OWN_PROCESS_VARIABLE: "1"}
    merged = {**own, **(variables or {})}
    return start_module(module, *arguments, str(os.getpid()), variables=merged, **options)
