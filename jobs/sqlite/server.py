"""The store process: writes the batches of a journal to SQLite.

Started by `SqliteJournal` as `python -m jobs.sqlite.server FD PATH ...`. In a process of its own a
slow disk delays only this process, and not the event loop that serves clients. In a thread beside a
busy event loop it would get too little time (measured: 186-675 commits a second under four streams,
against 7,332 in a process).

One thread runs one loop: read all messages that have arrived, write them in one transaction, and
answer. Messages that arrive during a commit form the next transaction, so commits grow under load.
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

from common.failpoints import failpoint
from jobs.errors import StoreUnusable
from jobs.sqlite.database_file import DISK_FULL_ERRNOS, MOVED_MESSAGE, DatabaseFile
from jobs.sqlite.frames import build_decoder, encode
from jobs.sqlite.schema import (
    DELETE_CHUNKS,
    DELETE_INPUT,
    DELETE_JOB,
    DELETE_OLD_CHUNKS,
    SELECT_CHUNKS,
    SELECT_JOBS,
    UPSERT_CHUNK,
    UPSERT_INPUT,
    UPSERT_JOB,
    TablesNotCreated,
    is_full,
    open_database,
)

# If another process locks the database for longer, a write fails.
BUSY_TIMEOUT_S = 2.0
# Limits of the rows in one message.
_MAX_FRAME_BYTES = 8 << 20
_MAX_FRAME_ROWS = 1_000
_READ_BYTES = 1 << 20
# Stop reading at this size; the next transaction writes the rest.
_MAX_TRANSACTION_BYTES = 64 << 20
# After so long without a message the log is checkpointed into the database.
_CHECKPOINT_DELAY_S = 1.0


class StoreProcess:
    """Serves one socket until it closes.

    `inode` is the inode of the database that earlier store processes of the same server had open.
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
        self._decoder = build_decoder()
        # Why the disk refuses writes, if that is known before the first write.
        self._write_error: str | None = None
        # None while a full disk prevents the creation of the file.
        self._file: DatabaseFile | None = None
        # None while a full disk prevents the creation of the tables.
        self._database: sqlite3.Connection | None = None
        self._failure: Exception | None = None

    def run(self) -> None:
        """Open the database and serve."""
        try:
            self._open()
        except StoreUnusable as error:
            self._send(("unusable", str(error)))
        except (OSError, sqlite3.Error, ValueError) as error:
            # Keeps a damaged database open, which is referenced by the traceback.
            self._failure = error
            self._send(("unusable", _describe(self._path, error)))
        else:
            failpoint("store-opened")
            self._send(("open", self._known_inode(), self._write_error))
            self._serve()
            if self._database is not None and not self._has_moved():
                self._database.close()
                return
        # Closing a database checkpoints its log into the file and removes the log by its path.
        # Neither may happen to a damaged file, or if the paths belong to another database by now.
        sys.stderr.flush()
        os._exit(0)

    def _open(self) -> None:
        """Open the database; on a full disk only for reading, if possible."""
        try:
            self._database = self._connect(check=self._check)
            return
        except TablesNotCreated as error:
            self._write_error = _describe(self._path, error)
            return
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS or os.path.exists(self._path):
                raise
            self._write_error = _describe(self._path, error)
            return
        except sqlite3.OperationalError as error:
            if not is_full(error):
                raise
            self._write_error = _describe(self._path, error)
        self._database = self._connect(check=self._check, exclusive=True)

    def _connect(self, *, check: bool, exclusive: bool = False) -> sqlite3.Connection:
        """Open the database; lock it first if it is not locked.

        Raises StoreUnusable, OSError, sqlite3.Error and ValueError.
        """
        if self._file is None:
            self._file = DatabaseFile.lock(Path(self._path), self._lock_wait_s, self._inode)
        return open_database(
            self._path,
            BUSY_TIMEOUT_S,
            check=check,
            exclusive=exclusive,
            on_recognised=self._file.make_private,
        )

    def _known_inode(self) -> int | None:
        return None if self._file is None else self._file.inode

    def _has_moved(self) -> bool:
        return self._file is not None and self._file.has_moved()

    def _serve(self) -> None:
        is_checkpointed = True
        # Not `select.select`, which does not support descriptors above 1023.
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while True:
            if not poll.poll(None if is_checkpointed else _CHECKPOINT_DELAY_S * 1000):
                if self._database is not None:
                    _checkpoint(self._database)
                is_checkpointed = True
                continue
            messages, is_open = self._receive()
            writes = [message for message in messages if message[0] == "write"]
            if writes:
                failpoint("store-received")
                self._write(writes)
                is_checkpointed = False
            if any(message[0] == "load" for message in messages):
                self._load()
            if not is_open:
                return

    def _receive(self) -> tuple[list[Any], bool]:
        """Wait for messages; return all that have arrived, and whether the socket is open."""
        messages: list[Any] = []
        size = 0
        while size < _MAX_TRANSACTION_BYTES:
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
            failpoint("store-loading")
            # Text that is not UTF-8 must not prevent all other rows from being read.
            database.text_factory = _decode_text
            rows: list[Any] = []
            size = 0
            for row in database.execute(SELECT_JOBS):
                chunks = database.execute(SELECT_CHUNKS, (row[0],)).fetchall()
                rows.append((row, chunks))
                size += (
                    len(row[6] or b"") + len(row[7] or b"") + sum(len(each[2]) for each in chunks)
                )
                if size > _MAX_FRAME_BYTES or len(rows) >= _MAX_FRAME_ROWS:
                    self._send(("rows", rows))
                    rows, size = [], 0
            self._send(("rows", rows))
        except sqlite3.Error as error:
            self._send(("failed", _describe(self._path, error)))
        else:
            database.text_factory = str
            self._send(("loaded",))
            failpoint("store-loaded")

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
                self._answer(writes, "failed", _describe(self._path, error))
                return
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            failpoint("store-begun")
            for _, _, deleted, jobs, inputs, outdated, chunks in writes:
                database.executemany(UPSERT_JOB, jobs)
                database.executemany(UPSERT_INPUT, inputs)
                failpoint("store-saved")
                database.executemany(DELETE_OLD_CHUNKS, outdated)
                database.executemany(UPSERT_CHUNK, chunks)
                failpoint("store-appended")
                database.executemany(DELETE_JOB, deleted)
                database.executemany(DELETE_INPUT, deleted)
                database.executemany(DELETE_CHUNKS, deleted)
                failpoint("store-forgotten")
            database.execute("COMMIT")
        except (sqlite3.Error, ValueError, OverflowError) as error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            failpoint("store-refused")
            self._answer(writes, "failed", _describe(self._path, error))
            return
        failpoint("store-committed")
        if self._has_moved():
            # Written, but to a file that the next server may not open.
            self._refuse(writes, "unsure")
            return
        self._answer(writes, "done", self._known_inode())
        failpoint("store-answered")

    def _refuse(self, writes: list[Any], kind: str) -> None:
        """Answer that the database was removed or replaced."""
        if self._database is not None:
            # If only the log was removed, its contents are now saved in the database.
            _checkpoint(self._database)
        self._answer(writes, kind, MOVED_MESSAGE.format(name=os.path.basename(self._path)))

    def _answer(self, writes: list[Any], kind: str, detail: str | int | None) -> None:
        """Answer every write with the inode if `kind` is "done", else with the reason."""
        for write in writes:
            self._send((kind, write[1], detail))

    def _send(self, message: Any) -> None:
        try:
            self._sock.sendall(encode(message))
        except OSError:
            # The server has closed the socket; the next read detects it.
            return


def _decode_text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _checkpoint(database: sqlite3.Connection) -> None:
    try:
        failpoint("store-folding")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        failpoint("store-folded")
    except sqlite3.Error as error:
        # Retried after the next write; until then the log only grows.
        sys.stderr.write(f"the log of the job database was not checkpointed: {error}\n")


def _describe(path: str, error: Exception) -> str:
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
    """Serve the socket and the database given as arguments."""
    fd, path, lock_wait_s, check, inode = sys.argv[1:]
    # The signals reach the whole process group. The server drains and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(fileno=int(fd))
    expected_inode = int(inode) if inode else None
    StoreProcess(sock, path, float(lock_wait_s), check == "check", expected_inode).run()


if __name__ == "__main__":
    main()
