"""`python -m batch collect`: write the answers of a submitted batch to one file."""

from __future__ import annotations

import argparse
import re
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from batch.cli.output import print_message
from batch.cli.run import DONE, INTERRUPTED, REFUSED, SOME_FAILED, PreconditionFailed
from batch.output.files import OutputError, OutputFiles
from batch.queue.batch_manifest import BatchHeader, BatchManifest
from batch.queue.message import (
    Message,
    failure_line,
    is_answer_to,
    is_success_line,
    result_key,
    results_prefix,
    validate_batch_name,
)
from batch.queue.result_bucket import ObjectTooLarge, ResultBucket
from batch.queue.result_store import BAD_ANSWER
from batch.settings import BatchSettings
from engine.temporary_folders import ScratchFolder
from handler.blobs import BlobError
from handler.terminal_text import escape_controls
from jobs import JobsError, StoreUnavailable

# Concurrent reads: an answer is small, and reading it takes about ten milliseconds.
_THREADS = 16
_READ_AHEAD = 4 * _THREADS
_MAX_LISTED_IDS = 5
# Each check lists all answers, 1,000 per request. The pause keeps checks to a tenth of the time.
_MIN_POLL_INTERVAL_S = 2.0
_POLL_INTERVAL_FACTOR = 10
# Of an answer, behind the prefix of its batch. A copy of it may have another name or folder.
_ANSWER_NAME = re.compile(r"[0-9a-f]{64}\.json")


def run(given: argparse.Namespace, settings: BatchSettings, console: Console) -> int:
    """Collect the answers and return the exit code."""
    with ScratchFolder() as scratch:
        try:
            return CollectCommand(given, console, scratch.path).run()
        except (PreconditionFailed, OutputError) as error:
            print_message(console, str(error))
            return REFUSED
        except (JobsError, BlobError) as error:
            print_message(console, f"{error}; nothing was written")
            return INTERRUPTED
        except OSError as error:
            print_message(console, f"{error.filename or given.output}: {error.strerror}")
            return INTERRUPTED
        except KeyboardInterrupt:
            print_message(console, "stopped by SIGINT; nothing was written")
            return INTERRUPTED


