"""RunPod's tests file, with the variables of the worker, and the one input of its SDK's file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from common.setting_error import SettingError

FILE_NAME = "tests.json"
# The file from which RunPod's SDK takes a job if a handler is run without a server.
TEST_INPUT_NAME = "test_input.json"
RUNPOD_FOLDER = ".runpod"
DEFAULT_TIMEOUT_MS = 300_000
MAX_TIMEOUT_MS = 24 * 3600 * 1000
STATUSES = ("COMPLETED", "FAILED")
_OWN_KEYS = ("expected_status", "expected_output", "expected_output_contains")
_TEST_KEYS = ("name", "input", "timeout", *_OWN_KEYS)
# Stands for an absent key: null is a value that an output can have.
NOT_SET: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerTest:
    """One test: the input of a job, and the status and output that the job must have.

    A file that sets no timeout has no `timeout_ms`. The job's output must equal `expected_output`,
    and must have the keys and values of `expected_part`; one that is NOT_SET is not checked.
    """

    name: str
    input: Any
    timeout_ms: int | None = None
    expected_status: str = "COMPLETED"
    expected_output: Any = NOT_SET
    expected_part: Any = NOT_SET


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerTests:
    """The tests of one file, and the variables that it sets for the worker."""

    path: Path
    tests: Sequence[HandlerTest]
    variables: Mapping[str, str] = field(default_factory=dict)


def find_tests_file(folders: Sequence[Path]) -> Path | None:
    """Return the tests file in the first of a handler's folders that has one.

    In each folder, that in `.runpod` comes first, as on RunPod.
    """
    return _find_file(folders, FILE_NAME)


def find_test_input(folders: Sequence[Path]) -> Path | None:
    """Return the `test_input.json` in the first of a handler's folders that has one."""
    return _find_file(folders, TEST_INPUT_NAME)


def _find_file(folders: Sequence[Path], name: str) -> Path | None:
    for folder in folders:
        for candidate in (folder / RUNPOD_FOLDER / name, folder / name):
            if candidate.is_file():
                return candidate
    return None


def read_tests_file(path: Path) -> HandlerTests:
    """Return the tests of a file; one with an `input` and no `tests` is a single test.

    Raises:
        SettingError: the file cannot be read or is malformed; the sentence names the field.
    """
    text = read_text(path)
    try:
        body = _load_object(text)
        is_test_input = path.name == TEST_INPUT_NAME or ("input" in body and "tests" not in body)
        return _parse_test_input(body, path) if is_test_input else _parse(body, path)
    except _FieldError as error:
        raise SettingError(f"{path}: {error}") from None


def read_text(path: Path) -> str:
    """Return the text of a tests file. Raises SettingError."""
    try:
        # Some editors begin UTF-8 with a byte order mark, which is no JSON.
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8: byte {error.start} is wrong") from None


def parse_tests_file(text: str, path: Path) -> HandlerTests:
    """Return the tests in the text of a file; `path` is for messages. Raises SettingError."""
    try:
        return _parse(_load_object(text), path)
    except _FieldError as error:
        raise SettingError(f"{path}: {error}") from None


class _FieldError(Exception):
    """A field is missing or wrong; the message begins with its name."""


def _load_object(text: str) -> Mapping[str, Any]:
    body = _load_json(text)
    _check_surrogates(body)
    if not isinstance(body, dict):
        raise _FieldError(f"the file must contain a JSON object, got {_describe(body)}")
    return body


def _parse_test_input(body: Mapping[str, Any], path: Path) -> HandlerTests:
    """Return the one test of a job: it passes if the job completes.

    Other keys, such as `id`, are ignored, but not those of an expectation: nothing is compared.
    """
    if body.get("input") is None:
        raise _FieldError("input is missing; it is the input of the job")
    for key in _OWN_KEYS:
        if key in body:
            raise _FieldError(f"{key} is a key of the tests in {FILE_NAME}, and not of one input")
    return HandlerTests(path=path, tests=[HandlerTest(name=path.stem, input=body["input"])])


