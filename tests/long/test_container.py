"""The image without a daemon: the instructions of the Dockerfile, run in a clean Debian.

No container engine runs where this project is tested, so no image is built. Instead debootstrap
makes a Debian with Python in a folder, like the base image, and each instruction runs there in a
chroot, as root. Packages come from the mirror and the index that this machine is configured for.
Nothing is mounted, so /proc exists only while debootstrap runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.debian import debootstrap, mounts, package_index
from tests.dockerfile import Instruction, default_build

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600
JOB = {"input": {"prompt": "Once upon a time", "sampling_params": {"max_tokens": 8}}}
# The packages that provide `python` and `pip`, which the base image has.
_PACKAGES = ("python3", "python3-pip")


@dataclass(slots=True)
class Image:
    """A root folder in which an image's instructions run in order."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0"
    command: list[str] = field(default_factory=list)
    health: str = ""

    def execute(self, instruction: Instruction) -> None:
        """Run one instruction; an unknown one raises a KeyError."""
        {
            "ARG": self._arg,
            "ENV": self._env,
            "RUN": self._run,
            "COPY": self._copy,
            "WORKDIR": self._workdir,
            "USER": self._user,
            "HEALTHCHECK": self._healthcheck,
            "CMD": self._cmd,
        }[instruction.name](instruction)

    def run(self, *command: str, user: str = "0", **variables: str) -> str:
        """Run a command in the image; return its output."""
        done = subprocess.run(
            ["chroot", f"--userspec={user}:{user}", self.root, "env", "-C", self.folder, *command],
            env={
                "PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/home/worker" if user != "0" else "/root",
                **self.variables,
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def _arg(self, each: Instruction) -> None:
        name, _, default = each.text.partition("=")
        self.arguments[name] = default

    def _env(self, each: Instruction) -> None:
        name, _, value = each.text.partition("=")
        self.variables[name] = value

    def _run(self, each: Instruction) -> None:
        self.run("sh", "-c", each.text, **self.arguments, **of_the_builder())

    def _copy(self, each: Instruction) -> None:
        assert "--" not in each.text, "a COPY with options is not known here"
        *sources, target = each.text.split()
        into = self.root / self.folder[1:] / target
        for source in sources:
            path = ROOT / source
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, into, ignore=ignored, dirs_exist_ok=True)
            else:
                if target.endswith("/"):
                    into.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, into)

    def _workdir(self, each: Instruction) -> None:
        self.folder = each.text
        (self.root / self.folder[1:]).mkdir(parents=True, exist_ok=True)

    def _user(self, each: Instruction) -> None:
        self.user = each.text

    def _healthcheck(self, each: Instruction) -> None:
        self.health = each.text

    def _cmd(self, each: Instruction) -> None:
        self.command = each.words()


def of_the_builder() -> Mapping[str, str]:
    """Return what a build needs to reach the index that pip is configured for on this machine."""
    return {
        **package_index(),
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_NO_COMPILE": "1",
        "DEBIAN_FRONTEND": "noninteractive",
    }


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    assert os.geteuid() == 0, "chroot needs root"
    root = tmp_path_factory.mktemp("image")
    debootstrap(root, _PACKAGES)
    try:
        # Users other than root must be able to enter the folder.
        root.chmod(0o755)
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        # Semaphores need this folder, which containers have.
        (root / "dev/shm").mkdir(exist_ok=True)
        (root / "dev/shm").chmod(0o1777)
        built = Image(root)
        for each in default_build(ROOT / "Dockerfile"):
            built.execute(each)
        yield built
    finally:
        assert mounts(root) == []
        shutil.rmtree(root)


@pytest.mark.timeout(3 * LIMIT_S)
def test_a_job_is_answered_in_the_image_by_its_own_command(image: Image) -> None:
    assert image.command == ["python", "-u", "-m", "handler"]
    printed = image.run(*image.command, "--test_input", json.dumps(JOB), user=image.user)
    output = json.loads(printed.splitlines()[-1])
    assert output["choices"][0]["text"]
    assert output["usage"]["output"] <= 8
    assert output["validation"]["intent"]


@pytest.mark.timeout(3 * LIMIT_S)
def test_image_runs_without_root_and_has_only_needed_files(image: Image) -> None:
    assert image.user == "1000"
    access = image.run(
        "python",
        "-c",
        "import os; print(os.getuid(), os.access('.', os.W_OK), os.access('/data', os.W_OK))",
        user=image.user,
    )
    assert access.split() == ["1000", "False", "True"]
    names = {path.name for path in (image.root / image.folder[1:]).iterdir()}
    packages = {"common", "engine", "handler", "validation", "emulator", "jobs", "batch"}
    assert names == packages | {"models", "requirements", "test_input.json"}


@pytest.mark.timeout(3 * LIMIT_S)
def test_the_health_check_is_a_command_of_the_image(image: Image) -> None:
    assert json.loads(image.health.partition("CMD ")[2]) == [
        "python",
        "-m",
        "emulator.status.healthcheck",
    ]
    program = (
        "from pathlib import Path; from emulator.status.healthcheck import main; "
        "here = Path('/tmp/command'); here.write_bytes(b'python\\0-m\\0handler\\0'); "
        "raise SystemExit(main(here))"
    )
    image.run("python", "-c", program, user=image.user)
