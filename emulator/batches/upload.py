"""`POST /v1/files`: a form from the network to a file on disk that is known to be good."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from batch.input.source import InputError
from emulator.batches.expiry import read_expiry
from emulator.batches.file import INPUT
from emulator.batches.file_storage import NoRoom
from emulator.batches.form_parser import Form
from emulator.batches.input_validation import LineLimits, look, told
from emulator.batches.repository import BatchStore, Reservation
from emulator.http.request_body import received_body
from handler.errors import InvalidRequest, PayloadTooLarge
from handler.sampling import describe_value
from jobs.sqlite.private_files import open_private

# Written at once, so that a thread is not asked for each network read.
_WRITE_BYTES = 1 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
# What a form has beside its file.
_FRAME_BYTES = 1 << 18
# One sentence that fits a terminal; a file of the wrong kind has as many problems as lines.
_MOST_TOLD = 10
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A received and synced file, the room reserved for it, and its sender's fields."""

    path: Path
    size: int
    room: Reservation
    filename: str
    expires_s: int | None


class Uploads:
    """Receives files, each in bounded memory, and checks all lines of one at a time."""

    def __init__(self, store: BatchStore, max_bytes: int, limits: LineLimits) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._limits = limits
        self._looking = asyncio.Lock()

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[Upload]:
        """Receive a file, which is removed at the end unless it was moved away.

        Room for it is reserved before its bytes are written: for the declared size of the request
        at once, and for more as more arrives.

        Raises:
            UnsupportedMediaType: the body is no form.
            PayloadTooLarge: the file is larger than BATCH_MAX_MB.
            InvalidRequest: something in the form, or of the lines in the file, is wrong.
            NoRoom: the disk or BATCH_STORE_MB does not have room for it.
        """
        form = Form(request.headers.get("content-type", ""))
        # In a thread, because it may have to create the folder first.
        path = await asyncio.to_thread(self._store.folder.new_upload, secrets.token_hex(8))
        room = Reservation(self._store)
        try:
            size = await self._write(request, form, path, room)
            form.finish()
            upload = Upload(
                path=path,
                size=size,
                room=room,
                filename=form.filename or "",
                expires_s=_read(form.fields),
            )
            if not size:
                raise InvalidRequest("the file is empty", "file")
            await self._look(path)
            yield upload
        finally:
            room.release()
            # If that fails, the next start removes the file.
            with suppress(OSError):
                path.unlink(missing_ok=True)

    async def _write(self, request: Request, form: Form, path: Path, room: Reservation) -> int:
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and len(declared) < 20:
            self._check(int(declared) - _FRAME_BYTES)
            room.grow_to(int(declared) - _FRAME_BYTES)
        size = total = 0
        received = received_body(request)
        try:
            with os.fdopen(open_private(path, _CREATE), "wb") as file:
                async for piece in request.stream():
                    form.feed(piece)
                    total += len(piece)
                    # Also of what is behind the form's end, which is dropped.
                    self._check(total - _FRAME_BYTES)
                    if received is not None:
                        # From here on at most _WRITE_BYTES of it are in memory.
                        received.release(len(piece))
                    self._check(size + form.held)
                    if form.held >= _WRITE_BYTES:
                        room.grow_to(size + form.held)
                        size += await asyncio.to_thread(file.write, form.take())
                room.grow_to(size + form.held)
                size += file.write(form.take())
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
        except OSError as error:
            raise NoRoom(f"the disk of BATCH_DIR does not take it: {error.strerror}") from None
        return size

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            most = f"{self._max_bytes / 1e6:g} MB (BATCH_MAX_MB)"
            raise PayloadTooLarge(f"the file is larger than {most}", "file")

    async def _look(self, path: Path) -> None:
        async with self._looking:
            try:
                found = await asyncio.to_thread(look, path, self._limits)
            except InputError as error:
                raise NoRoom(str(error)) from None
        if found.problem_count:
            problems = told(found, _MOST_TOLD)
            said = [text if line is None else f"line {line}: {text}" for line, text in problems]
            raise InvalidRequest("; ".join(said), "file")


def _read(fields: dict[str, str]) -> int | None:
    """Return for how long a file is kept by its form. Raises InvalidRequest."""
    purpose = fields.get("purpose")
    if purpose != INPUT:
        raise InvalidRequest(
            f"purpose must be {INPUT}, there is no use for other files, got {describe_value(purpose)}",
            "purpose",
        )
    if _ANCHOR not in fields and _SECONDS not in fields:
        return None
    seconds = fields.get(_SECONDS, "")
    number = seconds.isascii() and seconds.isdigit() and len(seconds) < 10
    given = {"anchor": fields.get(_ANCHOR), "seconds": int(seconds) if number else seconds}
    return read_expiry(given, "expires_after")
