"""The output of a finished batch, and its error file if lines failed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from batch.output.destination import STDOUT, Destination, FileDestination, open_destination
from batch.output.journal import SUFFIX, BatchJournal
from handler.delivery.blobs import BlobError


class OutputError(Exception):
    """The output cannot be written there; the message is one sentence with a remedy."""


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """The output files of a batch: `answers` and `errors`.

    Both are written when every line has an answer, and each is complete or absent, also after a
    crash. Until then, only the `journal` exists.
    """

    answers: Destination
    errors: Destination
    journal: Path

    @classmethod
    def from_addresses(cls, output: str, errors: str | None, scratch: Path) -> OutputFiles:
        """Return the files for the values of `-o` and `--errors`. Raises OutputError.

        The journal is next to an output file, in the working folder for a bucket, and in `scratch`
        for the standard output, because such a run cannot be resumed.
        """
        try:
            answers = open_destination(output)
            errors_destination = open_destination(errors or default_error_path(output))
        except ValueError as error:
            raise OutputError(str(error)) from None
        journal = Path(answers.name + SUFFIX)
        if isinstance(answers, FileDestination):
            journal = answers.path.with_name(journal.name)
        elif output == STDOUT:
            journal = scratch / journal
        return cls(answers, errors_destination, journal)

    def check(self, input_address: str, *, force: bool) -> None:
        """Check that no input or existing output would be overwritten. Raises OutputError."""
        if str(self.answers) == str(self.errors):
            raise OutputError(f"the output and the error file are the same: {self.answers}")
        for destination in (self.answers, self.errors):
            if str(destination) == input_address or _is_same_file(destination, input_address):
                raise OutputError(f"{destination} is the input and would be overwritten")
            if isinstance(destination, FileDestination) and not destination.path.parent.is_dir():
                raise OutputError(
                    f"the folder {destination.path.parent} for {destination} does not exist"
                )
        if force or self.journal.exists():
            # With a journal, this run resumes one that may have been writing the output already.
            return
        try:
            for destination in (self.answers, self.errors):
                if destination.exists():
                    raise OutputError(f"{destination} exists already; --force replaces it")
        except (OSError, BlobError) as error:
            raise OutputError(str(error)) from None

    def write(self, journal: BatchJournal, *, ordered: bool) -> None:
        """Write both files from a complete journal. Raises OSError or BlobError."""
        if journal.failed:
            self.errors.write(journal.answers(ok=False, ordered=ordered))
        else:
            self.errors.remove()
        self.answers.write(journal.answers(ok=True, ordered=ordered))


def default_error_path(output: str) -> str:
    """Return the default of `--errors`."""
    if output == STDOUT:
        return "errors.jsonl"
    folder, slash, name = output.rpartition("/")
    path = PurePosixPath(name)
    return f"{folder}{slash}{path.stem}.errors{path.suffix or '.jsonl'}"


def _is_same_file(destination: Destination, input_address: str) -> bool:
    if not isinstance(destination, FileDestination):
        return False
    return (
        destination.path.exists()
        and Path(input_address).exists()
        and destination.path.samefile(input_address)
    )
