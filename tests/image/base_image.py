"""The image that builds start from: a Debian, or the Dockerfile's own with IMAGE_TESTS_PULL=yes.

Debian's Python is not the version of the Dockerfile's base image, but docs/container.md says that
such images work too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.debian import debootstrap, package_index
from tests.dockerfile import outside_bases
from tests.image.engine import ROOT, Docker

BASE = "base-of-tests"
# The one that the Dockerfile on docs/handler.md begins with.
USER_BASE = "python:3.12-slim"
_PULL_VARIABLE = "IMAGE_TESTS_PULL"
_PULL_S = 300.0
# They provide `python` and `pip`, which the base image must have.
_PACKAGES = ("ca-certificates", "python3", "python3-pip")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def make_base(docker: Docker, folder: Path) -> str:
    """Make the base image of all builds; return its tag. A tag that exists is used again.

    It has this machine's certificates and package index, so that builds reach the same packages.
    """
    if not docker.has_image(BASE):
        pulls = os.environ.get(_PULL_VARIABLE) == "yes"
        build_base(docker, folder, BASE, _pull(docker) if pulls else make_debian(folder))
    return BASE


def build_base(docker: Docker, folder: Path, tag: str, begin: str, *options: str) -> None:
    """Build a base image from the first lines of its Dockerfile."""
    shutil.copy(_CERTIFICATES, folder)
    variables = package_index().items()
    settings = "".join(f"ENV {name}={shlex.quote(value)}\n" for name, value in variables)
    (folder / "Dockerfile").write_text(
        f"{begin}COPY {_CERTIFICATES.name} {_CERTIFICATES.parent}/\n{settings}"
    )
    docker.build(tag, folder, *options)
    for file in folder.iterdir():
        file.unlink()


def build_user_base(docker: Docker, folder: Path) -> None:
    """Build the base image of a user's worker, in which `pip install` works as on RunPod's."""
    # Debian's pip installs nothing beside Debian's own packages without this permission.
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nENV PIP_BREAK_SYSTEM_PACKAGES=1\n")
    docker.build(USER_BASE, folder)


def _pull(docker: Docker) -> str:
    """Pull the Dockerfile's base image, which needs a registry of images."""
    [base] = outside_bases(ROOT / "Dockerfile")
    docker.run("pull", base, limit_s=_PULL_S)
    return f"FROM {base}\n"


def make_debian(folder: Path, *options: str) -> str:
    """Make a Debian of this machine's release with its Python, and return the lines that add it."""
    root = folder / "debian"
    debootstrap(root, _PACKAGES, *options)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    subprocess.run(["tar", "-C", root, "-cf", folder / "debian.tar", "."], check=True)
    shutil.rmtree(root)
    return "FROM scratch\nADD debian.tar /\n"
