"""`serve --image` and `test --image`: a user's own image is the worker, as on RunPod."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.image.engine import ROOT, Docker
from tests.ports import free_port
from tests.waiting import wait_for_server, wait_until_blocking

# As docs/handler.md has it; a new name, so that no other test removes it.
REFERENCE = "greeter"
DOCKERFILE = """FROM {base}
RUN pip install --no-cache-dir runpod
COPY handler.py /
CMD ["python", "-u", "/handler.py"]
"""
HANDLER = """
import os
import time

import runpod


def handler(job):
    wish = job["input"]
    if "exit" in wish:
        os._exit(wish["exit"])
    if "megabytes" in wish:
        return len(b"x" * (wish["megabytes"] * 1_000_000))
    time.sleep(wish.get("sleep_s", 0))
    return {"greeting": "Hello, " + wish["name"], "mark": os.environ["MARK"],
            "text": os.environ["TEXT"], "files": os.listdir("/runpod-volume")}


runpod.serverless.start({"handler": handler})
"""
# A value of two lines, which an --env-file could not have.
VARIABLES = 'MARK="from the project"\nTEXT="two\nlines"\n'
READY_S, JOB_S, STOP_S = 90.0, 60.0, 60.0


class Server:
    """A server on this machine, whose workers are containers."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> Any:
        return httpx2.get(f"http://127.0.0.1:{self.port}{path}", timeout=JOB_S).json()

    @property
    def state(self) -> str:
        return str(self.get("/health")["handler"]["state"])

    def submit(self, **wish: Any) -> str:
        body = {"input": wish}
        response = httpx2.post(f"http://127.0.0.1:{self.port}/run", json=body, timeout=JOB_S)
        return str(response.json()["id"])

    def wait_for_job(self, job: str) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            body: dict[str, Any] = self.get(f"/status/{job}")
            return body if body["status"] not in ("IN_QUEUE", "IN_PROGRESS") else None

        return wait_until_blocking(ended, JOB_S, gap_s=0.1)

    def run_job(self, **wish: Any) -> dict[str, Any]:
        return self.wait_for_job(self.submit(**wish))

    def wait_until_ready(self) -> None:
        wait_until_blocking(lambda: self.state == "ready", READY_S, gap_s=0.2)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(STOP_S) == 0, self.log[-3000:]


@pytest.fixture
def project(tmp_path: Path, user_base: str) -> Path:
    """A project as RunPod builds it, with a folder for `/runpod-volume` beside it."""
    folder = tmp_path / "greeter"
    folder.mkdir()
    (folder / "Dockerfile").write_text(DOCKERFILE.format(base=user_base))
    (folder / "handler.py").write_text(HANDLER)
    (folder / ".env").write_text(VARIABLES)
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "model.bin").touch()
    return folder


@pytest.fixture
def greeter(docker: Docker, project: Path) -> str:
    docker.build(REFERENCE, project)
    return REFERENCE


