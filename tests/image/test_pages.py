"""The examples of the documentation that call `docker`, run as they are written.

docs/not-run.md lists those that need a board, a GPU or a published port.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import pytest

from handler.models.default_model import DEFAULT_MODEL_PATH
from tests.acceptance.page_checks import docker_blocks
from tests.acceptance.pages import ROOT, Block, blocks
from tests.image.base_image import BASE
from tests.image.conftest import copy_build_context
from tests.image.containers import JOB, KEY, ONE_JOB, READY_S, Containers
from tests.image.engine import BUILD_LIMIT_S, Docker
from tests.ports import free_port
from tests.waiting import wait_for_server, wait_until_blocking

# The daemon has no bridge, so containers have the host's network, where the port may be in use.
# Builds need the host's network too, and a base image that no registry has to send.
REPLACEMENTS: Mapping[str, str] = {
    "docker build ": "docker build --network host --build-arg BASE_IMAGE={base} ",
    "-p 127.0.0.1:8000:8000": "--network host -e PORT={port}",
}
_SERVERS = ("-m emulator", "worker-rkllm serve")
_COMMAND = f'#!/bin/sh\nexec {sys.executable} -m worker_rkllm "$@"\n'
_SHELL = ("bash", "-euo", "pipefail", "-c")
_STOP_S = 60.0


@pytest.mark.usefixtures("user_base")
@pytest.mark.parametrize("block", docker_blocks(), ids=str)
def test_example_with_docker_runs_as_written(
    block: Block, image: str, docker: Docker, tmp_path: Path
) -> None:
    write_files(block.page, tmp_path)
    if any(words in block.text for words in _SERVERS):
        with serve(block, docker, tmp_path) as port:
            check_job(port, is_handler="handler" in block.page or "--handler" in block.text)
    else:
        shell(block.text, docker, tmp_path)
    wait_until_blocking(lambda: not docker.run("ps", "--all", "--quiet"), _STOP_S, gap_s=0.5)
    assert docker.has_image(image)


def test_image_with_a_model_of_its_own_is_built_on_top(
    image: str, docker: Docker, containers: Containers, tmp_path: Path
) -> None:
    [dockerfile] = read_blocks("docs/container.md", "dockerfile")
    (tmp_path / "Dockerfile").write_text(dockerfile)
    shutil.copy(DEFAULT_MODEL_PATH, tmp_path / "qwen.gguf")
    docker.build("own-model", tmp_path)
    container = containers.start("own-model", *ONE_JOB)
    assert container.wait_for_end() == 0, container.logs()
    assert '"choices"' in container.logs()


def write_files(page: str, folder: Path) -> None:
    """Write the files among which a reader of a page calls `docker`."""
    python = read_blocks("docs/handler.md", "python")
    [handler] = [each for each in python if each[:12] == "# handler.py"]
    (folder / "handler.py").write_text(handler)
    # A container's user reads it.
    folder.chmod(0o755)
    if page == "docs/handler.md":
        [dockerfile] = read_blocks(page, "dockerfile")
        (folder / "Dockerfile").write_text(dockerfile)
    else:
        copy_build_context(folder)
    command = folder / "bin/worker-rkllm"
    command.parent.mkdir()
    command.write_text(_COMMAND)
    command.chmod(0o755)


def read_blocks(page: str, language: str) -> list[str]:
    """Return the texts of a page's blocks in a language."""
    return [block.text for block in blocks(ROOT / page) if block.language == language]


def shell(text: str, docker: Docker, folder: Path) -> None:
    """Run commands of a page to their end."""
    done = subprocess.run(
        [*_SHELL, replaced(text, 0)],
        cwd=folder,
        env=variables(docker, folder, 0),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@contextmanager
def serve(block: Block, docker: Docker, folder: Path) -> Iterator[int]:
    """Run commands of a page of which the last one serves; yield its port, and stop it."""
    port = free_port()
    text = re.sub(r"^(?=worker-rkllm serve|docker run)", "exec ", block.text, flags=re.M)
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*_SHELL, replaced(text, port)],
            cwd=folder,
            env=variables(docker, folder, port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_for_server(server, partial(is_healthy, port), log, within_s=BUILD_LIMIT_S)
        yield port
        server.terminate()
        assert server.wait(_STOP_S) == 0, log.read_text()[-3000:]
    finally:
        server.kill()
        server.wait()


def replaced(text: str, port: int) -> str:
    """Return commands of a page with the replacements above."""
    for old, new in REPLACEMENTS.items():
        text = text.replace(old, new.format(base=BASE, port=port))
    return text


def variables(docker: Docker, folder: Path, port: int) -> Mapping[str, str]:
    """Return the environment of a page's commands: the daemon, and the installed command."""
    path = f"{folder}/bin:{docker.variables['PATH']}"
    state = str(folder / "jobs.sqlite3")
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "PORT": str(port), "JOB_DB": state}
    own["WORKER_BUILD_ARGS"] = "--network host"
    return {**docker.variables, **own}


def is_healthy(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx2.TransportError:
        return False


def check_job(port: int, *, is_handler: bool) -> None:
    """Run a job of a page's server: the handler of docs/handler.md greets."""
    job = {"input": {"name": "Ada"}} if is_handler else JOB
    headers = {"Authorization": f"Bearer {KEY}"}
    url = f"http://127.0.0.1:{port}/runsync"
    response = httpx2.post(url, json=job, headers=headers, timeout=READY_S).json()
    assert response["status"] == "COMPLETED", response
    assert not is_handler or response["output"] == {"greeting": "Hello, Ada!"}
