"""deploy/compose.yaml with Docker Compose, on a machine without a board."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from handler.models.default_model import DEFAULT_MODEL_PATH
from tests.image.containers import KEY, Container, Server
from tests.image.engine import ROOT, Docker
from tests.ports import free_port

COMPOSE = ROOT / "deploy/compose.yaml"
# Of a board only, and absent on other machines. The other mounts exist on every Debian.
BOARD_FOLDERS = ("/opt/rkllm/lib", "/sys/firmware/devicetree/base")
LIMIT_S = 300.0


def without_board(port: int) -> str:
    """Return compose.yaml without devices and folders of a board, and with the host's network."""
    document = yaml.safe_load(COMPOSE.read_text())
    server = document["services"]["server"]
    # The image exists: `build` has no way to name the base image of these tests.
    del server["build"], server["devices"], server["ports"]
    server |= {"image": "worker-rkllm", "network_mode": "host"}
    server["volumes"] = [
        each for each in server["volumes"] if each.partition(":")[0] not in BOARD_FOLDERS
    ]
    server["environment"] |= {"PORT": str(port), "ENGINE": "llamacpp"}
    # Version 1 of Compose only reads the format of newer versions if the file names no format.
    return json.dumps(document)


def compose(docker: Docker, folder: Path, variables: Mapping[str, str], *command: str) -> str:
    """Run Docker Compose with the changed file in a folder like `deploy`."""
    done = subprocess.run(
        ["docker-compose", "--project-name", "board", "--file", folder / COMPOSE.name, *command],
        env={**docker.variables, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_compose_starts_the_server_and_removes_it_again(
    docker: Docker, image: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "models").mkdir()
    shutil.copy(DEFAULT_MODEL_PATH, tmp_path / "models/model.gguf")
    folder = tmp_path / "deploy"
    folder.mkdir()
    port = free_port()
    (folder / COMPOSE.name).write_text(without_board(port))
    # The group that owns the devices may be the one of the video devices.
    variables = {"API_KEYS": KEY, "MODEL": "model.gguf", "RENDER_GID": "105"}
    compose(docker, folder, variables, "up", "--detach")
    try:
        [name] = compose(docker, folder, variables, "ps", "--quiet").split()
        server = Server(docker, name, port)
        server.wait_until_ready()
        assert server.call("/v1/models", key=None).status_code == 401
        assert server.run_job()["status"] == "COMPLETED"
        assert writable_folders(server) == {"/data", "/tmp"}  # noqa: S108 - of the container
    finally:
        compose(docker, folder, variables, "down", "--volumes")
    assert docker.run("ps", "--all", "--quiet") == ""
    assert docker.run("volume", "ls", "--quiet") == ""


def writable_folders(server: Container) -> set[str]:
    """Return the folders in which the server's user can create files, of those that exist."""
    program = (
        "import os\n"
        "for each in ('/data', '/tmp', '/app', '/models', '/home/worker'):\n"
        "    if os.access(each, os.W_OK):\n"
        "        print(each)"
    )
    return set(server.execute("python", "-c", program).split())
