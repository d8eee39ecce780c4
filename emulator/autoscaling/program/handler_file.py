"""Find the file with a user's RunPod handler, and name the endpoint after its folder."""

from __future__ import annotations

import re
from pathlib import Path

from common.setting_error import SettingError
from emulator.autoscaling.program.dockerfile import read_image_start

# The names that RunPod's templates and examples use, relative to the project's folder.
_USUAL_NAMES = ("handler.py", "rp_handler.py", "src/handler.py", "src/rp_handler.py")
# Names in a project that is also run without RunPod; they count where none of the usual ones is.
_OTHER_NAMES = ("runpod_handler.py", ".runpod/handler.py", ".runpod/rp_handler.py")
# Folders inside a project in which templates keep the handler.
_SOURCE_FOLDERS = ("src", ".runpod")
_START = b"serverless.start"
# How far above a handler's file the folder of its Dockerfile is looked for.
_MAX_FOLDERS_ABOVE = 4
_NO_ENDPOINT_CHARS = re.compile(r"[^A-Za-z0-9_-]+")


def find_handler_file(path: Path) -> Path:
    """Return the absolute path of a handler's file; `path` is the file, or a project's folder.

    In a folder, the file has one of the usual names. Where none or several of these exist, or
    where it only defines a function that another file starts, the Dockerfile names it.

    Raises:
        SettingError: there is no such file, or the folder does not show which one it is.
    """
    path = path.expanduser()
    if path.is_dir():
        path = _find_in_folder(path)
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


def _find_in_folder(folder: Path) -> Path:
    names = [name for name in _USUAL_NAMES if (folder / name).is_file()] or [
        name for name in _OTHER_NAMES if (folder / name).is_file()
    ]
    start = read_image_start(folder)
    image_file = None if start is None else start.file
    if len(names) == 1 and (image_file is None or _starts_worker(folder / names[0])):
        return folder / names[0]
    if image_file is not None:
        return image_file
    if names:
        raise SettingError(
            f"--handler: the folder {folder} has {', '.join(names)}; name one of them"
        )
    problem = f"--handler: the folder {folder} has none of {', '.join(_USUAL_NAMES)}"
    if start is None:
        raise SettingError(f"{problem}; name the file that starts the worker")
    kind = "a shell script" if start.is_script else "no Python file of the folder"
    raise SettingError(
        f"{problem}, and its Dockerfile starts {start.command}, which is {kind}; name the Python "
        "file that starts the worker; other programs are started with --worker-command"
    )


def _starts_worker(file: Path) -> bool:
    """Return whether the text of a file starts the SDK's worker, as far as that can be seen."""
    try:
        return _START in file.read_bytes()
    except OSError:
        # Its worker will say why it cannot be read.
        return True


def name_endpoint(file: Path) -> str:
    """Return an endpoint ID made of the name of the project's folder."""
    return to_endpoint_id(list_folders(file)[-1].name)


def to_endpoint_id(name: str) -> str:
    """Return the name with the characters that an endpoint ID may have."""
    return _NO_ENDPOINT_CHARS.sub("-", name).strip("-") or "handler"


def list_folders(path: Path) -> list[Path]:
    """Return the folder of a handler's file, and after it that of its project if it is another.

    The project's folder is that of the Dockerfile that starts the file, or the one above `src`. The
    files in the folder of a handler, such as `.env` and `tests.json`, may be in both. `path` is the
    file, or its folder.
    """
    folder = path if path.is_dir() else path.parent
    project = folder.parent if folder.name in _SOURCE_FOLDERS else folder
    for each in [folder, *folder.parents][:_MAX_FOLDERS_ABOVE]:
        start = None if each.name in _SOURCE_FOLDERS else read_image_start(each)
        if start is not None and start.file == path:
            project = each
            break
    return list(dict.fromkeys([folder, project]))
