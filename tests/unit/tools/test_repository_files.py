"""The forms for issues, and the hooks for commits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def test_forms_are_for_a_board_a_handler_and_any_bug() -> None:
    assert [path.stem for path in FORMS] == ["board", "bug", "handler"]
    assert "make board MODEL=/models/qwen.rkllm" in (ROOT / "docs" / "rkllm.md").read_text()
    assert "make board MODEL=/models/qwen.rkllm" in FORMS[0].read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_form_has_what_github_requires(path: Path) -> None:
    form = read(path)
    assert set(form) <= {"name", "description", "title", "body"}
    assert form["name"].strip()
    assert form["description"].strip()
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    ids = [field["id"] for field in fields]
    labels = [field["attributes"]["label"] for field in fields]
    assert len(set(ids)) == len(set(labels)) == len(fields) >= 3
    for each in form["body"]:
        assert each["type"] in {"markdown", "input", "textarea"}
        assert all(isinstance(value, str) and value for value in each["attributes"].values())
    required = [field for field in fields if field.get("validations", {}).get("required")]
    assert required
    assert all(field["validations"] == {"required": True} for field in required)


def test_hooks_run_targets_of_the_makefile_and_need_no_network() -> None:
    config = read(ROOT / ".pre-commit-config.yaml")
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    makefile = (ROOT / "Makefile").read_text()
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        program, target = hook["entry"].split()
        assert program == "make"
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