def _parse(body: Mapping[str, Any], path: Path) -> HandlerTests:
    listed = body.get("tests")
    if not isinstance(listed, list):
        raise _FieldError(f"tests must be an array, got {_describe(body.get('tests', NOT_SET))}")
    if not listed:
        raise _FieldError("tests is empty; it needs at least one test")
    tests = [_parse_test(each, f"tests[{index}]") for index, each in enumerate(listed)]
    names: set[str] = set()
    for index, test in enumerate(tests):
        if test.name in names:
            raise _FieldError(f"tests[{index}].name: {_quote(test.name)} is the name of two tests")
        names.add(test.name)
    return HandlerTests(path=path, tests=tests, variables=_parse_config(body.get("config")))


def _load_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_float)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _FieldError(f"the file is not JSON: {error.msg} ({place})") from None
    except RecursionError:
        raise _FieldError("the file is not JSON that can be read: it is nested too deep") from None
    except ValueError:
        # Python refuses whole numbers of more than 4,300 digits.
        raise _FieldError("the file has a number with too many digits") from None


def _check_surrogates(body: Any) -> None:
    """Refuse a text with half of a surrogate pair, which cannot be sent as UTF-8."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start].encode("unicode_escape").decode()
        raise _FieldError(f"the file has half of a surrogate pair, {half}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _FieldError(f"the file is not JSON: {name} is not a JSON number")


def _parse_float(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise _FieldError(f"the number {number} is too large")
    return value


def _parse_test(body: Any, place: str) -> HandlerTest:
    if not isinstance(body, dict):
        raise _FieldError(f"{place} must be an object, got {_describe(body)}")
    name = body.get("name", NOT_SET)
    if not isinstance(name, str) or not name.strip():
        raise _FieldError(f"{place}.name must be a text that is not empty, got {_describe(name)}")
    if body.get("input") is None:
        raise _FieldError(f"{place}.input is missing; it is the input of the job")
    _check_keys(body, place)
    status = body.get("expected_status", "COMPLETED")
    if status not in STATUSES:
        allowed = " or ".join(STATUSES)
        raise _FieldError(f"{place}.expected_status must be {allowed}, got {_describe(status)}")
    if "expected_output" in body and "expected_output_contains" in body:
        raise _FieldError(
            f"{place}: expected_output and expected_output_contains exclude each other"
        )
    return HandlerTest(
        name=name,
        input=body["input"],
        timeout_ms=_parse_timeout(body.get("timeout"), place),
        expected_status=status,
        expected_output=body.get("expected_output", NOT_SET),
        expected_part=body.get("expected_output_contains", NOT_SET),
    )


def _check_keys(body: Mapping[str, Any], place: str) -> None:
    """Refuse a misspelled key of an expectation: the test would pass without a comparison.

    Other unknown keys are ignored, because RunPod may add some.
    """
    for key in body:
        if key in _TEST_KEYS:
            continue
        similar = get_close_matches(key, _OWN_KEYS, n=1, cutoff=0.75)
        if similar or key.startswith("expect"):
            names = similar[0] if similar else " or ".join(_OWN_KEYS)
            raise _FieldError(f"{place}.{key} is unknown; did you mean {names}?")


def _parse_timeout(value: Any, place: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MAX_TIMEOUT_MS:
        raise _FieldError(
            f"{place}.timeout must be a whole number of milliseconds from 1 to {MAX_TIMEOUT_MS}, "
            f"got {_describe(value)}"
        )
    return value


def _parse_config(config: Any) -> Mapping[str, str]:
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise _FieldError(f"config must be an object, got {_describe(config)}")
    listed = config.get("env")
    if listed is None:
        return {}
    if not isinstance(listed, list):
        raise _FieldError(f"config.env must be an array, got {_describe(listed)}")
    return dict(_parse_variable(each, f"config.env[{index}]") for index, each in enumerate(listed))


def _parse_variable(body: Any, place: str) -> tuple[str, str]:
    if not isinstance(body, dict):
        raise _FieldError(f"{place} must be an object with key and value, got {_describe(body)}")
    key, value = body.get("key", NOT_SET), body.get("value", NOT_SET)
    if not isinstance(key, str) or not key or "=" in key or "\0" in key:
        raise _FieldError(f"{place}.key must be the name of a variable, got {_describe(key)}")
    if not isinstance(value, str) or "\0" in value:
        # Not quoted: it may be a secret.
        raise _FieldError(f"{place}.value must be a text")
    return key, value


def _describe(value: Any) -> str:
    if value is NOT_SET:
        return "nothing"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return _quote(value)


def _quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"
