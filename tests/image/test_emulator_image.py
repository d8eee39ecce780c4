"""The image of `--target emulator`: small, quick, and a local RunPod without a model."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from itertools import chain
from pathlib import Path

import httpx2
import pytest

from tests.image.containers import KEY, READY_S, Containers
from tests.image.engine import ROOT, Docker
from tests.image.test_workers import HANDLER, greet
from tests.waiting import wait_until_blocking

# The layers on top of the base image. python:3.11-slim-trixie has about 45 MB, compressed.
MAX_OWN_MB = 75
# Of all processes, up to the first job: docs/comparison.md has the wall time on an idle machine.
MAX_START_CPU_S = 2.0
MAX_IDLE_MB = 110


@pytest.fixture(scope="module")
def emulator_image(docker: Docker, base: str) -> str:
    tag = "worker-rkllm:emulator"
    docker.build(tag, ROOT, "--target", "emulator", "--build-arg", f"BASE_IMAGE={base}")
    return tag


def test_its_own_layers_are_small(docker: Docker, emulator_image: str, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    docker.run("save", "--output", archive, emulator_image)
    with tarfile.open(archive) as files:
        manifest = files.extractfile("manifest.json")
        assert manifest is not None
        # The first two are the base image and its certificates.
        layers = json.load(manifest)[0]["Layers"][2:]
        sizes = []
        for layer in layers:
            content = files.extractfile(layer)
            assert content is not None
            sizes.append(len(gzip.compress(content.read(), 6)) / 1e6)
    assert sum(sizes) < MAX_OWN_MB, sizes


def test_it_accepts_a_job_with_little_cpu_time_and_memory(
    emulator_image: str, containers: Containers
) -> None:
    server = containers.start_server(emulator_image)
    wait_until_blocking(lambda: accepts_job(server.port), READY_S)
    stats = server.execute("sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null")
    ticks = [line.rpartition(")")[2].split()[11:13] for line in stats.splitlines()]
    assert sum(map(int, chain.from_iterable(ticks))) / os.sysconf("SC_CLK_TCK") < MAX_START_CPU_S
    assert server.call("/v1/models").status_code == 404
    processes = server.execute("sh", "-c", "cat /proc/[0-9]*/smaps_rollup 2>/dev/null")
    resident_kb = sum(int(line.split()[1]) for line in processes.splitlines() if line[:4] == "Pss:")
    assert resident_kb / 1024 < MAX_IDLE_MB
    assert server.stop() < 10


def accepts_job(port: int) -> bool:
    headers = {"Authorization": f"Bearer {KEY}"}
    try:
        job = httpx2.post(f"http://127.0.0.1:{port}/run", json={"input": {}}, headers=headers)
    except httpx2.TransportError:
        return False
    return job.status_code == 200


def test_it_runs_a_handler_of_a_mounted_folder(
    emulator_image: str, containers: Containers, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "handler.py").write_text(HANDLER.format(greeting="Hello"))
    options = ("--volume", f"{tmp_path}:/project:ro")
    server = containers.start_server(emulator_image, "--handler", "/project", options=options)
    server.wait_until_ready()
    assert greet(server) == "Hello Ada"


@pytest.mark.parametrize("command", [("python", "-m", "handler"), ("python", "-m", "batch", "run")])
def test_command_that_needs_an_engine_is_refused_with_a_sentence(
    emulator_image: str, containers: Containers, command: tuple[str, ...]
) -> None:
    container = containers.start(emulator_image, *command)
    assert container.wait_for_end() == 2
    assert "Traceback" not in container.logs()


def test_it_knows_its_version(docker: Docker, emulator_image: str, containers: Containers) -> None:
    server = containers.start_server(emulator_image)
    server.wait_until_ready()
    [described] = json.loads(docker.run("image", "inspect", emulator_image))
    version = described["Config"]["Labels"]["org.opencontainers.image.version"]
    assert f"worker-rkllm {version} running on" in server.logs()
