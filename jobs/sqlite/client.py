"""The store process as the event loop sees it: a socket to write to and a child to look after."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.errors import StoreUnavailable, StoreUnusable
from jobs.failpoints import hit
from jobs.sqlite.database_file import pin
from jobs.sqlite.frames import FrameDecoder

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
# A commit of which nothing is heard for so long: the disk hangs.
_HANGS_S = 30.0
# To die when it is killed.
_KILLED_S = 1.0


class StoreLink:
    """One store process at a time; owned by a journal.

    Nothing here waits for a child in a way that holds up the loop: one that hangs in its disk does
    not even die when it is killed.
    """

    def __init__(self, path: Path, lock_wait_s: float) -> None:
        self._path = path
        self._lock_wait_s = lock_wait_s
        # Of the database that was opened first: no other one is opened later.
        self._inode: int | None = None
        # Keeps the inode from being reused while no store process has the database open.
        self._pin = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._decoder = FrameDecoder()
        self._inbox: list[Any] = []
        # Killed, and not dead yet.
        self._gone: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int | None:
        """The store process, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def up(self) -> bool:
        """Whether there is a process that has opened the database, as far as is known."""
        return self._sock is not None

    async def connect(self, *, check: bool) -> str | None:
        """Start the store process and have it open the database, checked or as it is.

        Returns why the disk takes nothing, if that is known already.

        Raises:
            StoreUnusable: the database cannot be used.
            StoreUnavailable: the process cannot be started.
            ConnectionError: the process ended.
        """
        self._reap()
        try:
            self._sock = self._spawn(check)
        except OSError as error:
            raise StoreUnavailable(f"the store process cannot be started: {error}") from error
        hit("journal-spawned")
        self._decoder = FrameDecoder()
        self._inbox = []
        message = await self.receive()
        if message[0] != "open":
            self.cut()
            raise StoreUnusable(message[1])
        self._keep_inode(message[1])
        trouble: str | None = message[2]
        return trouble

    def _keep_inode(self, inode: int | None) -> None:
        """Remember which file the database is; None if a full disk did not take it yet.

        Raises StoreUnusable if it was replaced already.
        """
        if inode is None or self._pin >= 0:
            return
        self._inode = inode
        try:
            self._pin = pin(self._path, inode)
        except OSError as error:
            self.cut()
            raise StoreUnusable(
                f"the job database {self._path.name} cannot be used: {error.strerror}"
            ) from error
        except StoreUnusable:
            self.cut()
            raise

    async def send(self, frame: bytes) -> None:
        """Send a frame. Raises ConnectionError."""
        if self._sock is None:
            raise ConnectionResetError("there is no store process")
        await asyncio.get_running_loop().sock_sendall(self._sock, frame)

    async def receive(self) -> Any:
        """Return the next message. Raises ConnectionError at the end of the store process."""
        if self._sock is None:
            raise ConnectionResetError("there is no store process")
        while not self._inbox:
            data = await asyncio.get_running_loop().sock_recv(self._sock, _READ_BYTES)
            if not data:
                raise ConnectionResetError("the store process has ended")
            self._inbox += self._decoder.feed(data)
        return self._inbox.pop(0)

    async def deliver(self, frame: bytes, number: int) -> Any:
        """Send a batch and return its answer: done, failed, or one cannot be sure.

        A store process that dies over it is followed by another, which is sent the same.
        """
        sent = 0
        said = ""
        for _ in range(2):
            try:
                async with asyncio.timeout(_HANGS_S):
                    if not self.up:
                        await self.connect(check=False)
                    hit("journal-sending")
                    sent += 1
                    await self.send(frame)
                    answer = await self.receive()
                if answer[0] == "done":
                    self._keep_inode(answer[2])
                hit("journal-answered")
            except TimeoutError:
                said = f"the job database {self._path.name} was not written in {_HANGS_S:g} s"
                self.cut()
                break
            except StoreUnavailable as error:
                said = str(error)
                break
            except ConnectionError:
                hit("journal-again")
                said = "the store process does not live long enough to write"
                self.cut()
            else:
                if answer[0] == "done" or sent == 1:
                    return answer
                # The one before may have written it, and died before it could say so.
                return ("unsure", *answer[1:])
        return ("unsure" if sent else "failed", number, said)

    def cut(self) -> None:
        """Let the store process go at once; what it has not answered may be written or not."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        process, self._process = self._process, None
        if process is not None:
            if (code := process.poll()) is not None:
                logger.error("the store process has ended with code %s", code)
            else:
                process.kill()
            self._gone.append(process)
        self._reap()

    async def close(self, limit_s: float) -> None:
        """Let the store process end by itself, as it does when its socket closes, or kill it."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        process, self._process = self._process, None
        if process is not None:
            self._gone.append(process)
        await asyncio.to_thread(_wait, self._gone, limit_s)
        for process in self._gone:
            if process.poll() is None:
                logger.error("the store process %d did not end in time", process.pid)
                process.kill()
        await asyncio.to_thread(_wait, self._gone, _KILLED_S)
        if self._pin >= 0:
            os.close(self._pin)
            self._pin = -1

    def _reap(self) -> None:
        """Forget the dead."""
        self._gone = [process for process in self._gone if process.poll() is None]

    def _spawn(self, check: bool) -> socket.socket:
        """Start the store process; return this side of its socket. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        # Without the working folder on the path: its packages are not ours.
                        "-P",
                        "-m",
                        "jobs.sqlite.server",
                        str(theirs.fileno()),
                        str(self._path.absolute()),
                        str(self._lock_wait_s),
                        "check" if check else "trust",
                        "" if self._inode is None else str(self._inode),
                    ],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": path},
                )
        except BaseException:
            ours.close()
            raise
        return ours


def _wait(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Wait for processes to end, but no longer than this in all."""
    deadline = time.monotonic() + limit_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return
