"""Adding a test to a file: the rest of its text stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.setting_error import SettingError
from emulator.tests_file.editor import add_test, insert_test

NEW: dict[str, Any] = {"name": "new", "input": {"é": [1]}, "expected_output": "]}"}
HAND_WRITTEN = """\
{
  "config": {"tests": [1], "env": [ ]},
  "tests": [
    {"name": "a", "input": {"text": "]} \\" , [{"}},
    {
      "name": "b", "input": {"x":1}
    }
  ],
  "more": {}
}
"""


def test_other_text_is_unchanged_and_the_indent_is_kept() -> None:
    text = insert_test(HAND_WRITTEN, NEW)
    assert text == HAND_WRITTEN.replace(
        '"x":1}\n    }\n  ],',
        '"x":1}\n    },\n    {\n      "name": "new",\n      "input": {\n        "é": [\n'
        '          1\n        ]\n      },\n      "expected_output": "]}"\n    }\n  ],',
    )
    assert json.loads(text)["tests"][2] == NEW


@pytest.mark.parametrize(
    "text",
    [
        '{"tests":[{"name":"a","input":1}]}',
        '{"tests": [ {"name":"a","input":1} ] }',
        '{\n\t"tests": [\n\t\t{"name":"a","input":1}\n\t]\n}\n',
        '{"tests": [{"name":"x","input":1}], "tests": [{"name":"a","input":1}]}',
        '  {"a": [], "tests" : [{"name":"a","input":1}\n]}',
        HAND_WRITTEN.replace("\n", "\r\n"),
    ],
)
def test_every_layout_stays_valid(text: str) -> None:
    before = json.loads(text)
    after = json.loads(insert_test(text, NEW))
    assert after == before | {"tests": [*before["tests"], NEW]}
    if "\r\n" in text:
        assert insert_test(text, NEW).count("\n") == insert_test(text, NEW).count("\r\n")
    if "\t" in text:
        assert '\n\t\t{\n\t\t\t"name": "new"' in insert_test(text, NEW)


def test_add_creates_the_file_and_appends_to_it(tmp_path: Path) -> None:
    path = tmp_path / ".runpod" / "tests.json"
    add_test(path, NEW)
    add_test(path, {**NEW, "name": "second"})
    assert [each["name"] for each in json.loads(path.read_text())["tests"]] == ["new", "second"]
    assert path.read_text().endswith("  ]\n}\n")
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_mode_and_link_of_the_file_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "shared.json"
    target.write_text(HAND_WRITTEN)
    target.chmod(0o600)
    link = tmp_path / "tests.json"
    link.symlink_to(target)
    add_test(link, NEW)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(target.read_text())["tests"]) == 3


def test_duplicate_name_is_refused_and_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "tests.json"
    path.write_text(HAND_WRITTEN)
    with pytest.raises(SettingError, match="has a test named b already; choose another"):
        add_test(path, {**NEW, "name": "b"})
    assert path.read_text() == HAND_WRITTEN


def test_malformed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tests.json"
    path.write_text("{")
    with pytest.raises(SettingError, match="is not JSON"):
        add_test(path, NEW)


def test_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="cannot be written"):
        add_test(tmp_path / "file" / "tests.json", NEW)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
