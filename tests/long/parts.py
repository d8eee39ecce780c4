"""The parts of the long tests: `python -m tests.long.parts PART… -- OPTIONS_OF_PYTEST`.

`make test-long PART="crashes speed"` installs what the tests need and runs this; without `PART` it
runs all parts. With the option `--check` nothing runs. Add a file of tests/long to a part here, or
a unit test fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The folders that `make test` runs.
SUITE = tuple(
    f"tests/{name}" for name in ("unit", "property", "integration", "security", "acceptance")
)
# Administrators' programs, which are not on every user's path.
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")


@dataclass(frozen=True, slots=True)
class Part:
    """Files whose long forms run together.

    These are the tests marked `long`, tests with the fixture `scale`, properties with more
    examples, and the tests in tests/long.
    """

    covers: str
    # Files and folders: run the part if one of them has changed.
    changes: tuple[str, ...]
    # On two cores.
    duration: str
    # Files, folders and patterns.
    files: tuple[str, ...]
    # Files of the patterns that other parts run.
    excluded: tuple[str, ...] = ()
    # Programs that no wheel brings, each with the Debian packages to install for it.
    programs: tuple[tuple[str, str], ...] = ()
    # Install the missing packages as root: the part needs root anyway.
    installs_programs: bool = False
    # The files share fixtures that take minutes.
    in_one_process: bool = False


_CRASHES = tuple(
    f"tests/acceptance/test_{name}.py"
    for name in (
        *("crashes", "failpoints", "faults", "soak", "batch_kills", "batch_resume"),
        *("batch_workers", "sdk_workers", "engine_isolation", "openai_disconnects"),
    )
)
_DOCKER = (("dockerd", "docker.io"), ("debootstrap", "debootstrap"))
_ARM64_COMPILER = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"

PARTS = {
    "security": Part(
        covers="floods, attacks by pages and files, kills of the engine under load",
        changes=("emulator/http", "emulator/middleware", "emulator/server"),
        duration="not measured yet",
        files=("tests/security", "tests/long/security"),
        programs=(("chromium", "chromium"),),
    ),
    "arm64": Part(
        covers="the RKLLM engine under qemu with an arm64 Python (`make test-arm64`)",
        changes=("engine/backends/rkllm", "engine/hosts"),
        duration="at most 20 minutes",
        files=("tests/long/test_arm64.py",),
        programs=(
            ("qemu-aarch64-static", "qemu-user-static"),
            ("aarch64-linux-gnu-gcc", _ARM64_COMPILER),
        ),
    ),
    "console": Part(
        covers="the console and /docs in Chromium: screens, accessibility, hostile texts",
        changes=("emulator/console", "docs/console.md"),
        duration="5 minutes",
        files=("tests/long/console",),
        programs=(("chromium", "chromium"),),
    ),
    "clients": Part(
        covers="known clients: correct answers, and broken streams with `worker-rkllm torture`",
        changes=("emulator/torture", "emulator/middleware/faults", "tests/clients/torture"),
        duration="at most 45 minutes",
        files=("tests/long/test_known_clients.py",),
    ),
    "crashes": Part(
        covers="kill -9 at every failpoint and at random, resume, disconnects, memory over time",
        changes=("jobs", "batch", "emulator/runpod"),
        duration="not measured yet",
        files=(
            *_CRASHES,
            "tests/integration/jobs",
            "tests/property/test_job_store.py",
            "tests/long/test_handler_kills.py",
            "tests/long/test_soak_long.py",
        ),
    ),
    "bare": Part(
        covers="a clone on a bare Debian, the first answer; as root",
        changes=("Makefile", "requirements"),
        duration="not measured yet",
        files=(
            "tests/long/test_bare_debian.py",
            "tests/long/test_fresh_clone.py",
            "tests/long/test_first_answer.py",
        ),
        programs=(("debootstrap", "debootstrap"),),
    ),
    "image": Part(
        covers="the container image, built and run by a Docker daemon of its own; as root",
        changes=(
            *("Dockerfile", ".dockerignore", "requirements/run.txt", "requirements/emulator.txt"),
            *("deploy/compose.yaml", "emulator/autoscaling/containers"),
        ),
        duration="10 minutes",
        files=("tests/image/test_*.py",),
        excluded=("tests/image/test_arm64.py",),
        programs=(*_DOCKER, ("docker-compose", "docker-compose"), ("podman", "podman")),
        installs_programs=True,
        in_one_process=True,
    ),
    "image-arm64": Part(
        covers="the container image for arm64, built and run by qemu; as root",
        changes=("Dockerfile", "requirements/run.txt"),
        duration="15 minutes",
        files=("tests/image/test_arm64.py",),
        programs=(*_DOCKER, ("qemu-aarch64-static", "qemu-user-static")),
        installs_programs=True,
        in_one_process=True,
    ),
    "programs": Part(
        covers="real clients, real models, all pages of the documentation, the fuzzed API",
        changes=("handler/apis/openai", "emulator/apis/openai", "emulator/autoscaling"),
        duration="not measured yet",
        files=(
            "tests/acceptance/test_*.py",
            "tests/integration",
            "tests/long/test_agents.py",
            "tests/long/test_documentation.py",
            "tests/long/test_fuzz_api.py",
            "tests/long/test_handler_examples.py",
            "tests/long/test_rkllm_thousand.py",
        ),
        excluded=_CRASHES,
    ),
    "speed": Part(
        covers="short benchmarks, time limits of validation, properties with many examples",
        changes=("validation", "benchmarks"),
        duration="not measured yet",
        files=(
            "tests/long/test_benchmarks.py",
            "tests/long/test_validation_time.py",
            "tests/unit",
            "tests/property",
        ),
        programs=(("wrk", "wrk"),),
    ),
    # It runs alone, on an idle machine, and the tests of other parts beside each other.
    "timing": Part(
        covers="tests that measure durations, one after the other: after a change of a time limit",
        changes=(),
        duration="not measured yet",
        files=SUITE,
    ),
}


def find_files(part: Part) -> list[str]:
    """Return the files and folders of a part, with its patterns resolved."""
    paths = (path for pattern in part.files for path in sorted(ROOT.glob(pattern)))
    files = (path.relative_to(ROOT).as_posix() for path in paths)
    return [file for file in files if file not in part.excluded]


def missing_packages(part: Part) -> list[str]:
    """Return the Debian packages of the programs that this machine lacks."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS))
    return [
        packages for program, packages in part.programs if shutil.which(program, path=path) is None
    ]


