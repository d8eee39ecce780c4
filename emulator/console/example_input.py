"""The input that the console's form begins with on a server for a user's handler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.setting_error import SettingError
from emulator.autoscaling.handler_file import list_folders
from emulator.tests_file.reader import find_test_input, find_tests_file, read_tests_file

# The console's page reads it with the description of its forms.
MAX_FILE_BYTES = 250_000


def read_example_input(handler_file: Path) -> dict[str, Any] | None:
    """Return the input in the handler's `test_input.json`, or else that of its first test.

    The `problem` is the sentence on why it cannot be shown, and None with the input. The result is
    None if there is no such file.
    """
    folders = list_folders(handler_file)
    path = find_test_input(folders) or find_tests_file(folders)
    if path is None:
        return None
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SettingError(
                f"{path} is not shown: it has more than {MAX_FILE_BYTES:,} bytes, which is the "
                "most that the console reads"
            )
        return {"input": read_tests_file(path).tests[0].input, "problem": None}
    except SettingError as error:
        return {"input": None, "problem": str(error)}
    except OSError as error:
        return {"input": None, "problem": f"{path} cannot be read: {error.strerror}"}
