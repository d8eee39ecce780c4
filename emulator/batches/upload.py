"""Receives the form of `POST /v1/files` and stores its file once it is valid."""

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
from common.digits import parse_digits
from common.private_files import open_private
from common.value_description import describe_value
from emulator.batches.file_storage import InsufficientStorage
from emulator.batches.form_parser import FormParser
from emulator.batches.input_validation import LineLimits, list_problems, validate_input
from emulator.batches.models import INPUT_PURPOSE
from emulator.batches.parameters import read_expiry
from emulator.batches.repository import BatchRepository, Reservation
from emulator.http.request_body import received_body
from handler.errors import InvalidRequest, PayloadTooLarge

# Bytes are written in blocks of this size, so that not every network read needs a thread.
_WRITE_BYTES = 1 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
# The maximum size of a form without its file.
_MAX_FORM_OVERHEAD_BYTES = 1 << 18
# A file of the wrong kind has a problem on every line; the error message is one sentence.
_MAX_LISTED_PROBLEMS = 10
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A received and synced file, the space reserved for it, and the other fields of its form."""

    path: Path
    size: int
    reservation: Reservation
    filename: str
    expires_s: int | None


class UploadReceiver:
    """Receives files, each in bounded memory, and validates one file at a time."""

    def __init__(self, repository: BatchRepository, max_bytes: int, limits: LineLimits) -> None:
        self._repository = repository
        self._max_bytes = max_bytes
        self._limits = limits
        self._validating = asyncio.Lock()

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[Upload]:
        """Receive a file; on exit, remove it unless it was moved away.

        Space is reserved before bytes are written: the declared size of the request first, and
        more if more arrives.

        Raises:
            UnsupportedMediaType: the body is not a form.
            PayloadTooLarge: the file is larger than BATCH_MAX_MB.
            InvalidRequest: a field of the form or a line of the file is wrong.
            InsufficientStorage: the disk or BATCH_STORE_MB has no space for the file.
        """
        form = FormParser(request.headers.get("content-type", ""))
        # On a thread, because it may have to create the folder first.
        path = await asyncio.to_thread(self._repository.storage.new_upload, secrets.token_hex(8))
        reservation = Reservation(self._repository)
        try:
            size = await self._write(request, form, path, reservation)
            form.finish()
            upload = Upload(
                path=path,
                size=size,
                reservation=reservation,
                filename=form.filename or "",
                expires_s=_read_form_expiry(form.fields),
            )
            if not size:
                raise InvalidRequest("the file is empty", "file")
            await self._validate(path)
            yield upload
        finally:
            reservation.release()
            # If that fails, the next start removes the file.
            with suppress(OSError):
                path.unlink(missing_ok=True)

    async def _write(
        self, request: Request, form: FormParser, path: Path, reservation: Reservation
    ) -> int:
        """Write the file of the request's form, sync it, and return its size in bytes."""
        declared = parse_digits(request.headers.get("content-length", ""), max_digits=19)
        if declared is not None:
            min_file_bytes = declared - _MAX_FORM_OVERHEAD_BYTES
            self._check_size(min_file_bytes)
            reservation.reserve_up_to(min_file_bytes)
        written = received = 0
        body_reservation = received_body(request)
        try:
            with os.fdopen(open_private(path, _CREATE), "wb") as file:
                async for data in request.stream():
                    form.feed(data)
                    received += len(data)
                    # This includes data after the form's end, which the parser drops.
                    self._check_size(received - _MAX_FORM_OVERHEAD_BYTES)
                    if body_reservation is not None:
                        # From here on at most _WRITE_BYTES of the body are in memory.
                        body_reservation.release(len(data))
                    self._check_size(written + form.buffered_bytes)
                    if form.buffered_bytes >= _WRITE_BYTES:
                        reservation.reserve_up_to(written + form.buffered_bytes)
                        written += await asyncio.to_thread(file.write, form.take_buffered())
                reservation.reserve_up_to(written + form.buffered_bytes)
                written += file.write(form.take_buffered())
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
        except OSError as error:
            raise InsufficientStorage(
                f"the disk of BATCH_DIR does not take it: {error.strerror}"
            ) from None
        return written

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            maximum = f"{self._max_bytes / 1e6:g} MB (BATCH_MAX_MB)"
            raise PayloadTooLarge(f"the file is larger than {maximum}", "file")

    async def _validate(self, path: Path) -> None:
        async with self._validating:
            try:
                summary = await asyncio.to_thread(validate_input, path, self._limits)
            except InputError as error:
                raise InsufficientStorage(str(error)) from None
        if summary.problem_count:
            sentences = [
                message if line is None else f"line {line}: {message}"
                for line, message in list_problems(summary, _MAX_LISTED_PROBLEMS)
            ]
            raise InvalidRequest("; ".join(sentences), "file")


def _read_form_expiry(fields: dict[str, str]) -> int | None:
    """Check the form's purpose; return its `expires_after` in seconds. Raises InvalidRequest."""
    purpose = fields.get("purpose")
    if purpose != INPUT_PURPOSE:
        raise InvalidRequest(
            f"purpose must be {INPUT_PURPOSE}, other files are not used, "
            f"got {describe_value(purpose)}",
            "purpose",
        )
    if _ANCHOR not in fields and _SECONDS not in fields:
        return None
    seconds = fields.get(_SECONDS, "")
    number = parse_digits(seconds, max_digits=9)
    expiry = {"anchor": fields.get(_ANCHOR), "seconds": seconds if number is None else number}
    return read_expiry(expiry, "expires_after")