@contextmanager
def serve(docker: Docker, project: Path, *arguments: str, **variables: str) -> Iterator[Server]:
    port = free_port()
    log = project.parent / f"server-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker_rkllm", "serve", *arguments],
            cwd=project,
            env=environment(docker, project) | {"PORT": str(port), **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    server = Server(process, port, log)
    try:
        wait_for_server(process, partial(answers, port), log, within_s=READY_S)
        yield server
    finally:
        process.kill()
        process.wait()
        docker.remove_containers()


def environment(docker: Docker, project: Path) -> dict[str, str]:
    return {
        **docker.variables,
        "PYTHONPATH": str(ROOT),
        "JOB_DB": ":memory:",
        "VOLUME_DIR": str(project.parent / "volume"),
        # Containers have no network of their own here, and builds need the machine's.
        "WORKER_BUILD_ARGS": "--network host",
        "LOG_FORMAT": "console",
    }


def answers(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx2.TransportError:
        return False


def list_containers(docker: Docker) -> list[str]:
    return docker.run("ps", "--all", "--quiet").split()


def test_image_has_its_variables_and_its_volume_and_ends_with_the_server(
    docker: Docker, project: Path, greeter: str
) -> None:
    with serve(docker, project, "--image", greeter) as server:
        ended = server.run_job(name="Ada")
        assert ended["output"] == {
            "greeting": "Hello, Ada",
            "mark": "from the project",
            "text": "two\nlines",
            "files": ["model.bin"],
        }
        assert "image     greeter (sha256:" in server.log
        server.stop()
        assert list_containers(docker) == []


def test_two_workers_run_two_jobs_at_once(docker: Docker, project: Path, greeter: str) -> None:
    with serve(docker, project, "--image", greeter, "--workers", "2", WORKERS_MIN="2") as server:
        server.wait_until_ready()
        wait_until_blocking(
            lambda: server.get("/v2/greeter/health")["workers"]["idle"] == 2, READY_S
        )
        jobs = [server.submit(name=name, sleep_s=4) for name in ("Ada", "Bob")]
        ended = [server.wait_for_job(job) for job in jobs]
        assert [each["status"] for each in ended] == ["COMPLETED"] * 2
        assert len({each["workerId"] for each in ended}) == 2
        assert len(list_containers(docker)) == 2


def test_error_of_a_job_says_how_its_container_ended(
    docker: Docker, project: Path, greeter: str
) -> None:
    variables = {"MAX_LOSSES": "1", "WORKER_RUN_ARGS": "--memory 200m --memory-swap 200m"}
    with serve(docker, project, "--image", greeter, **variables) as server:
        crashed = server.run_job(exit=3)
        assert "its worker exited with code 3" in crashed["error"]
        eaten = server.run_job(megabytes=900)
        assert "was killed because it used more memory than its container may" in eaten["error"]
        server.wait_until_ready()
        (name,) = docker.run("ps", "--format", "{{.Names}}").split()
        job = server.submit(name="Ada", sleep_s=60)
        wait_until_blocking(lambda: server.get(f"/status/{job}")["status"] == "IN_PROGRESS", JOB_S)
        docker.run("kill", name)
        assert "its worker was killed by SIGKILL" in server.wait_for_job(job)["error"]
        assert server.run_job(name="Ada")["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo bye", "exited with code 0 without starting a worker"),
        ("exec nosuchprogram", "exited with code 127"),
        ("exec sleep 600", "did not ask for a job within 3 s (RUNPOD_INIT_TIMEOUT)"),
    ],
)
def test_container_that_never_asks_for_a_job_is_the_jobs_error(
    docker: Docker, project: Path, greeter: str, command: str, reason: str
) -> None:
    (project / "Dockerfile").write_text(f"FROM {greeter}\nCMD {command}\n")
    docker.build("never", project)
    (project / ".env").write_text("RUNPOD_INIT_TIMEOUT=3")
    with serve(docker, project, "--image", "never") as server:
        ended = server.run_job(name="Ada")
        assert ended["status"] == "FAILED"
        assert ended["error"].startswith("never did not start: it ")
        assert reason in ended["error"]


def test_image_is_built_again_after_an_edit_and_a_failed_build_is_shown(
    docker: Docker, project: Path
) -> None:
    with serve(docker, project, "--build", ".") as server:
        assert server.run_job(name="Ada")["output"]["greeting"] == "Hello, Ada"
        (project / "handler.py").write_text(HANDLER.replace("Hello", "Welcome"))
        greeting = partial(lambda: server.run_job(name="Ada")["output"]["greeting"])
        wait_until_blocking(lambda: greeting() == "Welcome, Ada", READY_S, gap_s=0.3)
        dockerfile = (project / "Dockerfile").read_text()
        (project / "Dockerfile").write_text(dockerfile + "RUN false\n")
        wait_until_blocking(lambda: server.state == "outdated", READY_S, gap_s=0.2)
        failure = server.get("/health")["handler"]["failure"]
        assert failure["reason"] == "it was not built: docker build ended with exit code 1"
        assert greeting() == "Welcome, Ada"
        (project / "Dockerfile").write_text(dockerfile)
        server.wait_until_ready()
        server.stop()
        assert list_containers(docker) == []
        built = docker.run("images", "--quiet", "--filter", f"label=worker-rkllm.build={project}")
        assert len(built.split()) == 1