class CollectCommand:
    """One run of the command: the output is written when every line has an answer, or not at all.

    Owned by the thread that calls `run`; other threads read answers.
    """

    def __init__(self, given: argparse.Namespace, console: Console, folder: Path) -> None:
        """Check the options. Raises Refused, OutputError, JobsError."""
        self._given = given
        self._console = console
        self._folder = folder
        try:
            self._batch = validate_batch_name(given.batch)
            self._place = ResultBucket.at(given.results)
        except ValueError as error:
            raise PreconditionFailed(str(error)) from None
        self._manifest = BatchManifest(self._place, self._batch)
        self._output = OutputFiles.at(given.output, given.errors, folder)
        self._output.check(self._manifest.url, force=given.force)

    def run(self) -> int:
        """Collect, and return the exit code.

        Raises Refused, OutputError before any work. Raises JobsError, BlobError, OSError.
        """
        try:
            header = self._manifest.header()
        except StoreUnavailable:
            raise
        except JobsError as error:
            raise PreconditionFailed(str(error)) from None
        if header is None:
            raise PreconditionFailed(
                f"{self._manifest.url} does not exist: no batch of this name was submitted"
            )
        names = self._names()
        if self._given.wait:
            self._wait(header, names)
        elif (missing := header.lines - self._answered(names)) > 0:
            print_message(self._console, self._told_missing(header, missing))
            return INTERRUPTED
        failed = self._write(header)
        print_message(
            self._console, f"{header.lines - failed:,} of {header.lines:,} lines answered"
        )
        if failed:
            print_message(self._console, f"failed lines are in {self._output.errors}")
        return SOME_FAILED if failed else DONE

    def _names(self) -> array[int]:
        """Return what the keys of this batch's answers begin with, as sorted numbers."""
        keys = (result_key(self._batch, custom_id) for custom_id in self._manifest.ids())
        return array("Q", sorted(_hash_prefix(key) for key in keys))

    def _answered(self, names: array[int]) -> int:
        """Count the lines with an answer; other objects under the same prefix do not count."""
        has_answer = bytearray(len(names))
        for name in self._answer_names():
            number = _hash_prefix(name)
            at = bisect_left(names, number)
            if at < len(names) and names[at] == number:
                has_answer[at] = 1
        return sum(has_answer)

    def _answer_names(self) -> Iterator[str]:
        """Yield the names of the objects that can be answers of this batch."""
        folder = self._place.url(results_prefix(self._batch))
        for each in self._place.list(results_prefix(self._batch)):
            name = f"s3://{self._place.bucket}/{each.key}".removeprefix(folder)
            if _ANSWER_NAME.fullmatch(name):
                yield name

    def _wait(self, header: BatchHeader, names: array[int]) -> None:
        """Wait until every line has an answer."""
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("lines"))
        bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        with bar:
            task = bar.add_task("", total=header.lines)
            before = -1
            while True:
                begun_s = time.monotonic()
                answered = self._answered(names)
                bar.update(task, completed=answered)
                if answered != before and not self._console.is_terminal:
                    print_message(self._console, f"{answered:,} of {header.lines:,} lines")
                before = answered
                if answered >= header.lines:
                    return
                time.sleep(
                    max(_MIN_POLL_INTERVAL_S, _POLL_INTERVAL_FACTOR * (time.monotonic() - begun_s))
                )

    def _told_missing(self, header: BatchHeader, missing: int) -> str:
        there = set(self._answer_names())
        first: list[str] = []
        for custom_id in self._manifest.ids():
            if result_key(self._batch, custom_id).rpartition("/")[2] not in there:
                first.append(custom_id)
            if len(first) == _MAX_LISTED_IDS:
                break
        names = ", ".join(map(escape_controls, first)) + (", …" if missing > len(first) else "")
        return f"{missing:,} of {header.lines:,} lines have no answer yet: {names}"

    def _write(self, header: BatchHeader) -> int:
        """Write the output and the error file; return how many failed."""
        answers, errors = self._folder / "answers", self._folder / "errors"
        done = failed = 0
        with answers.open("wb") as good, errors.open("wb") as bad:
            for line in self._lines():
                done += 1
                ok = is_success_line(line)
                failed += not ok
                (good if ok else bad).write(line + b"\n")
        if done != header.lines:
            raise OutputError(f"{self._manifest.url} names {done:,} lines of {header.lines:,}")
        if failed:
            with errors.open("rb") as lines:
                self._output.errors.write(lines)
        else:
            self._output.errors.remove()
        with answers.open("rb") as lines:
            self._output.answers.write(lines)
        return failed

    def _lines(self) -> Iterator[bytes]:
        """Yield the answers in the order of the input, reading some ahead."""
        with ThreadPoolExecutor(_THREADS, "collect") as threads:
            reading: deque[Future[bytes]] = deque()
            for custom_id in self._manifest.ids():
                reading.append(threads.submit(self._read, custom_id))
                if len(reading) >= _READ_AHEAD:
                    yield reading.popleft().result()
            for each in reading:
                yield each.result()

    def _read(self, custom_id: str) -> bytes:
        """Return a line's answer, or an error line where the object is not one.

        Whoever can write to the bucket can have put anything there; it must not end up as lines of
        the output.
        """
        key = result_key(self._batch, custom_id)
        try:
            found = self._place.find(key)
        except ObjectTooLarge as error:
            return _bad_answer_line(custom_id, str(error))
        if found is None:
            raise StoreUnavailable(f"the answer to {custom_id} was deleted during collect")
        if not is_answer_to(found, custom_id):
            return _bad_answer_line(
                custom_id, f"{self._place.url(key)} is not the answer to this line"
            )
        return found


def _hash_prefix(key: str) -> int:
    """Return the first 64 bits of the hash in the key or the name of an answer.

    Two lines of a batch share them once in ten billion batches of 50,000 lines.
    """
    return int(key.rpartition("/")[2][:16], 16)


def _bad_answer_line(custom_id: str, problem: str) -> bytes:
    return failure_line(Message("", custom_id), BAD_ANSWER, problem)
