"""`python -m batch merge`: put the outputs of all shards together, if each line is there once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from sys import maxsize

from rich.console import Console

from batch.cli.output import print_message
from batch.cli.run import DONE, INTERRUPTED, REFUSED, SOME_FAILED, PreconditionFailed
from batch.input.line import BadLine, parse_line
from batch.input.shard import MAX_SHARDS, Shard, ShardError, check_output, find_shard_of_line
from batch.input.source import InputError, LineSource, fetch_input
from batch.output.destination import open_destination
from batch.output.files import OutputError, OutputFiles, default_error_path
from batch.output.merge import DuplicateIds, MergedOutput
from batch.settings import BatchSettings
from common.temporary_folders import ScratchFolder
from common.terminal_text import escape_controls
from handler.delivery.blobs import BlobError

_MAX_LISTED_LINES = 5
_MAX_LISTED_SHARDS = 50


def run(args: argparse.Namespace, settings: BatchSettings, console: Console) -> int:
    """Merge the outputs and return the exit code."""
    with ScratchFolder() as scratch:
        try:
            return MergeCommand(args, settings, console, scratch.path).run()
        except (PreconditionFailed, OutputError, InputError, ShardError, DuplicateIds) as error:
            print_message(console, str(error))
            return REFUSED
        except BlobError as error:
            print_message(console, f"{error}; nothing was written")
            return INTERRUPTED
        except OSError as error:
            print_message(console, f"{error.filename or args.output}: {error.strerror}")
            return INTERRUPTED


class MergeCommand:
    """One run of the command: the output is written when every line has one answer, or not at all.

    Owned by the thread that calls `run`.
    """

    def __init__(
        self, args: argparse.Namespace, settings: BatchSettings, console: Console, folder: Path
    ) -> None:
        """Check the options. Raises OutputError and ShardError."""
        if not 1 <= args.shards <= MAX_SHARDS:
            raise ShardError(f"--shards must be from 1 to {MAX_SHARDS:,}, got {args.shards}")
        check_output(args.output)
        self._args = args
        self._settings = settings
        self._console = console
        self._folder = folder
        self._output = OutputFiles.from_addresses(args.output, args.errors, folder)
        self._output.check(args.input, force=args.force)

    def run(self) -> int:
        """Read the input and all outputs, write the merged ones and return the exit code."""
        merged = MergedOutput(self._read_ids())
        shards = [Shard(index, self._args.shards) for index in range(self._args.shards)]
        for shard in shards:
            self._add_shard(merged, shard)
        if merged.problems.count:
            raise PreconditionFailed(_format_problems(merged))
        if missing := list(merged.missing()):
            self._print_missing(missing, shards, merged.lines)
            return INTERRUPTED
        if merged.failed:
            self._output.errors.write(merged.answers(ok=False))
        else:
            self._output.errors.remove()
        self._output.answers.write(merged.answers(ok=True))
        answered = merged.lines - merged.failed
        self._print(f"{answered:,} of {merged.lines:,} lines answered, in {len(shards):,} shards")
        self._print(merged.tokens.format())
        if merged.failed:
            self._print(f"failed lines are in {self._output.errors}")
        return SOME_FAILED if merged.failed else DONE

    def _read_ids(self) -> Iterator[str]:
        limit_bytes = self._settings.batch_max_mb * 1_000_000
        path = fetch_input(self._args.input, self._folder / "input", limit_bytes)
        source = LineSource(path, self._settings.max_body_mb * 1_000_000)
        for number, raw in enumerate(source.lines(), 1):
            try:
                yield parse_line(raw, number).custom_id
            except BadLine as error:
                raise PreconditionFailed(f"line {number}: {error}") from None

    def _add_shard(self, merged: MergedOutput, shard: Shard) -> None:
        """Read the answers and the errors of a part; a missing file has none."""
        errors = self._args.errors
        addresses = {
            shard.rename(self._args.output): True,
            # `batch run` makes the default of --errors from the part's output.
            default_error_path(shard.rename(self._args.output))
            if errors is None
            else shard.rename(errors): False,
        }
        for address, ok in addresses.items():
            if not open_destination(address).exists():
                continue
            spool = self._folder / f"{shard.index}-{'answers' if ok else 'errors'}"
            merged.add_file(fetch_input(address, spool, maxsize), escape_controls(address), ok=ok)

    def _print_missing(self, missing: list[int], shards: list[Shard], lines: int) -> None:
        """Print which shards have lines without an answer, and the first of these lines."""
        numbers = ", ".join(f"{line + 1:,}" for line in missing[:_MAX_LISTED_LINES])
        more = ", …" if len(missing) > _MAX_LISTED_LINES else ""
        count = len(shards)
        indexes = sorted({find_shard_of_line(line, lines, count) for line in missing})
        without = [f"{index}/{count}" for index in indexes[:_MAX_LISTED_SHARDS]]
        if len(indexes) > _MAX_LISTED_SHARDS:
            without.append("…")
        self._print(
            f"{len(missing):,} of {lines:,} lines have no answer: {numbers}{more}; nothing was "
            f"written. Run again, with --shard: {', '.join(without)}"
        )

    def _print(self, text: str) -> None:
        print_message(self._console, text)


def _format_problems(merged: MergedOutput) -> str:
    problems = list(merged.problems.listed)
    if more := merged.problems.count - len(problems):
        problems.append(f"and {more:,} more problems")
    return "\n".join(problems)
