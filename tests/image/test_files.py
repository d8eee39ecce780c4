"""The files of the image, its user, and one job."""

from __future__ import annotations

import json

from tests.image.containers import ONE_JOB, Containers

PACKAGES = {"common", "engine", "handler", "validation", "emulator", "jobs", "batch"}


def test_image_answers_one_job_without_network(image: str, containers: Containers) -> None:
    container = containers.start(image, *ONE_JOB)
    assert container.wait_for_end() == 0, container.logs()
    output = json.loads(container.logs().splitlines()[-1])
    assert output["choices"][0]["text"]
    assert output["usage"]["output"] <= 8
    assert output["validation"]["intent"]


def test_image_without_a_model_names_the_setting(
    image_without_model: str, containers: Containers
) -> None:
    listed = containers.start(image_without_model, "ls", "/app/models")
    assert (listed.wait_for_end(), listed.logs()) == (0, "")
    container = containers.start(image_without_model)
    code, log = container.wait_for_end(), container.logs()
    assert code != 0
    assert "MODEL_PATH" in log.splitlines()[-1], log
    assert "Traceback" not in log


def test_image_runs_without_root_and_writes_only_to_its_data_folder(
    image: str, containers: Containers
) -> None:
    program = (
        "import os\n"
        "for folder, _, _ in os.walk('/'):\n"
        "    if not folder.startswith(('/proc', '/sys', '/dev')) and os.access(folder, os.W_OK):\n"
        "        print(folder)\n"
        "print(os.getuid())"
    )
    container = containers.start(image, "python", "-c", program)
    assert container.wait_for_end() == 0
    *writable, user = container.logs().split()
    assert user == "1000"
    shared = {"/tmp", "/var/tmp", "/run/lock", "/home/worker"}  # noqa: S108 - of the container
    assert set(writable) - shared == {"/data"}


def test_image_has_only_the_needed_files(image: str, containers: Containers) -> None:
    container = containers.start(image, "ls", "-A", "/app")
    assert container.wait_for_end() == 0
    names = set(container.logs().split())
    assert names == PACKAGES | {"models", "pyproject.toml", "test_input.json"}
