"""Find models of the Hugging Face Hub in local caches, and download them."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from common.private_files import suggest_owner
from common.terminal_text import escape_controls
from handler.models.resumable_download import (
    DamagedDownload,
    fetch_content,
    remove_stale_parts,
)

logger = logging.getLogger(__name__)

# The folder of the "cached models" of a RunPod Serverless endpoint.
RUNPOD_CACHE = Path("/runpod-volume/huggingface-cache/hub")

# Downloads of smaller files, such as tokenizers, print no progress.
_MIN_PROGRESS_BYTES = 5_000_000

PREFIX = "hf:"
FORM = "hf:org/repo[@revision][/file]"
_REFERENCE = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)"
    # Only the revisions of pull requests contain slashes.
    r"(?:@(?P<revision>refs/(?:pr|convert)/[\w.-]+|[^/@\s]+))?"
    r"(?:/(?P<file>[^@]+))?"
)


# Called with a file's name, the bytes that are there, and all of its bytes. An exception that it
# raises ends the download.
OnProgress = Callable[[str, int, int], None]


class HubError(Exception):
    """The Hub could not provide a model or file; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository on the Hub at a revision, and a file or folder in it.

    An empty `file` means the whole repository.
    """

    repo: str
    revision: str
    file: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `hf:org/repo[@revision][/file]`. Raises ValueError."""
        match = _REFERENCE.fullmatch(text)
        # The parts become paths below the cache's folder.
        if match is None or ".." in re.split("[/@:]", text):
            raise ValueError(f"{text} is not of the form {FORM}")
        return cls(match["repo"], match["revision"] or "main", match["file"] or "")

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{PREFIX}{self.repo}{revision}" + (f"/{self.file}" if self.file else "")

    def with_file(self, file: str) -> HubReference:
        """Return a reference to another file of the same repository and revision."""
        return HubReference(self.repo, self.revision, file)


class Hub:
    """Searches local caches for repositories and downloads files into the first cache.

    `caches` are folders in the Hub library's layout. The default is the library's cache (set by
    HF_HUB_CACHE or HF_HOME), then RunPod's. The library is imported on first use, because most
    configurations name no model on the Hub. `on_progress` replaces the progress on stderr.
    """

    def __init__(
        self, caches: Sequence[Path] | None = None, on_progress: OnProgress | None = None
    ) -> None:
        self._caches = caches
        self._on_progress = on_progress

    @property
    def caches(self) -> Sequence[Path]:
        """The folders that are searched, in order; the first one takes downloads."""
        if self._caches is not None:
            return self._caches
        return Path(_import_library().constants.HF_HUB_CACHE), RUNPOD_CACHE

    def cached_snapshots(self, reference: HubReference) -> list[Path]:
        """Return the folders that hold the repository at that revision, without network access.

        A snapshot contains only the files that were downloaded.
        """
        snapshots = []
        for folder in self._cache_folders(reference):
            branch = folder / "refs" / reference.revision
            commit = branch.read_text().strip() if branch.is_file() else reference.revision
            if (snapshot := folder / "snapshots" / commit).is_dir():
                snapshots.append(snapshot)
        return snapshots

    def list_files(self, reference: HubReference) -> list[str]:
        """Return the names of all files in the repository, from the Hub. Raises HubError."""
        library = _import_library()
        try:
            info = library.HfApi().model_info(
                reference.repo,
                revision=reference.revision,
                timeout=library.constants.HF_HUB_ETAG_TIMEOUT,
            )
        except Exception as error:
            raise self._translate_error(reference, error) from error
        return [file.rfilename for file in info.siblings or ()]

    def download(self, reference: HubReference, files: Sequence[str]) -> Path:
        """Download files in order and return the snapshot's folder. Raises HubError.

        An interrupted download of a large file is continued, and other processes that need the same
        file wait for this one.
        """
        library = _import_library()
        remove_stale_parts(self.caches[0])
        path = Path()
        for file in files:
            if self._on_progress is not None:
                bar = _progress_calls(file, self._on_progress)
            else:
                bar = _progress_bar() if sys.stderr.isatty() else _progress_lines(file)
            logger.info("downloading %s to %s", reference.with_file(file), self.caches[0])
            try:
                fetch_content(
                    self._cache_folders(reference)[0],
                    library.hf_hub_url(reference.repo, file, revision=reference.revision),
                    file,
                    bar,
                    partial(self._report_progress, file),
                )
                path = Path(
                    library.hf_hub_download(
                        reference.repo,
                        file,
                        revision=reference.revision,
                        cache_dir=self.caches[0],
                        tqdm_class=bar,
                    )
                )
            except Exception as error:
                raise self._translate_error(reference.with_file(file), error) from error
        return Path(str(path).removesuffix(files[-1]))

    def remove_stale_parts(self) -> None:
        """Remove what killed downloads have left long ago. Raises HubError."""
        remove_stale_parts(self.caches[0])

    def _report_progress(self, file: str, done: int, total: int) -> None:
        if self._on_progress is not None:
            self._on_progress(file, done, total)

    def _cache_folders(self, reference: HubReference) -> list[Path]:
        name = f"models--{reference.repo.replace('/', '--')}"
        return [cache / name for cache in self.caches]

    def _translate_error(self, reference: HubReference, error: Exception) -> HubError:
        """Return an error of the library or its HTTP client as a HubError with one sentence."""
        from huggingface_hub import errors

        repo = reference.repo
        if isinstance(error, errors.GatedRepoError):
            reason = f"{repo} is gated: accept its terms on the Hub and set HF_TOKEN"
        elif isinstance(error, errors.RepositoryNotFoundError):
            reason = f"the Hub has no model {repo}, or it is private and HF_TOKEN gives no access"
        elif isinstance(error, errors.RevisionNotFoundError):
            reason = f"{repo} has no revision {reference.revision}"
        elif _import_library().constants.HF_HUB_OFFLINE:
            reason = f"HF_HUB_OFFLINE is set and it is not in {self._describe_searched(reference)}"
        elif isinstance(error, errors.HfHubHTTPError) and error.response is not None:
            reason = f"the Hub answered with status {error.response.status_code}"
        elif isinstance(error, DamagedDownload):
            reason = str(error)
        elif isinstance(error, OSError) and error.strerror:
            reason = f"{error.strerror} ({error.filename or self.caches[0]})"
            if isinstance(error, PermissionError) and (remedy := self._suggest_owner()):
                reason += f"; {remedy}"
        else:
            # The cause, because the library's own message for a lost connection has several lines.
            cause = error.__cause__ or error
            detail = (str(cause).strip().splitlines() or [""])[0]
            endpoint = _import_library().constants.ENDPOINT
            reason = (
                f"it is not in {self._describe_searched(reference)}, and fetching it from"
                f" {endpoint} failed ({type(cause).__name__}: {detail})"
            )
        return HubError(f"{reference}: {reason}")

    def _suggest_owner(self) -> str:
        """Return how the cache, or the folder in which it is missing, becomes this user's."""
        cache = self.caches[0].absolute()
        if os.path.lexists(cache):
            return suggest_owner(cache, option="-R")
        return suggest_owner(next(filter(os.path.lexists, cache.parents)))

    def _describe_searched(self, reference: HubReference) -> str:
        return " or ".join(str(folder) for folder in self._cache_folders(reference))


