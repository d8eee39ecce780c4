"""The packages of vision encoders: their lock file, `make vision`, and the image's argument."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dockerfile import all_instructions

ROOT = Path(__file__).resolve().parents[3]
LOCK = (ROOT / "requirements" / "vision.txt").read_text()
# Runs the code of its -c as Python does on another machine.
FAKE_PYTHON = """#!/bin/sh
exec {python} -c 'import platform, sys
platform.machine = lambda: "{machine}"
sys.version_info = {version}
exec(sys.argv[2])' "$@"
"""


def test_lock_has_hashes_and_no_index_and_the_versions_of_the_image() -> None:
    requirements = re.findall(r"^([a-z0-9-]+)==(\S+)(.*)", LOCK, re.MULTILINE)
    names = {name for name, _, _ in requirements}
    assert names == {"numpy", "pillow", "psutil", "rknn-toolkit-lite2", "ruamel-yaml"}
    assert all(rest.endswith("\\") for _, _, rest in requirements)
    assert "://" not in LOCK
    of_the_image = (ROOT / "requirements" / "run.txt").read_text()
    for name, version, _ in requirements:
        if name in {"numpy", "psutil"}:
            assert f"\n{name}=={version} " in of_the_image


@pytest.mark.parametrize(
    ("machine", "version", "is_allowed"),
    [
        ("aarch64", (3, 11), True),
        ("aarch64", (3, 12), True),
        ("aarch64", (3, 13), False),
        ("x86_64", (3, 12), False),
    ],
)
def test_make_vision_refuses_machines_and_pythons_without_packages(
    tmp_path: Path, machine: str, version: tuple[int, int], is_allowed: bool
) -> None:
    python = tmp_path / "python"
    text = FAKE_PYTHON.format(python=shlex.quote(sys.executable), machine=machine, version=version)
    python.write_text(text)
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "vision-machine", f"VENV={tmp_path}/venv", f"PYTHON={python}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == is_allowed, done.stderr
    sentence = "rknn-toolkit-lite2 has packages for aarch64 with Python 3.11 or 3.12 only, which "
    assert done.stderr.startswith(sentence) != is_allowed


@pytest.mark.parametrize(("argument", "is_installed"), [("no", False), ("yes", True)])
def test_image_has_the_packages_if_its_build_argument_is_yes(
    tmp_path: Path, argument: str, is_installed: bool
) -> None:
    build = all_instructions(ROOT / "Dockerfile")
    assert "VISION=no" in [each.text for each in build if each.name == "ARG"]
    [command] = [each.text for each in build if each.name == "RUN" and "vision.txt" in each.text]
    pip = tmp_path / "pip"
    pip.write_text('#!/bin/sh\necho "$@"\n')
    pip.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={"PATH": str(tmp_path), "VISION": argument},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("--require-hashes --no-deps -r requirements/vision.txt" in done.stdout) == is_installed
    # Without it in the build's context, COPY would fail.
    assert "!requirements/vision.txt" in (ROOT / ".dockerignore").read_text().splitlines()
