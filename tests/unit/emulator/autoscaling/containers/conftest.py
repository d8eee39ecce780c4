"""A program in place of Docker, which writes down its calls; tests/image has the real one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from emulator.autoscaling.containers.container_engine import ContainerEngine

# `run` and `build` are scripts of the test; the answers to `inspect` are files of it.
_PROGRAM = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/calls"
case "$1 $2" in
    "container inspect") cat "$here/container.json" 2>/dev/null ;;
    "image inspect") cat "$here/image.json" 2>/dev/null ;;
    "rm "*) rm -f "$here/container.json" ;;
    "run "*) . "$here/run.sh" ;;
    "build "*) . "$here/build.sh" ;;
    "pull "*) . "$here/pull.sh" ;;
    "info "*) cat "$here/info" ;;
    "ps "*) cat "$here/ps" 2>/dev/null || true ;;
esac
"""


class FakeEngine(ContainerEngine):
    """An engine whose program is a script in a folder of the test."""

    def __init__(self, folder: Path, name: str = "docker") -> None:
        self.folder = folder
        program = folder / name
        program.write_text(_PROGRAM)
        program.chmod(0o755)
        super().__init__(str(program))

    def write(self, name: str, text: str) -> None:
        """Write what the program does or answers."""
        (self.folder / name).write_text(text)

    def set_image(
        self,
        identity: str,
        platform: str = "linux/amd64",
        config: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Let the engine have an image."""
        system, _, processor = platform.partition("/")
        image: dict[str, object] = {"Id": identity, "Os": system, "Architecture": processor}
        image["Config"] = {"Cmd": ["python"]} if config is None else config
        self.write("image.json", json.dumps([image]))

    def set_container(self, *, is_out_of_memory: bool = False) -> None:
        """Let the engine have a container that has ended."""
        state = {"Status": "exited", "OOMKilled": is_out_of_memory, "ExitCode": 137}
        self.write("container.json", json.dumps([{"Id": "c1", "State": state}]))

    @property
    def calls(self) -> list[str]:
        """The arguments of all calls."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    folder = tmp_path / "engine"
    folder.mkdir()
    return FakeEngine(folder)