def test_killed_server_leaves_no_container(docker: Docker, project: Path, greeter: str) -> None:
    with serve(docker, project, "--image", greeter) as server:
        server.wait_until_ready()
        server.process.kill()
        wait_until_blocking(lambda: not list_containers(docker), STOP_S, gap_s=0.2)


def test_next_server_removes_what_a_lost_machine_has_left(
    docker: Docker, project: Path, greeter: str
) -> None:
    with serve(docker, project, "--image", greeter) as server:
        server.wait_until_ready()
        (left,) = list_containers(docker)
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        # At once, so that no supervisor can remove its container.
        for process in [*map(int, children.read_text().split()), server.process.pid]:
            os.kill(process, signal.SIGSTOP)
        for process in [*map(int, children.read_text().split()), server.process.pid]:
            os.kill(process, signal.SIGKILL)
        server.process.wait()
        assert list_containers(docker) == [left]
        with serve(docker, project, "--image", greeter) as second:
            second.wait_until_ready()
            assert left not in list_containers(docker)
            assert "1 containers of a server that was killed were removed" in second.log


def test_tests_of_a_project_run_against_its_image(docker: Docker, project: Path) -> None:
    tests = {"tests": [{"name": "greets", "input": {"name": "Ada"}}]}
    (project / "tests.json").write_text(json.dumps(tests))
    done = subprocess.run(
        [sys.executable, "-m", "worker_rkllm", "test", "--build", "."],
        cwd=project,
        env=environment(docker, project),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "Testing greeter:worker-rkllm with tests.json" in done.stdout
    assert list_containers(docker) == []


def test_podman_runs_the_same_image(
    docker: Docker, project: Path, greeter: str, tmp_path: Path
) -> None:
    podman = shutil.which("podman")
    assert podman is not None, "apt-get install podman"
    storage, settings = tmp_path / "storage.conf", tmp_path / "containers.conf"
    folders = f'graphroot = "{tmp_path}/podman"\nrunroot = "{tmp_path}/run"\n'
    storage.write_text(f'[storage]\ndriver = "overlay"\n{folders}')
    # As root in a container, without systemd and without the right to raise limits.
    engine = 'runtime = "runc"\ncgroup_manager = "cgroupfs"\n'
    settings.write_text(f"[containers]\ndefault_ulimits = []\n[engine]\n{engine}")
    # Podman reads the logins of Docker, if this names a folder of them.
    (tmp_path / "config.json").write_text("{}")
    variables = {
        "DOCKER_CONFIG": str(tmp_path),
        "CONTAINERS_STORAGE_CONF": str(storage),
        "CONTAINERS_CONF": str(settings),
        "CONTAINER_ENGINE": podman,
        "MAX_LOSSES": "1",
    }
    archive = tmp_path / "greeter.tar"
    docker.run("save", "--output", archive, greeter)
    client = {**os.environ, **variables}
    subprocess.run([podman, "load", "--input", archive], env=client, check=True, timeout=120)
    try:
        with serve(docker, project, "--image", greeter, **variables) as server:
            ended = server.run_job(name="Ada")
            assert ended["status"] == "COMPLETED", ended["error"] + server.log
            assert ended["output"]["greeting"] == "Hello, Ada"
            # Podman 4.3 sometimes reports the end only after the server has missed the worker.
            crashed = server.run_job(exit=3)["error"]
            assert crashed.endswith(("exited with code 3 and printed nothing", "went away"))
            assert server.run_job(name="Bob")["output"]["greeting"] == "Hello, Bob"
            server.stop()
        left = subprocess.run(
            [podman, "ps", "--all", "--quiet"],
            env=client,
            capture_output=True,
            text=True,
            check=True,
        )
        assert left.stdout == ""
    finally:
        subprocess.run([podman, "system", "reset", "--force"], env=client, check=True, timeout=60)
