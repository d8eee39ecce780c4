"""The output of a finished batch, and its error file if lines failed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from batch.output.destination import STDOUT, Destination, FileDestination, open_destination
from batch.output.journal import SUFFIX, BatchJournal
from handler.blobs import BlobError


class OutputError(Exception):
    """The output cannot go where it should; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Where answers go: `answers` and `errors` are complete or not there, whatever happens.

    Until every line has an answer there is the journal alone.
    """

    answers: Destination
    errors: Destination
    journal: Path

    @classmethod
    def at(cls, given: str, errors: str | None, scratch: Path) -> OutputFiles:
        """Return where `-o` says.

        The journal is beside a file, in the working folder for a bucket, and in `scratch` for the
        standard output, which nobody could go on with. Raises OutputError.
        """
        try:
            answers = open_destination(given)
            failed = open_destination(errors or _default_error_path(given))
        except ValueError as error:
            raise OutputError(str(error)) from None
        journal = Path(answers.name + SUFFIX)
        if isinstance(answers, FileDestination):
            journal = answers.path.with_name(journal.name)
        elif given == STDOUT:
            journal = scratch / journal
        return cls(answers, failed, journal)

    def check(self, given_input: str, *, force: bool) -> None:
        """Refuse what would destroy something. Raises OutputError."""
        if str(self.answers) == str(self.errors):
            raise OutputError(f"the output and the error file are the same: {self.answers}")
        for place in (self.answers, self.errors):
            if str(place) == given_input or _is_same_file(place, given_input):
                raise OutputError(f"{place} is the input and would be overwritten")
            if isinstance(place, FileDestination) and not place.path.parent.is_dir():
                raise OutputError(f"the folder {place.path.parent} for {place} does not exist")
        if force or self.journal.exists():
            # A run that was interrupted goes on, perhaps in its very last step.
            return
        try:
            for place in (self.answers, self.errors):
                if place.exists():
                    raise OutputError(f"{place} exists already; --force replaces it")
        except (OSError, BlobError) as error:
            raise OutputError(str(error)) from None

    def write(self, journal: BatchJournal, *, ordered: bool) -> None:
        """Make both of a journal that has all answers. Raises OSError or BlobError."""
        if journal.failed:
            self.errors.write(journal.answers(ok=False, ordered=ordered))
        else:
            self.errors.remove()
        self.answers.write(journal.answers(ok=True, ordered=ordered))


def _default_error_path(given: str) -> str:
    """Return where failed lines go if nobody says."""
    if given == STDOUT:
        return "errors.jsonl"
    folder, slash, name = given.rpartition("/")
    path = PurePosixPath(name)
    return f"{folder}{slash}{path.stem}.errors{path.suffix or '.jsonl'}"


def _is_same_file(place: Destination, given_input: str) -> bool:
    if not isinstance(place, FileDestination):
        return False
    return place.path.exists() and Path(given_input).exists() and place.path.samefile(given_input)
