"""The store process: SQLite alone with its disk.

Started by `SqliteJournal` as `python -m jobs.sqlite.server FD PATH`. A disk that is slow to sync
holds up this process and not the event loop that serves clients; beside a busy loop, as a thread,
a store starves (measured: 186-675 commits a second under four streams, 7,332 in a process).

One thread, one loop: take all that has arrived, write it in one transaction, answer. What arrives
during a commit is the next transaction: commits grow under load instead of queueing.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sqlite3
import sys
from pathlib import Path
from typing import Any

from jobs.errors import StoreUnusable
from jobs.failpoints import hit
from jobs.sqlite.database_file import FULL, MOVED, DatabaseFile
from jobs.sqlite.frames import FrameDecoder, encode
from jobs.sqlite.schema import (
    APPEND,
    CHUNKS,
    FORGET,
    FORGET_CHUNKS,
    FORGET_INPUT,
    FORGET_OLD,
    JOBS,
    SAVE,
    SAVE_INPUT,
    NoTables,
    is_full,
    open_database,
)

# A lock of somebody else's that lasts longer is answered with an error.
BUSY_S = 2.0
# Of rows, in one message.
_FRAME_BYTES = 8 << 20
_ROWS = 1_000
_READ_BYTES = 1 << 20
# Enough for one transaction; the rest waits for the next.
_MOST_BYTES = 64 << 20
# After so long without work the log is folded into the database.
_IDLE_S = 1.0


class StoreProcess:
    """Serves one socket until it closes.

    `inode` is that of the database which earlier store processes of the same server had open.
    """

    def __init__(
        self,
        sock: socket.socket,
        path: str,
        lock_wait_s: float,
        check: bool,
        inode: int | None = None,
    ) -> None:
        self._sock = sock
        self._path = path
        self._lock_wait_s = lock_wait_s
        self._check = check
        self._inode = inode
        self._decoder = FrameDecoder()
        # Why the disk takes nothing, if that is known before the first write.
        self._trouble: str | None = None
        # None as long as a full disk does not take a new file.
        self._file: DatabaseFile | None = None
        # None as long as a full disk does not take the tables of a new database.
        self._database: sqlite3.Connection | None = None
        self._failure: Exception | None = None

    def run(self) -> None:
        """Open the database and serve."""
        try:
            self._open()
        except StoreUnusable as error:
            self._send(("unusable", str(error)))
        except (OSError, sqlite3.Error, ValueError) as error:
            # Its traceback has a damaged database, which would be closed with it.
            self._failure = error
            self._send(("unusable", _sentence(self._path, error)))
        else:
            hit("store-opened")
            self._send(("open", self._known_inode(), self._trouble))
            self._serve()
            if self._database is not None and not self._has_moved():
                self._database.close()
                return
        # Closing a database folds its log into the file and removes the log by its name. Neither
        # is right for a damaged file, or where the names are those of another database by now.
        sys.stderr.flush()
        os._exit(0)

    def _open(self) -> None:
        """Open the database; on a full disk as far as reading it needs."""
        try:
            self._database = self._connect(check=self._check)
            return
        except NoTables as error:
            self._trouble = _sentence(self._path, error)
            return
        except OSError as error:
            if error.errno not in FULL or os.path.exists(self._path):
                raise
            self._trouble = _sentence(self._path, error)
            return
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
            self._trouble = _sentence(self._path, error)
        self._database = self._connect(check=self._check, exclusive=True)

    def _connect(self, *, check: bool, exclusive: bool = False) -> sqlite3.Connection:
        """Lock the database, if that is not done, and open it.

        Raises StoreUnusable, OSError, sqlite3.Error and ValueError.
        """
        if self._file is None:
            self._file = DatabaseFile.lock(Path(self._path), self._lock_wait_s, self._inode)
        return open_database(
            self._path,
            BUSY_S,
            check=check,
            exclusive=exclusive,
            on_recognised=self._file.make_private,
        )

    def _known_inode(self) -> int | None:
        return None if self._file is None else self._file.inode

    def _has_moved(self) -> bool:
        return self._file is not None and self._file.has_moved()

    def _serve(self) -> None:
        folded = True
        # Not `select`, which knows no descriptor past the first thousand.
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while True:
            if not poll.poll(None if folded else _IDLE_S * 1000):
                if self._database is not None:
                    _fold(self._database)
                folded = True
                continue
            messages, open_ = self._arrived()
            writes = [message for message in messages if message[0] == "write"]
            if writes:
                hit("store-received")
                self._write(writes)
                folded = False
            if any(message[0] == "load" for message in messages):
                self._load()
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

    def _load(self) -> None:
        database = self._database
        if database is None:
            self._send(("loaded",))
            return
        try:
            hit("store-loading")
            # A text that is not UTF-8 must not keep all other rows from being read.
            database.text_factory = _text
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
            database.text_factory = str
            self._send(("loaded",))
            hit("store-loaded")

    def _write(self, writes: list[Any]) -> None:
        if self._has_moved():
            self._refuse(writes, "failed")
            return
        if self._database is None:
            try:
                self._database = self._connect(check=False)
            except StoreUnusable as error:
                self._answer(writes, "failed", str(error))
                return
            except (OSError, sqlite3.Error, ValueError) as error:
                self._answer(writes, "failed", _sentence(self._path, error))
                return
        database = self._database
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
            self._answer(writes, "failed", _sentence(self._path, error))
            return
        hit("store-committed")
        if self._has_moved():
            # Written, but to a file that the next server may not find.
            self._refuse(writes, "unsure")
            return
        self._answer(writes, "done", self._known_inode())
        hit("store-answered")

    def _refuse(self, writes: list[Any], kind: str) -> None:
        """Answer that the database is not where it was."""
        if self._database is not None:
            # If only the log was removed, what is in it is now safe in the database.
            _fold(self._database)
        self._answer(writes, kind, MOVED.format(name=os.path.basename(self._path)))

    def _answer(self, writes: list[Any], kind: str, detail: str | int | None) -> None:
        """Answer every write: done, with the database's inode, or failed or unsure, with why."""
        for write in writes:
            self._send((kind, write[1], detail))

    def _send(self, message: Any) -> None:
        try:
            self._sock.sendall(encode(message))
        except OSError:
            # Nobody reads any more; the next read says so.
            return


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _fold(database: sqlite3.Connection) -> None:
    try:
        hit("store-folding")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        hit("store-folded")
    except sqlite3.Error as error:
        # Tried again after the next write; until then the log is only longer.
        sys.stderr.write(f"the log of the job database was not folded: {error}\n")


def _sentence(path: str, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    code = getattr(error, "sqlite_errorcode", None)
    is_damaged = code is not None and code & 0xFF == sqlite3.SQLITE_CORRUPT
    if is_damaged or reason.startswith("it is damaged"):
        reason += (
            "; nothing was changed: restore a copy, or save what can be read with "
            f"`sqlite3 {os.path.basename(path)} .recover`, or choose another one with JOB_DB"
        )
    return f"the job database {os.path.basename(path)} cannot be used: {reason}"


def main() -> None:
    """Run the store on the socket and for the path given as arguments."""
    fd, path, lock_wait_s, check, inode = sys.argv[1:]
    # They reach the whole group; the server drains first and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(fileno=int(fd))
    known = int(inode) if inode else None
    StoreProcess(sock, path, float(lock_wait_s), check == "check", known).run()


if __name__ == "__main__":
    main()
