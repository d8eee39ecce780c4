"""The input that the console's form begins with: of test_input.json, or of the first test."""

from __future__ import annotations

import json
from pathlib import Path

from emulator.console.example_input import MAX_FILE_BYTES, read_example_input


def test_example_input_is_that_of_test_input_json_or_of_the_first_test(tmp_path: Path) -> None:
    handler = tmp_path / "src" / "handler.py"
    handler.parent.mkdir()
    assert read_example_input(handler) is None
    tests = {"tests": [{"name": "a", "input": {"x": 1}}, {"name": "b", "input": {"x": 2}}]}
    (tmp_path / "tests.json").write_text(json.dumps(tests))
    assert read_example_input(handler) == {"input": {"x": 1}, "problem": None}
    (tmp_path / "test_input.json").write_text('{"id": "local", "input": "text"}')
    assert read_example_input(handler) == {"input": "text", "problem": None}


def test_file_without_a_usable_input_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "test_input.json"
    file.write_text("{}")
    problem = f"{file}: input is missing; it is the input of the job"
    assert read_example_input(tmp_path / "handler.py") == {"input": None, "problem": problem}
    file.write_text(json.dumps({"input": "x" * MAX_FILE_BYTES}))
    example = read_example_input(tmp_path / "handler.py")
    assert example is not None
    assert example["input"] is None
    assert "is not shown: it has more than 250,000 bytes" in example["problem"]
