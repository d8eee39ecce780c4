"""Find the handlers that one server runs, and the endpoint of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.setting_error import SettingError
from emulator.autoscaling.program.handler_file import (
    find_handler_file,
    list_folders,
    name_endpoint,
    to_endpoint_id,
)

_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.+)", re.ASCII)


def split_handlers(setting: str) -> Sequence[str]:
    """Return the handlers of HANDLER_FILE, which commas separate."""
    return [each.strip() for each in setting.split(",") if each.strip()]


def find_handlers(handlers: Sequence[str], endpoint_id: str | None = None) -> dict[str, Path]:
    """Return the file of each handler by its endpoint's ID, in their order.

    A handler is a path, or `ENDPOINT=PATH`. Without an ID, its endpoint is named after the
    project's folder, or after the file if several handlers are in that folder. An `endpoint_id` is
    the ID of the first one.

    Raises:
        SettingError: a file does not exist, an ID is not one, or two handlers have one endpoint.
    """
    ids, files = zip(*map(_split_id, handlers), strict=True)
    handlers_of = Counter(list_folders(file)[-1] for file in files)
    files_by_endpoint: dict[str, Path] = {}
    for own_id, file in zip((ids[0] or endpoint_id, *ids[1:]), files, strict=True):
        is_alone = handlers_of[list_folders(file)[-1]] == 1
        endpoint = own_id or (name_endpoint(file) if is_alone else to_endpoint_id(file.stem))
        if endpoint in files_by_endpoint:
            raise SettingError(
                f"--handler: {files_by_endpoint[endpoint]} and {file} have the endpoint {endpoint};"
                f" name one of them, as in --handler other-{endpoint}={file}"
            )
        files_by_endpoint[endpoint] = file
    return files_by_endpoint


def _split_id(handler: str) -> tuple[str | None, Path]:
    # A path may have the form of a named handler, too.
    if Path(handler).exists():
        return None, find_handler_file(Path(handler))
    match = _NAMED.fullmatch(handler)
    if match is not None:
        return match[1], find_handler_file(Path(match[2]))
    name, _, path = handler.partition("=")
    if path and Path(path).expanduser().exists():
        raise SettingError(
            f"--handler: the endpoint's ID {name!r} of {path} must consist of letters A-Z, digits,"
            " - and _"
        )
    return None, find_handler_file(Path(handler))
