"""Name the client's fields in errors about a translated body."""

from __future__ import annotations

import re
from collections.abc import Callable

from handler.errors import InvalidRequest

# An error's message begins with the path of its field.
_FIRST_PATH = re.compile(r"[\w.\[\]]+")


def rename_field(error: InvalidRequest, rename: Callable[[str], str]) -> InvalidRequest:
    """Return an error with the client's name of its field; `rename` returns it for ours."""
    message = _FIRST_PATH.sub(lambda path: rename(path[0]), error.message, count=1)
    param = None if error.param is None else rename(error.param)
    return InvalidRequest(message, param, error.details)
