"""Docker or Podman, called by its command line.

The command line is what both have in common, and it knows the user's contexts and registry logins.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.setting_error import SettingError

logger = logging.getLogger(__name__)

_ENGINES = ("docker", "podman")
# How long the engine may take for a call that neither pulls nor builds.
_TIMEOUT_S = 60.0
# Docker Desktop runs its containers in a virtual machine, whose network is not this machine's.
_DESKTOP = "Docker Desktop"
_ROOTLESS = "name=rootless"


class ContainerEngineError(Exception):
    """A call of the engine failed; the message is what it printed."""


class ContainerEngine:
    """Calls one program, `docker` or `podman`; it has no state, so any task may use it."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._is_podman = Path(program).name.startswith("podman")

    def __str__(self) -> str:
        """Return the program as the user knows it."""
        return Path(self.program).name

    @property
    def host_name(self) -> str:
        """The name by which a container in a network of its own calls this machine."""
        return "host.containers.internal" if self._is_podman else "host.docker.internal"

    @property
    def host_name_arguments(self) -> Sequence[str]:
        """The arguments of `run` that make this name known; Podman and Docker Desktop know it."""
        return () if self._is_podman else ("--add-host", f"{self.host_name}:host-gateway")

    def gpu_arguments(self, gpus: str) -> Sequence[str]:
        """Return the arguments of `run` for the GPUs, named as in Docker's `--gpus`."""
        if not self._is_podman:
            return ("--gpus", gpus)
        # Podman names them as in the Container Device Interface of NVIDIA's toolkit.
        names = gpus.removeprefix("device=").split(",")
        return [word for name in names for word in ("--device", f"nvidia.com/gpu={name}")]

    def remove_command(self, container: str) -> list[str]:
        """Return the command that kills and removes a container with its own volumes."""
        # Podman would wait for 10 s before it kills; Docker does not know the option.
        at_once = ("-t", "0") if self._is_podman else ()
        return [self.program, "rm", "--force", "--volumes", *at_once, container]

    def call(self, *arguments: str) -> str:
        """Return what a call prints. Raises ContainerEngineError."""
        try:
            done = subprocess.run(
                [self.program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ContainerEngineError(str(error)) from None
        if done.returncode:
            raise ContainerEngineError(_last_line(done.stderr) or f"exit code {done.returncode}")
        return done.stdout

    async def call_async(self, *arguments: str) -> str:
        """Return what a call prints, while other tasks go on. Raises ContainerEngineError."""
        return await asyncio.to_thread(self.call, *arguments)

    def show(self, *arguments: str) -> None:
        """Make a call whose output the terminal shows. Raises ContainerEngineError."""
        sys.stderr.flush()
        try:
            done = subprocess.run(
                [self.program, *arguments], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
            )
        except OSError as error:
            raise ContainerEngineError(str(error)) from None
        if done.returncode:
            raise ContainerEngineError(f"exit code {done.returncode}; its output is above")

    def inspect_image(self, reference: str) -> dict[str, Any] | None:
        """Return what the engine knows of an image; None if it does not have it."""
        return self._inspect("image", "inspect", reference)

    def inspect_container(self, name: str) -> dict[str, Any] | None:
        """Return what the engine knows of a container; None if there is none."""
        return self._inspect("container", "inspect", name)

    def _inspect(self, *arguments: str) -> dict[str, Any] | None:
        try:
            listed = json.loads(self.call(*arguments))
        except (ContainerEngineError, ValueError):
            return None
        return listed[0] if listed else None

    def list_containers(self, label: str) -> list[dict[str, Any]]:
        """Return the containers with a label, also ended ones. Raises ContainerEngineError."""
        ids = self.call(
            "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}"
        ).split()
        # One by one, because one of them may be removed meanwhile.
        inspected = [self.inspect_container(each) for each in ids]
        return [each for each in inspected if each is not None]

    def describe_host(self) -> tuple[bool, bool]:
        """Return whether this is Docker Desktop, and whether it is Docker without root.

        Containers of both do not reach 127.0.0.1 of this machine, whatever their network is.
        """
        if self._is_podman:
            return False, False
        try:
            info = self.call("info", "--format", "{{.OperatingSystem}} {{.SecurityOptions}}")
        except ContainerEngineError:
            return False, False
        return info.startswith(_DESKTOP), _ROOTLESS in info


def find_container_engine(chosen: str | None = None) -> ContainerEngine:
    """Return the chosen engine, or else Docker or Podman, whichever answers first.

    Raises:
        SettingError: none of them is there and answers.
    """
    problems: list[str] = []
    silent: list[str] = []
    for name in (chosen,) if chosen else _ENGINES:
        program = shutil.which(name)
        if program is None:
            problems.append(f"{name} is not installed")
            continue
        engine = ContainerEngine(program)
        try:
            engine.call("ps", "--quiet", "--last", "1")
        except ContainerEngineError as error:
            silent.append(f"{name} does not answer ({error})")
            problems.append(silent[-1])
        else:
            # The other engine has other images; one that is not installed is no surprise.
            if silent:
                logger.warning("%s: %s is used; CONTAINER_ENGINE chooses one", silent[-1], name)
            return engine
    setting = f"CONTAINER_ENGINE={chosen}" if chosen else "--image needs Docker or Podman"
    raise SettingError(f"{setting}: {', and '.join(problems)}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Docker's errors end with a hint at its help.
    lines = [line for line in lines if not line.startswith(("See '", "Run '"))]
    return lines[-1] if lines else ""
