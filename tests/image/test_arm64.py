"""The image for arm64, the boards' architecture, built and run by qemu: some 15 minutes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.image.base_image import build_base, make_debian
from tests.image.containers import ONE_JOB
from tests.image.engine import ROOT, Docker

PLATFORM = ("--platform", "linux/arm64")
BASE = "base-of-tests-arm64"
LIMIT_S = 1800
# An ELF file of 64 bits for AArch64 (machine 183), a program or a library; binfmt_misc's text form.
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"
_NAME = "worker-rkllm-tests-arm64"


@contextmanager
def qemu_as_interpreter(folder: Path) -> Iterator[None]:
    """Have the kernel run programs for arm64 by qemu, in containers too (flag F)."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "binfmt_misc", "none", folder], check=True)
    try:
        qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
        (folder / "register").write_text(f":{_NAME}:M::{_MAGIC}:{_MASK}:{qemu}:F")
        try:
            yield
        finally:
            (folder / _NAME).write_text("-1")
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.timeout(2 * LIMIT_S)
def test_image_for_arm64_is_built_and_answers_one_job(docker: Docker, tmp_path: Path) -> None:
    context = tmp_path / "base"
    context.mkdir()
    with qemu_as_interpreter(tmp_path / "binfmt"):
        if not docker.has_image(BASE):
            begin = make_debian(context, "--arch=arm64")
            build_base(docker, context, BASE, begin, *PLATFORM)
        options = (*PLATFORM, "--build-arg", f"BASE_IMAGE={BASE}")
        docker.build("worker-rkllm:arm64", ROOT, *options, limit_s=LIMIT_S)
        command = ("run", "--rm", "--network", "none", *PLATFORM, "worker-rkllm:arm64")
        output = docker.run(*command, *ONE_JOB, limit_s=LIMIT_S)
    assert '"choices"' in output.splitlines()[-1]
