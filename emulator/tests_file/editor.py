"""Add a test to a tests file, and leave the rest of its text as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.atomic_files import replace_file
from common.setting_error import SettingError
from emulator.tests_file.reader import parse_tests_file, read_text

_SPACE = re.compile(r"[ \t\r\n]*")
_DEFAULT_INDENT = "  "
_FILE_MODE = 0o644


class FileFull(SettingError):
    """One more test would exceed a limit of the tests file."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """How much a tests file may contain after a test was added to it."""

    size_bytes: int
    tests: int


def add_test(path: Path, test: Mapping[str, Any], limits: FileLimits | None = None) -> None:
    """Append a test to a file, or create the file; it is replaced in one step.

    One writer at a time: of two that read the same text, the second removes the test of the first.

    Raises:
        FileFull: the file would exceed the limits.
        SettingError: the file is malformed or cannot be written, or a test has the same name.
    """
    # The target of a symbolic link, which would be replaced itself.
    path = path.resolve()
    count = 1
    if path.exists():
        if limits is not None:
            # Before it is read, which takes long.
            _check_size(path, path.stat().st_size, limits)
        text = read_text(path)
        known = parse_tests_file(text, path)
        count += len(known.tests)
        if any(each.name == test["name"] for each in known.tests):
            raise SettingError(f"{path} has a test named {test['name']} already; choose another")
        text = insert_test(text, test)
    else:
        text = json.dumps({"tests": [test]}, indent=_DEFAULT_INDENT, ensure_ascii=False) + "\n"
    if limits is not None:
        _check_size(path, len(text.encode()), limits)
        if count > limits.tests:
            raise FileFull(
                f"{path} has {count - 1:,} tests, and the console adds to at most "
                f"{limits.tests - 1:,}: remove some first"
            )
    parse_tests_file(text, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else _FILE_MODE
        replace_file(path, [text.encode()], mode)
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}") from None


def _check_size(path: Path, size_bytes: int, limits: FileLimits) -> None:
    if size_bytes > limits.size_bytes:
        raise FileFull(
            f"{path} with this test would have more than {limits.size_bytes:,} bytes, which is the "
            "most that the console writes: remove some tests first"
        )


def insert_test(text: str, test: Mapping[str, Any]) -> str:
    """Return the text of a tests file with one more test at the end of `tests`."""
    start, end = _find_tests(text)
    last = len(text[:end].rstrip(" \t\r\n"))
    newline = "\r\n" if "\r\n" in text else "\n"
    closing_indent = _indent_at(text, end)
    first = _skip_space(text, start + 1)
    is_on_own_line = "\n" in text[start + 1 : first]
    indent = _indent_at(text, first) if is_on_own_line else closing_indent + _DEFAULT_INDENT
    step = indent.removeprefix(closing_indent)
    lines = json.dumps(test, indent=step or _DEFAULT_INDENT, ensure_ascii=False).split("\n")
    block = newline.join(indent + line for line in lines)
    separator = "" if text[last - 1] == "[" else ","
    return f"{text[:last]}{separator}{newline}{block}{newline}{closing_indent}{text[end:]}"


def _find_tests(text: str) -> tuple[int, int]:
    """Return where the array `tests` of a valid file begins and ends: its brackets."""
    decoder = json.JSONDecoder()
    array = (-1, -1)
    position = _skip_space(text, _skip_space(text, 0) + 1)
    while text[position] != "}":
        key, position = decoder.raw_decode(text, position)
        start = _skip_space(text, _skip_space(text, position) + 1)
        _, position = decoder.raw_decode(text, start)
        if key == "tests":
            # Of two keys of the same name, readers use the last.
            array = (start, position - 1)
        position = _skip_space(text, position)
        if text[position] == ",":
            position = _skip_space(text, position + 1)
    return array


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _indent_at(text: str, position: int) -> str:
    """Return the white space at the begin of the line of a position."""
    line = text[text.rfind("\n", 0, position) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]
