"""The folder that the workers have as `/runpod-volume`, where RunPod mounts a network volume."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from common.setting_error import SettingError
from emulator.autoscaling.program import volume_mount
from emulator.autoscaling.program.volume_mount import VOLUME

_CHECK_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Volume:
    """A folder for `/runpod-volume`; `problem` is the sentence on why it cannot be mounted there.

    There is no problem if each worker can mount it.
    """

    folder: Path
    problem: str | None = None

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """The words before a worker's command that mount the folder; none if that is impossible."""
        return () if self.problem is not None else _mount_command(self.folder)


def open_volume(folder: Path) -> Volume:
    """Return the volume of a folder, after a process of its own has tried to mount it.

    Raises:
        SettingError: there is no such folder.
    """
    absolute = resolve_volume(folder)
    reason = _try_mount(absolute)
    return Volume(absolute, None if reason is None else f"{reason}; {_remedy(absolute)}")


def resolve_volume(folder: Path) -> Path:
    """Return the absolute path of a volume's folder, also of one written as `DIR:/runpod-volume`.

    Raises:
        SettingError: there is no such folder, or it is meant for another path.
    """
    absolute = folder.expanduser().resolve()
    name, colon, target = str(folder).rpartition(":")
    if colon and not absolute.exists():
        if target.rstrip("/") != VOLUME:
            raise SettingError(
                f"--volume (VOLUME_DIR): workers have the folder as {VOLUME}, and not as {target}; "
                f"for containers, WORKER_RUN_ARGS may have more volumes: --volume {folder}"
            )
        folder = Path(name)
        absolute = folder.expanduser().resolve()
    if not absolute.is_dir():
        is_other = absolute.exists()
        problem = f"{folder} is not a folder" if is_other else f"there is no folder {folder}"
        raise SettingError(f"--volume (VOLUME_DIR): {problem}")
    return absolute


def _mount_command(folder: Path) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", volume_mount.__file__, str(folder))


def _try_mount(folder: Path) -> str | None:
    """Return why the folder cannot be mounted; None if it can."""
    try:
        check = subprocess.run(
            [*_mount_command(folder), sys.executable, "-I", "-S", "-c", ""],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{folder} cannot be mounted at {VOLUME}: {error}"
    if check.returncode == 0:
        return None
    output = check.stderr.strip() or f"exit code {check.returncode}"
    return output.splitlines()[-1]


def _remedy(folder: Path) -> str:
    """Return how the workers get the folder where the system does not let them mount it."""
    option = f"`-v DIR:{VOLUME}`"
    if sys.platform != "linux":
        return f"run the server in a container that is started with {option} instead"
    path = shlex.quote(str(folder))
    command = f"ln -s {path} {VOLUME}"
    if os.path.lexists(VOLUME):
        command = f"mount --bind {path} {VOLUME}"
    return f"instead, run `sudo {command}` once, or start the server's container with {option}"
