"""Parse RunPod's tests.json, with one sentence for each malformed file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.setting_error import SettingError
from emulator.tests_file.reader import (
    NOT_SET,
    HandlerTest,
    find_test_input,
    find_tests_file,
    parse_tests_file,
    read_tests_file,
)

PATH = Path("tests.json")
ONE: dict[str, Any] = {"name": "a", "input": {"x": 1}}
ROOT = Path(__file__).parents[4]


def parse_error(body: Any) -> str:
    text = body if isinstance(body, str) else json.dumps(body)
    with pytest.raises(SettingError) as caught:
        parse_tests_file(text, PATH)
    path, _, sentence = str(caught.value).partition(": ")
    assert path == "tests.json"
    return sentence


def test_minimal_file_has_the_defaults() -> None:
    suite = parse_tests_file(json.dumps({"tests": [ONE]}), PATH)
    assert suite.tests == [HandlerTest(name="a", input={"x": 1})]
    assert (suite.path, suite.variables) == (PATH, {})
    (test,) = suite.tests
    assert (test.timeout_ms, test.expected_status) == (None, "COMPLETED")
    assert test.expected_output is test.expected_part is NOT_SET


def test_all_keys_are_read_and_unknown_ones_ignored() -> None:
    first = {**ONE, "timeout": 5, "expected_status": "FAILED", "expected_output": None, "more": 1}
    second = {"name": "b", "input": [], "expected_output_contains": {"k": 1}}
    body = {
        "tests": [first, second],
        "config": {
            "gpuTypeId": "NVIDIA A40",
            "gpuCount": 1,
            "allowedCudaVersions": ["12.4"],
            "env": [{"key": "A", "value": "1"}, {"key": "B", "value": ""}],
        },
    }
    suite = parse_tests_file("\n" + json.dumps(body), PATH)
    assert suite.tests == [
        HandlerTest(
            name="a",
            input={"x": 1},
            timeout_ms=5,
            expected_status="FAILED",
            expected_output=None,
        ),
        HandlerTest(name="b", input=[], expected_part={"k": 1}),
    ]
    assert suite.variables == {"A": "1", "B": ""}


def test_file_of_this_repository_is_accepted() -> None:
    assert read_tests_file(ROOT / ".runpod" / "tests.json").variables["ENGINE"] == "llamacpp"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("", "the file is not JSON: Expecting value (line 1, column 1)"),
        ('{"tests": [}', "the file is not JSON: Expecting value (line 1, column 12)"),
        ('{"tests": NaN}', "the file is not JSON: NaN is not a JSON number"),
        ('{"tests": 1e999}', "the number 1e999 is too large"),
        ('{"tests": ' + "1" * 5000 + "}", "the file has a number with too many digits"),
        ('{"tests": "\\ud800"}', "the file has half of a surrogate pair, \\ud800"),
        ("[]", "the file must contain a JSON object, got an array"),
        ("null", "the file must contain a JSON object, got null"),
        ({}, "tests must be an array, got nothing"),
        ({"tests": {}}, "tests must be an array, got an object"),
        ({"tests": []}, "tests is empty; it needs at least one test"),
        ({"tests": [1]}, "tests[0] must be an object, got 1"),
        (
            {"tests": [{"input": {}}]},
            "tests[0].name must be a text that is not empty, got nothing",
        ),
        (
            {"tests": [{**ONE, "name": " "}]},
            'tests[0].name must be a text that is not empty, got " "',
        ),
        (
            {"tests": [{**ONE, "name": 7}]},
            "tests[0].name must be a text that is not empty, got 7",
        ),
        ({"tests": [ONE, {"name": "b"}]}, "tests[1].input is missing; it is the input of the job"),
        (
            {"tests": [{"name": "b", "input": None}]},
            "tests[0].input is missing; it is the input of the job",
        ),
        ({"tests": [ONE, ONE]}, 'tests[1].name: "a" is the name of two tests'),
        *(
            (
                {"tests": [{**ONE, "timeout": value}]},
                "tests[0].timeout must be a whole number of milliseconds from 1 to 86400000, "
                f"got {words}",
            )
            for value, words in [
                (0, "0"),
                (-1, "-1"),
                (1.5, "1.5"),
                (True, "true"),
                ("9", '"9"'),
                (86_400_001, "86400001"),
            ]
        ),
        (
            {"tests": [{**ONE, "expected_status": "DONE"}]},
            'tests[0].expected_status must be COMPLETED or FAILED, got "DONE"',
        ),
        (
            {"tests": [{**ONE, "expected_status": ["FAILED"]}]},
            "tests[0].expected_status must be COMPLETED or FAILED, got an array",
        ),
        (
            {"tests": [{**ONE, "expected_output": 1, "expected_output_contains": 1}]},
            "tests[0]: expected_output and expected_output_contains exclude each other",
        ),
        (
            {"tests": [{**ONE, "expected_outptu": 1}]},
            "tests[0].expected_outptu is unknown; did you mean expected_output?",
        ),
        (
            {"tests": [{**ONE, "expect": 1}]},
            "tests[0].expect is unknown; did you mean expected_status or expected_output or "
            "expected_output_contains?",
        ),
        ({"tests": [ONE], "config": 1}, "config must be an object, got 1"),
        ({"tests": [ONE], "config": {"env": {}}}, "config.env must be an array, got an object"),
        (
            {"tests": [ONE], "config": {"env": ["A=1"]}},
            'config.env[0] must be an object with key and value, got "A=1"',
        ),
        (
            {"tests": [ONE], "config": {"env": [{"value": "1"}]}},
            "config.env[0].key must be the name of a variable, got nothing",
        ),
        (
            {"tests": [ONE], "config": {"env": [{"key": "A=B", "value": "1"}]}},
            'config.env[0].key must be the name of a variable, got "A=B"',
        ),
        (
            {"tests": [ONE], "config": {"env": [{"key": "SECRET", "value": 12345}]}},
            "config.env[0].value must be a text",
        ),
    ],
)
def test_malformed_file_is_refused_in_one_sentence(body: Any, sentence: str) -> None:
    assert parse_error(body) == sentence


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("test_input", {"input": {"x": 1}}),
        ("test_input", {"input": {"x": 1}, "id": "local", "webhook": 7, "tests": 1}),
        ("slow_input", {"input": {"x": 1}, "id": "local"}),
    ],
)
def test_file_with_the_input_of_one_job_is_one_test(
    tmp_path: Path, name: str, body: dict[str, Any]
) -> None:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(body))
    suite = read_tests_file(path)
    assert suite.tests == [HandlerTest(name=name, input={"x": 1})]
    assert (suite.path, suite.variables) == (path, {})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "input is missing; it is the input of the job"),
        ({"input": None}, "input is missing; it is the input of the job"),
        ([], "the file must contain a JSON object, got an array"),
        (
            {"input": {}, "expected_output": 1},
            "expected_output is a key of the tests in tests.json, and not of one input",
        ),
    ],
)
def test_malformed_test_input_is_refused_in_one_sentence(
    tmp_path: Path, body: Any, sentence: str
) -> None:
    path = tmp_path / "test_input.json"
    path.write_text(json.dumps(body))
    with pytest.raises(SettingError) as caught:
        read_tests_file(path)
    assert str(caught.value) == f"{path}: {sentence}"


def test_deeply_nested_file_is_refused() -> None:
    assert "nested too deep" in parse_error("[" * 200_000)


def test_long_value_is_shortened_in_the_message() -> None:
    sentence = parse_error({"tests": [{**ONE, "timeout": "x" * 500}]})
    assert sentence.endswith("x…")
    assert len(sentence) < 200


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"missing\.json cannot be read: No such file"):
        read_tests_file(tmp_path / "missing.json")
    (tmp_path / "latin.json").write_bytes(b'{"tests": "\xe9"}')
    with pytest.raises(SettingError, match=r"latin\.json is not UTF-8: byte 11 is wrong"):
        read_tests_file(tmp_path / "latin.json")


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "tests.json"
    path.write_text(json.dumps({"tests": [ONE]}), encoding="utf-8-sig")
    assert len(read_tests_file(path).tests) == 1


def test_find_prefers_the_folder_of_runpod_and_the_handlers_own_folder(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    assert find_tests_file([source, tmp_path]) is None
    in_project = tmp_path / "tests.json"
    in_project.touch()
    assert find_tests_file([tmp_path]) == find_tests_file([source, tmp_path]) == in_project
    (tmp_path / ".runpod").mkdir()
    in_runpod = tmp_path / ".runpod" / "tests.json"
    in_runpod.touch()
    assert find_tests_file([tmp_path]) == find_tests_file([source, tmp_path]) == in_runpod
    in_source = source / "tests.json"
    in_source.touch()
    assert find_tests_file([source, tmp_path]) == in_source


def test_find_test_input_searches_the_same_folders_and_is_no_tests_file(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    assert find_test_input([source, tmp_path]) is None
    in_project = tmp_path / "test_input.json"
    in_project.touch()
    assert find_test_input([source, tmp_path]) == in_project
    assert find_tests_file([source, tmp_path]) is None
    in_source = source / "test_input.json"
    in_source.touch()
    assert find_test_input([source, tmp_path]) == in_source
