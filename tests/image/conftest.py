"""The images under test. They are built once, in the order of their stages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fake_rkllm
from tests.image.base_image import USER_BASE, build_user_base, make_base
from tests.image.containers import Containers
from tests.image.engine import ROOT, Docker, open_docker

IMAGE = "worker-rkllm"


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    with open_docker(tmp_path_factory.mktemp("docker")) as docker:
        yield docker


@pytest.fixture(scope="session")
def base(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base image of all builds."""
    return make_base(docker, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def user_base(docker: Docker, base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base image of users' workers."""
    build_user_base(docker, tmp_path_factory.mktemp("user-base"))
    return USER_BASE


@pytest.fixture(scope="session")
def image(docker: Docker, base: str) -> str:
    """The image of the Dockerfile without options."""
    docker.build(IMAGE, ROOT, "--build-arg", f"BASE_IMAGE={base}")
    return IMAGE


@pytest.fixture(scope="session")
def image_without_model(docker: Docker, base: str, image: str) -> str:
    """The same with BAKE_MODEL=no. Its other layers come from the cache."""
    tag = f"{image}:without-model"
    arguments = (f"BASE_IMAGE={base}", "BAKE_MODEL=no")
    docker.build(tag, ROOT, *(each for name in arguments for each in ("--build-arg", name)))
    return tag


@pytest.fixture(scope="session")
def board_image(
    docker: Docker, base: str, image: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The image for boards, with the stand-in for Rockchip's library."""
    folder = tmp_path_factory.mktemp("board")
    copy_build_context(folder)
    shutil.copy(fake_rkllm.build("1.3", folder / "library"), folder / "librkllmrt.so")
    tag = f"{image}:board"
    docker.build(tag, folder, "--target", "rkllm", "--build-arg", f"BASE_IMAGE={base}")
    return tag


@pytest.fixture
def containers(docker: Docker) -> Iterator[Containers]:
    """Starts containers, and removes them at the end of the test."""
    yield Containers(docker)
    docker.remove_containers()


def copy_build_context(folder: Path) -> None:
    """Copy the files that `.dockerignore` names, so that others can be put beside them."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in (".dockerignore", "Dockerfile", *(each[1:] for each in lines if each[0] == "!")):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        elif source.is_file():
            shutil.copy(source, target)
