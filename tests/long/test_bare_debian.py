"""`make run` and `make test` of a clone, on a Debian with only the packages that the README names.

`make test-long` runs the tests that need more than Python: Node.js, a C compiler, curl and jq. The
complete suite takes too long for that; `make test-bare` runs it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.debian import debootstrap, mounts, package_index

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("python3", "python3-venv", "make", "git", "libgomp1", "ca-certificates")
# For each program that the system lacks, the tests that would run it.
TESTS_OF_PROGRAMS = (
    "tests/acceptance/test_openai_programs.py",
    "tests/unit/emulator/console/test_scripts.py",
    "tests/integration/engine/rkllm/test_fake_build.py",
    "tests/unit/engine/backends/rkllm",
)
IS_COMPLETE_SUITE = os.environ.get("BARE_SUITE") == "all"
LIMIT_S = 3600 if IS_COMPLETE_SUITE else 1200


@dataclass(frozen=True, slots=True)
class Machine:
    """A Debian in a folder with a clone of this repository in /clone."""

    root: Path

    def run(self, *command: str, limit_s: float = LIMIT_S) -> str:
        """Run a command in the clone and return its stdout.

        /proc, /dev/shm and /dev/pts are mounted in a namespace of this command alone, which
        unmounts them. Without /dev/pts there are no terminals, which many tests open.
        """
        script = (
            'mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" && '
            'mkdir -p "$1/dev/pts" && touch "$1/dev/ptmx" && '
            'mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts" && '
            'mount --bind "$1/dev/pts/ptmx" "$1/dev/ptmx" && '
            'root=$1 && shift && exec chroot "$root" env -C /clone "$@"'
        )
        namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
        done = subprocess.run(
            [*namespaces, "sh", "-c", script, "sh", str(self.root), *command],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
                "LANG": "C.UTF-8",
                **package_index(),
            },
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    assert os.geteuid() == 0, "chroot needs root"
    root = tmp_path_factory.mktemp("debian")
    debootstrap(root, PACKAGES)
    try:
        clone = ["git", "clone", "-q", "--no-local", str(ROOT), str(root / "clone")]
        subprocess.run(clone, check=True, timeout=60)
        yield Machine(root)
    finally:
        assert mounts(root) == []
        shutil.rmtree(root)


@pytest.mark.timeout(LIMIT_S + 300)
def test_make_run_answers_a_job_on_a_bare_debian(machine: Machine) -> None:
    for program in ("node", "npm", "cc", "gcc", "curl", "jq"):
        assert not list(machine.root.glob(f"usr/bin/{program}")), f"{program} is installed"
    output = json.loads(machine.run("make", "run").rstrip("\n").splitlines()[-1])
    assert output["usage"]["output"] > 0


@pytest.mark.timeout(LIMIT_S + 300)
def test_make_test_runs_what_needs_other_programs_on_a_bare_debian(machine: Machine) -> None:
    suite = () if IS_COMPLETE_SUITE else (f"SUITE={' '.join(TESTS_OF_PROGRAMS)}",)
    output = machine.run("make", "test", *suite)
    lines = output.rstrip().splitlines()
    summary = lines[-1 if "passed" in lines[-1] else -2]
    assert " passed" in summary
    assert "skipped" not in summary
    if not IS_COMPLETE_SUITE:
        collected = machine.run(
            *("env", "OPENBLAS_NUM_THREADS=1", ".venv/bin/python", "-m", "pytest"),
            *("-q", "--collect-only", "tests/unit", "tests/property"),
            *("tests/integration", "tests/acceptance"),
        )
        assert "error" not in collected.splitlines()[-1]
