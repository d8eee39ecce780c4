"""The inputs that the console's form offers: of test_input.json and of each test."""

from __future__ import annotations

import json
from pathlib import Path

from emulator.autoscaling.program.handler_file import list_folders
from emulator.console.example_inputs import MAX_FILE_BYTES, read_example_inputs


def test_inputs_come_from_test_input_json_and_from_each_test(tmp_path: Path) -> None:
    handler = tmp_path / "src" / "handler.py"
    handler.parent.mkdir()
    assert read_example_inputs(list_folders(handler)) == {"inputs": [], "problems": []}
    tests = {"tests": [{"name": "a", "input": {"x": 1}}, {"name": "b", "input": {"x": 2}}]}
    (tmp_path / "tests.json").write_text(json.dumps(tests))
    of_tests = [
        {"file": "tests.json", "name": "a", "input": {"x": 1}},
        {"file": "tests.json", "name": "b", "input": {"x": 2}},
    ]
    assert read_example_inputs(list_folders(handler)) == {"inputs": of_tests, "problems": []}
    (tmp_path / "test_input.json").write_text('{"id": "local", "input": "text"}')
    first = {"file": "test_input.json", "name": "test_input", "input": "text"}
    assert read_example_inputs(list_folders(handler)) == {
        "inputs": [first, *of_tests],
        "problems": [],
    }


def test_file_without_a_usable_input_is_a_problem_and_the_other_file_is_read(
    tmp_path: Path,
) -> None:
    handler, file = tmp_path / "handler.py", tmp_path / "test_input.json"
    file.write_text("{}")
    (tmp_path / "tests.json").write_text('{"tests": [{"name": "a", "input": 1}]}')
    examples = read_example_inputs(list_folders(handler))
    assert examples["problems"] == [f"{file}: input is missing; it is the input of the job"]
    assert [each["input"] for each in examples["inputs"]] == [1]
    file.write_text(json.dumps({"input": "x" * MAX_FILE_BYTES}))
    (problem,) = read_example_inputs(list_folders(handler))["problems"]
    assert "is not shown: it has more than 250,000 bytes" in problem


def test_only_the_first_hundred_tests_are_offered_and_a_problem_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"tests": [{"name": str(n), "input": n} for n in range(101)]}))
    examples = read_example_inputs([tmp_path])
    assert [each["input"] for each in examples["inputs"]] == list(range(100))
    assert examples["problems"] == [f"{file} has 101 tests, of which the first 100 are offered"]
