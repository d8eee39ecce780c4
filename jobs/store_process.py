"""The store process: SQLite alone with its disk.

Started by `SqliteJournal` as `python -m jobs.store_process FD PATH`. A disk that is slow to sync
holds up this process and not the event loop that serves clients; beside a busy loop, as a thread,
a store starves (measured: 186-675 commits a second under four streams, 7,332 in a process).

One thread, one loop: take all that has arrived, write it in one transaction, answer. What arrives
during a commit is the next transaction: commits grow under load instead of queueing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import sqlite3
import sys
import time
from typing import Any

from jobs.failpoints import hit
from jobs.frames import FrameDecoder, encode
from jobs.schema import (
    APPEND,
    CHUNKS,
    FORGET,
    FORGET_CHUNKS,
    FORGET_INPUT,
    FORGET_OLD,
    JOBS,
    SAVE,
    SAVE_INPUT,
    open_database,
)

# A lock of somebody else's that lasts longer is answered with an error.
BUSY_S = 2.0
# How often a lock that somebody else has is looked at.
_LOCK_LOOK_S = 0.05
# Of rows, in one message.
_FRAME_BYTES = 8 << 20
_ROWS = 1_000
_READ_BYTES = 1 << 20
# Enough for one transaction; the rest waits for the next.
_MOST_BYTES = 64 << 20
# After so long without work the log is folded into the database.
_IDLE_S = 1.0


class StoreProcess:
    """Serves one socket until it closes."""

    def __init__(self, sock: socket.socket, path: str, lock_wait_s: float, check: bool) -> None:
        self._sock = sock
        self._path = path
        self._lock_wait_s = lock_wait_s
        self._check = check
        self._decoder = FrameDecoder()

    def run(self) -> None:
        """Open the database and serve."""
        try:
            lock = _lock(self._path, self._lock_wait_s)
            database = open_database(self._path, BUSY_S, check=self._check)
        except (OSError, sqlite3.Error, ValueError) as error:
            self._send(("unusable", _sentence(self._path, error)))
            return
        with lock:
            hit("store-opened")
            self._send(("open",))
            self._serve(database)
            database.close()

    def _serve(self, database: sqlite3.Connection) -> None:
        folded = True
        # Not `select`, which knows no descriptor past the first thousand.
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while True:
            if not poll.poll(None if folded else _IDLE_S * 1000):
                _fold(database)
                folded = True
                continue
            messages, open_ = self._arrived()
            writes = [message for message in messages if message[0] == "write"]
            if writes:
                hit("store-received")
                self._write(database, writes)
                folded = False
            if any(message[0] == "load" for message in messages):
                self._load(database)
            if not open_:
                return

    def _arrived(self) -> tuple[list[Any], bool]:
        """Return all that is there, and whether more may come."""
        messages: list[Any] = []
        size = 0
        while size < _MOST_BYTES:
            try:
                data = self._sock.recv(_READ_BYTES, 0 if not size else socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                return messages, False
            size += len(data)
            messages += self._decoder.feed(data)
        return messages, True

    def _load(self, database: sqlite3.Connection) -> None:
        try:
            hit("store-loading")
            found: list[Any] = []
            size = 0
            for row in database.execute(JOBS):
                chunks = database.execute(CHUNKS, (row[0],)).fetchall()
                found.append((row, chunks))
                size += (
                    len(row[6] or b"") + len(row[7] or b"") + sum(len(each[2]) for each in chunks)
                )
                if size > _FRAME_BYTES or len(found) >= _ROWS:
                    self._send(("rows", found))
                    found, size = [], 0
            self._send(("rows", found))
        except sqlite3.Error as error:
            self._send(("failed", _sentence(self._path, error)))
        else:
            self._send(("loaded",))
            hit("store-loaded")

    def _write(self, database: sqlite3.Connection, writes: list[Any]) -> None:
        try:
            database.execute("BEGIN IMMEDIATE")
            hit("store-begun")
            for _, _, forgotten, jobs, inputs, outdated, chunks in writes:
                database.executemany(SAVE, jobs)
                database.executemany(SAVE_INPUT, inputs)
                hit("store-saved")
                database.executemany(FORGET_OLD, outdated)
                database.executemany(APPEND, chunks)
                hit("store-appended")
                database.executemany(FORGET, forgotten)
                database.executemany(FORGET_INPUT, forgotten)
                database.executemany(FORGET_CHUNKS, forgotten)
                hit("store-forgotten")
            database.execute("COMMIT")
        except (sqlite3.Error, ValueError, OverflowError) as error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            hit("store-refused")
            for write in writes:
                self._send(("failed", write[1], _sentence(self._path, error)))
            return
        hit("store-committed")
        for write in writes:
            self._send(("done", write[1]))
        hit("store-answered")

    def _send(self, message: Any) -> None:
        try:
            self._sock.sendall(encode(message))
        except OSError:
            # Nobody reads any more; the next read says so.
            return


def _lock(path: str, wait_s: float) -> Any:
    """Keep a second server off the database, and name ours in the file. Raises OSError."""
    # Not truncated before the lock is held: it names the server that holds it.
    file = open(f"{path}.lock", "ab", buffering=0)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise OSError("another server uses it") from None
            # A lock can be waited for without end or not at all.
            time.sleep(_LOCK_LOOK_S)
        else:
            file.truncate(0)
            # On a full disk the lock alone has to do.
            with contextlib.suppress(OSError):
                file.write(str(os.getppid()).encode())
            return file


def _fold(database: sqlite3.Connection) -> None:
    try:
        hit("store-folding")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        hit("store-folded")
    except sqlite3.Error as error:
        # Tried again after the next write; until then the log is only longer.
        sys.stderr.write(f"the log of the job database was not folded: {error}\n")


def _sentence(path: str, error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"the job database {os.path.basename(path)} cannot be used: {said}"


def main() -> None:
    """Run the store on the socket and for the path given as arguments."""
    fd, path, lock_wait_s, check = sys.argv[1:]
    # They reach the whole group; the server drains first and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(fileno=int(fd))
    StoreProcess(sock, path, float(lock_wait_s), check == "check").run()


if __name__ == "__main__":
    main()