def _import_library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
    except ImportError:
        raise HubError(
            f"{PREFIX} needs the package huggingface-hub: `pip install huggingface-hub` adds it"
        ) from None
    return huggingface_hub


def _progress_bar() -> Any:
    """Return the library's progress bar with an escaped label, because file names are untrusted."""
    base: Any = import_module("huggingface_hub.utils").tqdm

    class ProgressBar(base):  # type: ignore[misc]
        def __init__(self, *args: Any, desc: str | None = None, **kwargs: Any) -> None:
            super().__init__(*args, desc=desc and escape_controls(desc), **kwargs)

    return ProgressBar


def _progress_lines(file: str) -> Any:
    """Return a progress bar class that writes one line per quarter, for logs and pipes."""
    base: Any = import_module("huggingface_hub.utils").tqdm

    class ProgressLines(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._reported_quarters = 0
            super().__init__(*args, **kwargs | {"disable": False, "file": io.StringIO()})

        def display(self, *_: Any, **__: Any) -> None:
            is_large = self.total is not None and self.total >= _MIN_PROGRESS_BYTES
            quarters = int(4 * self.n // self.total) if is_large else 0
            if quarters > self._reported_quarters:
                self._reported_quarters = quarters
                size = f"{self.total / 1e6:,.0f} MB"
                sys.stderr.write(f"{escape_controls(file)}: {25 * quarters} % of {size}\n")

    return ProgressLines


def _progress_calls(file: str, on_progress: OnProgress) -> Any:
    """Return a progress bar class that calls a function instead of writing."""
    base: Any = import_module("huggingface_hub.utils").tqdm

    class ProgressCalls(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": False, "file": io.StringIO()})

        def display(self, *_: Any, **__: Any) -> None:
            pass

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            # Not in `display`: the library calls that with a lock, which an exception would keep.
            on_progress(file, int(self.n), int(self.total or 0))

    return ProgressCalls
