"""The inputs that the console's form offers on a server for a user's handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.setting_error import SettingError
from emulator.tests_file.reader import (
    HandlerTest,
    find_test_input,
    find_tests_file,
    read_tests_file,
)

# The console's page reads them with the description of its forms.
MAX_FILE_BYTES = 250_000
MAX_TESTS = 100


def read_example_inputs(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the inputs in a handler's `test_input.json` and of its tests, with their names.

    `folders` are the handler's, the nearest first.

    The `problems` are sentences on the inputs that are left out.
    """
    inputs: list[dict[str, Any]] = []
    problems: list[str] = []
    finders: Sequence[Callable[[Sequence[Path]], Path | None]] = (find_test_input, find_tests_file)
    for find in finders:
        path = find(folders)
        if path is None:
            continue
        try:
            tests = _read_tests(path)
        except SettingError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}")
        else:
            inputs += [
                {"file": path.name, "name": test.name, "input": test.input}
                for test in tests[:MAX_TESTS]
            ]
            if len(tests) > MAX_TESTS:
                problems.append(
                    f"{path} has {len(tests):,} tests, of which the first {MAX_TESTS} are offered"
                )
    return {"inputs": inputs, "problems": problems}


def _read_tests(path: Path) -> Sequence[HandlerTest]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise SettingError(
            f"{path} is not shown: it has more than {MAX_FILE_BYTES:,} bytes, which is the "
            "most that the console reads"
        )
    return read_tests_file(path).tests