def install_programs(part: Part) -> None:
    """Install the Debian packages of the programs that are missing, if this runs as root.

    Raises:
        subprocess.CalledProcessError: apt-get failed, and has printed why.
    """
    packages = " ".join(missing_packages(part)).split()
    if not packages or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", "-q", *command], env=variables, check=True)


def parts_to_run(changed: Sequence[str]) -> list[str]:
    """Return the parts to run for some changed files."""
    return [
        name
        for name, part in PARTS.items()
        if any(f"{file}/".startswith(f"{path}/") for file in changed for path in part.changes)
    ]


def find_problems(names: Sequence[str]) -> Iterator[str]:
    """Yield why the parts cannot run: unknown names, or programs that are missing."""
    for name in names:
        if name not in PARTS:
            yield f"PART must be some of {' '.join(PARTS)}, got {name}"
        elif packages := missing_packages(PARTS[name]):
            yield f"PART={name} needs more: `apt-get install {' '.join(packages)}` brings it."


def build_commands(names: Sequence[str], options: Sequence[str]) -> Iterator[list[str]]:
    """Yield the calls of pytest for some parts: most at once, others alone, `timing` last."""
    parallel = os.environ.get("PARALLEL", "").split()
    alone = [name for name in names if PARTS[name].in_one_process]
    beside_others = [name for name in names if name not in ("timing", *alone)]
    pytest = [sys.executable, "-m", "pytest"]
    if beside_others:
        files = dict.fromkeys(file for name in beside_others for file in find_files(PARTS[name]))
        yield [*pytest, "--long", *parallel, *files, *options]
    for name in alone:
        yield [*pytest, "--long", *find_files(PARTS[name]), *options]
    if "timing" in names:
        yield [*pytest, "--timing", *find_files(PARTS["timing"]), *options]


def main(arguments: Sequence[str]) -> int:
    """Run some parts, or all. Return the status of the first call of pytest that failed."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names = [name for name in arguments[:end] if name != "--check"] or list(PARTS)
    for name in names:
        if name in PARTS and PARTS[name].installs_programs:
            install_programs(PARTS[name])
    if problems := list(find_problems(names)):
        sys.stderr.writelines(f"{problem}\n" for problem in problems)
        return 2
    if "--check" in arguments[:end]:
        return 0
    for name in names:
        sys.stderr.write(f"{name}: {PARTS[name].covers} ({PARTS[name].duration})\n")
    for command in build_commands(names, arguments[end + 1 :]):
        if status := subprocess.run(command, check=False, cwd=ROOT).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
