"""The event loop's connection to the store process: a socket and a child process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.child_processes import start_module
from common.failpoints import failpoint
from jobs.errors import StoreUnavailable, StoreUnusable
from jobs.sqlite.database_file import open_pinned
from jobs.sqlite.frames import build_decoder

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
# After so long without an answer to a batch, the disk hangs.
_BATCH_TIMEOUT_S = 30.0
# Time for a killed process to end.
_KILL_TIMEOUT_S = 1.0


class StoreClient:
    """Starts one store process at a time and exchanges messages with it; owned by a journal.

    No method blocks the event loop while a child ends: a process that hangs in a disk operation
    does not end even when it is killed.
    """

    def __init__(self, path: Path, lock_wait_s: float) -> None:
        self._path = path
        self._lock_wait_s = lock_wait_s
        # Inode of the database that was opened first; no other database is opened later.
        self._inode: int | None = None
        # Open descriptor that prevents reuse of the inode while no store process runs.
        self._pinned_fd = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._decoder = build_decoder()
        self._inbox: list[Any] = []
        # Closed or killed processes that have not ended yet.
        self._ending: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int | None:
        """The process id of the store process, if there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def is_connected(self) -> bool:
        """Whether there is a store process that has not been found to have ended."""
        return self._sock is not None

    async def connect(self, *, check: bool) -> str | None:
        """Start the store process, which opens the database; `check` verifies its integrity.

        Returns why the disk refuses writes, if that is already known.

        Raises:
            StoreUnusable: the database cannot be used.
            StoreUnavailable: the process cannot be started.
            ConnectionError: the process ended before it answered.
        """
        self._forget_ended()
        try:
            self._sock = self._spawn(check)
        except OSError as error:
            raise StoreUnavailable(f"the store process cannot be started: {error}") from error
        failpoint("journal-spawned")
        self._decoder = build_decoder()
        self._inbox = []
        message = await self.receive()
        if message[0] != "open":
            self.kill()
            raise StoreUnusable(message[1])
        self._pin_inode(message[1])
        write_error: str | None = message[2]
        return write_error

    def _pin_inode(self, inode: int | None) -> None:
        """Record the inode of the database and keep the file open.

        There is no `inode` if a full disk has prevented the creation of the file. Raises
        StoreUnusable if the file has already been replaced.
        """
        if inode is None or self._pinned_fd >= 0:
            return
        self._inode = inode
        try:
            self._pinned_fd = open_pinned(self._path, inode)
        except OSError as error:
            self.kill()
            raise StoreUnusable(
                f"the job database {self._path.name} cannot be used: {error.strerror}"
            ) from error
        except StoreUnusable:
            self.kill()
            raise

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises ConnectionError."""
        if self._sock is None:
            raise ConnectionResetError("there is no store process")
        await asyncio.get_running_loop().sock_sendall(self._sock, frame)

    async def receive(self) -> Any:
        """Return the next message. Raises ConnectionError if the store process has ended."""
        if self._sock is None:
            raise ConnectionResetError("there is no store process")
        while not self._inbox:
            data = await asyncio.get_running_loop().sock_recv(self._sock, _READ_BYTES)
            if not data:
                raise ConnectionResetError("the store process has ended")
            self._inbox += self._decoder.feed(data)
        return self._inbox.pop(0)

    async def write_batch(self, frame: bytes, number: int) -> Any:
        """Send a batch and return the answer: (kind, number, detail).

        The kind is "done", "failed", or "unsure" if the batch may have been written. If the store
        process ends meanwhile, a new one is started and receives the same batch.
        """
        attempts = 0
        error_text = ""
        for _ in range(2):
            try:
                async with asyncio.timeout(_BATCH_TIMEOUT_S):
                    if not self.is_connected:
                        await self.connect(check=False)
                    failpoint("journal-sending")
                    attempts += 1
                    await self.send(frame)
                    answer = await self.receive()
                if answer[0] == "done":
                    self._pin_inode(answer[2])
                failpoint("journal-answered")
            except TimeoutError:
                error_text = (
                    f"the job database {self._path.name} was not written in {_BATCH_TIMEOUT_S:g} s"
                )
                self.kill()
                break
            except StoreUnavailable as error:
                error_text = str(error)
                break
            except ConnectionError:
                failpoint("journal-again")
                error_text = "the store process does not live long enough to write"
                self.kill()
            else:
                if answer[0] == "done" or attempts == 1:
                    return answer
                # The previous process may have written it and ended before it answered.
                return ("unsure", *answer[1:])
        return ("unsure" if attempts else "failed", number, error_text)

    def kill(self) -> None:
        """Kill the store process; batches that it has not answered may or may not be written."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        process, self._process = self._process, None
        if process is not None:
            if (code := process.poll()) is not None:
                logger.error("the store process has ended with code %s", code)
            else:
                process.kill()
            self._ending.append(process)
        self._forget_ended()

    async def close(self, limit_s: float) -> None:
        """Close the socket, at which the store process ends; kill it if it does not."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        process, self._process = self._process, None
        if process is not None:
            self._ending.append(process)
        await asyncio.to_thread(_wait_for_all, self._ending, limit_s)
        for process in self._ending:
            if process.poll() is None:
                logger.error("the store process %d did not end in time", process.pid)
                process.kill()
        await asyncio.to_thread(_wait_for_all, self._ending, _KILL_TIMEOUT_S)
        if self._pinned_fd >= 0:
            os.close(self._pinned_fd)
            self._pinned_fd = -1

    def _forget_ended(self) -> None:
        """Drop the processes that have ended."""
        self._ending = [process for process in self._ending if process.poll() is None]

    def _spawn(self, check: bool) -> socket.socket:
        """Start the store process and return our end of its socket. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                self._process = start_module(
                    "jobs.sqlite.server",
                    str(theirs.fileno()),
                    str(self._path.absolute()),
                    str(self._lock_wait_s),
                    "check" if check else "trust",
                    "" if self._inode is None else str(self._inode),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                )
        except BaseException:
            ours.close()
            raise
        return ours


def _wait_for_all(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Wait until processes have ended, at most `limit_s` seconds in total."""
    deadline = time.monotonic() + limit_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return
