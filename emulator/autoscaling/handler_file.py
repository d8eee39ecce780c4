"""Find the file with a user's RunPod handler, and name the endpoint after its folder."""

from __future__ import annotations

import re
from pathlib import Path

from common.setting_error import SettingError

# The names that RunPod's templates and examples use, relative to the project's folder.
_USUAL_NAMES = ("handler.py", "rp_handler.py", "src/handler.py", "src/rp_handler.py")
# Folders inside a project in which templates keep the handler.
_SOURCE_FOLDERS = ("src", ".runpod")
_NO_ENDPOINT_CHARS = re.compile(r"[^A-Za-z0-9_-]+")


def find_handler_file(path: Path) -> Path:
    """Return the absolute path of a handler's file; `path` is the file, or a project's folder.

    Raises:
        SettingError: there is no such file, or a folder has none or several of the usual names.
    """
    path = path.expanduser()
    if path.is_dir():
        candidates = [path / name for name in _USUAL_NAMES if (path / name).is_file()]
        if not candidates:
            raise SettingError(
                f"--handler: the folder {path} has none of {', '.join(_USUAL_NAMES)}; "
                "name the file that starts the worker"
            )
        if len(candidates) > 1:
            names = ", ".join(str(each.relative_to(path)) for each in candidates)
            raise SettingError(f"--handler: the folder {path} has {names}; name one of them")
        path = candidates[0]
    if not path.exists():
        raise SettingError(f"--handler: there is no file {path}")
    if not path.is_file():
        raise SettingError(f"--handler: {path} is not a regular file")
    if path.suffix != ".py":
        raise SettingError(
            f"--handler must be a Python file (.py), got {path}; other programs are started with "
            "--worker-command"
        )
    return path.absolute()


def name_endpoint(file: Path) -> str:
    """Return an endpoint ID made of the name of the project's folder."""
    project = list_folders(file)[-1]
    return _NO_ENDPOINT_CHARS.sub("-", project.name).strip("-") or "handler"


def list_folders(path: Path) -> list[Path]:
    """Return the folder of a handler's file, and after it that of its project if it is another.

    The files beside a handler, such as `.env` and `tests.json`, may be in both. `path` is the file,
    or its folder.
    """
    folder = path if path.is_dir() else path.parent
    return [folder, folder.parent] if folder.name in _SOURCE_FOLDERS else [folder]
