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
from common.temporary_folders import ScratchFolder
from common.terminal_text import escape_controls
from handler.delivery.blobs import BlobError
from jobs import JobsError, StoreUnavailable

# Number of concurrent reads: an answer is small, and reading it takes about ten milliseconds.
_THREADS = 16
_READ_AHEAD = 4 * _THREADS
_MAX_LISTED_IDS = 5
# With --wait, each poll lists all answers, 1,000 per request. The pause after it is ten times as
# long as the poll, so that requests take at most a tenth of the time.
_MIN_POLL_INTERVAL_S = 2.0
_POLL_INTERVAL_FACTOR = 10
# The key of an answer after the prefix of its batch. Copies under other names do not count.
_ANSWER_NAME = re.compile(r"[0-9a-f]{64}\.json")


def run(args: argparse.Namespace, settings: BatchSettings, console: Console) -> int:
    """Collect the answers and return the exit code."""
    with ScratchFolder() as scratch:
        try:
            return CollectCommand(args, console, scratch.path).run()
        except (PreconditionFailed, OutputError) as error:
            print_message(console, str(error))
            return REFUSED
        except (JobsError, BlobError) as error:
            print_message(console, f"{error}; nothing was written")
            return INTERRUPTED
        except OSError as error:
            print_message(console, f"{error.filename or args.output}: {error.strerror}")
            return INTERRUPTED
        except KeyboardInterrupt:
            print_message(console, "stopped by SIGINT; nothing was written")
            return INTERRUPTED


class CollectCommand:
    """One run of the command: the output is written when every line has an answer, or not at all.

    Owned by the thread that calls `run`; a thread pool reads the answers.
    """

    def __init__(self, args: argparse.Namespace, console: Console, folder: Path) -> None:
        """Check the options. Raises PreconditionFailed, OutputError, JobsError."""
        self._args = args
        self._console = console
        self._folder = folder
        try:
            self._batch = validate_batch_name(args.batch)
            self._bucket = ResultBucket.from_url(args.results)
        except ValueError as error:
            raise PreconditionFailed(str(error)) from None
        self._manifest = BatchManifest(self._bucket, self._batch)
        self._output = OutputFiles.from_addresses(args.output, args.errors, folder)
        self._output.check(self._manifest.url, force=args.force)

    def run(self) -> int:
        """Collect the answers and return the exit code.

        Raises PreconditionFailed or OutputError before any work, and JobsError, BlobError, OSError.
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
        hashes = self._hash_answer_keys()
        if self._args.wait:
            self._wait_for_answers(header, hashes)
        elif (missing := header.lines - self._count_answers(hashes)) > 0:
            print_message(self._console, self._format_missing(header, missing))
            return INTERRUPTED
        failed = self._write(header)
        print_message(
            self._console, f"{header.lines - failed:,} of {header.lines:,} lines answered"
        )
        if failed:
            print_message(self._console, f"failed lines are in {self._output.errors}")
        return SOME_FAILED if failed else DONE

    def _hash_answer_keys(self) -> array[int]:
        """Return the sorted hash prefixes of the answer keys of all lines of the batch."""
        keys = (result_key(self._batch, custom_id) for custom_id in self._manifest.ids())
        return array("Q", sorted(_hash_prefix(key) for key in keys))

    def _count_answers(self, hashes: array[int]) -> int:
        """Count the lines with an answer; other objects under the same prefix do not count."""
        has_answer = bytearray(len(hashes))
        for name in self._list_answer_names():
            answer_hash = _hash_prefix(name)
            index = bisect_left(hashes, answer_hash)
            if index < len(hashes) and hashes[index] == answer_hash:
                has_answer[index] = 1
        return sum(has_answer)

    def _list_answer_names(self) -> Iterator[str]:
        """Yield the names of the objects that can be answers of this batch."""
        folder = self._bucket.url(results_prefix(self._batch))
        for blob in self._bucket.list(results_prefix(self._batch)):
            name = f"s3://{self._bucket.bucket}/{blob.key}".removeprefix(folder)
            if _ANSWER_NAME.fullmatch(name):
                yield name

    def _wait_for_answers(self, header: BatchHeader, hashes: array[int]) -> None:
        """Poll the bucket until every line has an answer."""
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("lines"))
        bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        with bar:
            task = bar.add_task("", total=header.lines)
            last_answered = -1
            while True:
                started_s = time.monotonic()
                answered = self._count_answers(hashes)
                bar.update(task, completed=answered)
                if answered != last_answered and not self._console.is_terminal:
                    print_message(self._console, f"{answered:,} of {header.lines:,} lines")
                last_answered = answered
                if answered >= header.lines:
                    return
                poll_s = time.monotonic() - started_s
                time.sleep(max(_MIN_POLL_INTERVAL_S, _POLL_INTERVAL_FACTOR * poll_s))

    def _format_missing(self, header: BatchHeader, missing: int) -> str:
        answer_names = set(self._list_answer_names())
        ids: list[str] = []
        for custom_id in self._manifest.ids():
            if result_key(self._batch, custom_id).rpartition("/")[2] not in answer_names:
                ids.append(custom_id)
            if len(ids) == _MAX_LISTED_IDS:
                break
        listed = ", ".join(map(escape_controls, ids)) + (", …" if missing > len(ids) else "")
        return f"{missing:,} of {header.lines:,} lines have no answer yet: {listed}"

    def _write(self, header: BatchHeader) -> int:
        """Write the output and the error file; return the number of failed lines."""
        answers, errors = self._folder / "answers", self._folder / "errors"
        done = failed = 0
        with answers.open("wb") as good, errors.open("wb") as bad:
            for line in self._read_answers():
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

    def _read_answers(self) -> Iterator[bytes]:
        """Yield the answers in the order of the input, read ahead by threads."""
        with ThreadPoolExecutor(_THREADS, "collect") as threads:
            reads: deque[Future[bytes]] = deque()
            for custom_id in self._manifest.ids():
                reads.append(threads.submit(self._read_answer, custom_id))
                if len(reads) >= _READ_AHEAD:
                    yield reads.popleft().result()
            for read in reads:
                yield read.result()

    def _read_answer(self, custom_id: str) -> bytes:
        """Return a line's answer, or an error line if the object is not an answer to this line.

        Others may write to the bucket too. Foreign content must not become lines of the output.
        """
        key = result_key(self._batch, custom_id)
        try:
            answer = self._bucket.find(key)
        except ObjectTooLarge as error:
            return _bad_answer_line(custom_id, str(error))
        if answer is None:
            raise StoreUnavailable(f"the answer to {custom_id} was deleted during collect")
        if not is_answer_to(answer, custom_id):
            return _bad_answer_line(
                custom_id, f"{self._bucket.url(key)} is not the answer to this line"
            )
        return answer


def _hash_prefix(key: str) -> int:
    """Return the first 64 bits of the hash in the key or the name of an answer.

    Two lines of a batch share these bits once in ten billion batches of 50,000 lines.
    """
    return int(key.rpartition("/")[2][:16], 16)


def _bad_answer_line(custom_id: str, problem: str) -> bytes:
    return failure_line(Message("", custom_id), BAD_ANSWER, problem)
