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
        origin = _pull(docker) if pulls else _import_debian(docker, folder)
        context = folder / "base"
        context.mkdir()
        shutil.copy(_CERTIFICATES, context)
        variables = package_index().items()
        settings = "".join(f"ENV {name}={shlex.quote(value)}\n" for name, value in variables)
        (context / "Dockerfile").write_text(
            f"FROM {origin}\nCOPY {_CERTIFICATES.name} {_CERTIFICATES.parent}/\n{settings}"
        )
        docker.build(BASE, context)
    return BASE


def _pull(docker: Docker) -> str:
    """Pull the Dockerfile's base image, which needs a registry of images."""
    [base] = outside_bases(ROOT / "Dockerfile")
    docker.run("pull", base, limit_s=_PULL_S)
    return base


def _import_debian(docker: Docker, folder: Path) -> str:
    """Import a Debian of this machine's release with its Python."""
    root = folder / "debian"
    tag = "debian-of-tests"
    debootstrap(root, _PACKAGES)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    archive = folder / "debian.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    shutil.rmtree(root)
    # Debian's pip installs nothing beside Debian's own packages without this permission.
    docker.run("import", "--change", "ENV PIP_BREAK_SYSTEM_PACKAGES=1", archive, tag)
    archive.unlink()
    return tag
