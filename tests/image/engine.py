"""A Docker daemon of the tests' own, and its client.

The daemon has its own data, socket and mount namespace. It creates no bridge and no firewall rules,
so that nothing on the machine changes: containers have the host's network or none.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.debian import mounts
from tests.waiting import wait_for_server

ROOT = Path(__file__).resolve().parents[2]
# Set it to a folder that keeps images between runs: with its cache, a build takes seconds.
KEEP_VARIABLE = "IMAGE_TESTS_KEEP"
BUILD_LIMIT_S = 600.0
_LIMIT_S = 120.0
_START_S, _STOP_S = 60.0, 60.0
# The newest API of Debian 12's daemon. Newer clients would ask for a newer one.
_API_VERSION = "1.41"
_LABEL = "worker-rkllm-tests"


class CommandFailed(AssertionError):
    """A command of the client ended with another exit code than 0."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.output = done.stdout + done.stderr
        super().__init__(f"{done.args} exited with {self.code}: {self.output[-3000:]}")


class Docker:
    """A client of one daemon."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self._log = folder / "dockerd.log"
        self.variables: Mapping[str, str] = {
            **os.environ,
            # For commands of the documentation, which call `docker` by its name.
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_API_VERSION": _API_VERSION,
            "DOCKER_BUILDKIT": "1",
            "BUILDKIT_PROGRESS": "plain",
            "DOCKER_CONFIG": str(folder / "config"),
        }

    def run(self, *arguments: str | Path, limit_s: float = _LIMIT_S) -> str:
        """Run a command of the client; return its output and its errors. Raises CommandFailed."""
        done = self.try_run(*arguments, limit_s=limit_s)
        if done.returncode != 0:
            raise CommandFailed(done)
        return done.stdout + done.stderr

    def try_run(
        self, *arguments: str | Path, limit_s: float = _LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the client, whatever its exit code."""
        return subprocess.run(
            [self.program, *arguments],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def build(
        self, tag: str, folder: Path, *options: str | Path, limit_s: float = BUILD_LIMIT_S
    ) -> None:
        """Build the Dockerfile in a folder. Its packages come through the host's network."""
        command = ("build", "--network", "host", "--tag", tag)
        self.run(*command, *options, folder, limit_s=limit_s)

    def has_image(self, tag: str) -> bool:
        """Return whether the daemon has an image of this name."""
        return self.try_run("image", "inspect", tag).returncode == 0

    def remove_containers(self) -> None:
        """End and remove all containers, and the volumes that they used."""
        if containers := self.run("ps", "--all", "--quiet").split():
            # A server under test may remove some of them at the same time.
            self.try_run("rm", "--force", "--volumes", *containers)
        if volumes := self.run("volume", "ls", "--quiet").split():
            self.run("volume", "rm", "--force", *volumes)


@contextmanager
def open_docker(temporary: Path) -> Iterator[Docker]:
    """Start a daemon, and end it. Its data is removed, unless the variable above names a folder."""
    assert os.geteuid() == 0, "Docker's daemon needs root"
    kept = os.environ.get(KEEP_VARIABLE)
    folder = Path(kept) if kept else temporary / "docker"
    folder.mkdir(parents=True, exist_ok=True)
    docker = Docker(_find_client(), folder)
    daemon = _start_daemon(docker, folder)
    try:
        yield docker
    finally:
        docker.remove_containers()
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        # Its mounts are in a namespace of its own, and end with it.
        assert mounts(folder) == []
        if not kept:
            shutil.rmtree(folder)


def _find_client() -> Path:
    """Return the first client that builds with BuildKit: version 20, or a newer one with buildx.

    Without buildx, newer clients only have the old builder.
    """
    names = [Path(each) / "docker" for each in os.environ["PATH"].split(os.pathsep)]
    for program in [*names, Path("/usr/bin/docker")]:
        if os.access(program, os.X_OK) and _has_buildkit(program):
            return program
    raise AssertionError("no docker on the PATH can use BuildKit: Debian's docker.io can")


def _has_buildkit(program: Path) -> bool:
    version = _read(program, "--version").partition("version ")[2].partition(".")[0]
    return (version.isdigit() and int(version) < 23) or "buildx" in _read(
        program, "buildx", "version"
    )


def _read(program: Path, *arguments: str) -> str:
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    return done.stdout if done.returncode == 0 else ""


def _start_daemon(docker: Docker, folder: Path) -> subprocess.Popen[bytes]:
    log = folder / "dockerd.log"
    pid_file = folder / "pid"
    pid_file.unlink(missing_ok=True)
    command: list[str | Path] = [
        *("unshare", "--mount", "--propagation", "private"),
        *("dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec"),
        *("--host", docker.variables["DOCKER_HOST"], "--pidfile", pid_file),
        *("--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=overlay2"),
    ]
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            command,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    wait_for_server(
        daemon, lambda: docker.try_run("version").returncode == 0, log, within_s=_START_S
    )
    return daemon
