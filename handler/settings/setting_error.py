"""The error of an invalid setting, and the exit of a process with it."""

from __future__ import annotations

import sys
from typing import NoReturn

from handler.logs.terminal_text import escape_lines

NO_SDK = (
    "the worker needs RunPod's SDK, the package runpod, which is not installed: `pip install "
    "'worker-rkllm[worker]'` or, in a clone, `make sdk` installs it"
)


class SettingError(Exception):
    """A setting has a value that cannot be used; the message starts with the setting's name."""


def exit_on_setting_error(error: SettingError) -> NoReturn:
    """Write the error to stderr and exit with code 2, as `read_settings` does."""
    sys.stderr.write(f"{escape_lines(str(error))}\n")
    raise SystemExit(2)
