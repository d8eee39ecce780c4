"""The error of an invalid setting, and the exit of a process with it."""

from __future__ import annotations

import sys
from typing import NoReturn

from common.terminal_text import escape_lines


class SettingError(Exception):
    """A setting has a value that cannot be used; the message starts with the setting's name."""


def exit_on_setting_error(error: SettingError) -> NoReturn:
    """Write the error to stderr and exit with code 2, as `read_settings` does."""
    sys.stderr.write(f"{escape_lines(str(error))}\n")
    raise SystemExit(2)
