"""The files, targets and names in CONTRIBUTING.md exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
SECTIONS = dict(
    re.findall(r"^\*\*(.+?)\*\*.*\n\n((?:[ \d].*\n)+)", PAGE, re.MULTILINE),
)
CODE = re.findall(r"`([^`\n]+)`", PAGE)
# Paths have a slash or are files at the root; routes start with a slash.
PATHS = sorted(
    {code for code in CODE if re.fullmatch(r"[\w.][\w.-]*(/[\w.-]+)+", code)}
    | {
        code
        for code in CODE
        if re.fullmatch(r"Makefile|Dockerfile|requirements|[\w-]+\.(?:md|json)", code)
    }
    | set(re.findall(r"\]\(([^)#]+)\)", PAGE))
)
TARGETS = sorted({match for code in CODE for match in re.findall(r"^make ([\w-]+)", code)})
# Names in a file, each after the file in which it is defined.
NAMES = {
    "SamplingParams": "engine/request.py",
    "SamplingInput": "handler/input/sampling.py",
    "build_sampling": "handler/input/sampling.py",
    "_OPTIONAL": "engine/capabilities.py",
    "Operations": "engine/backends/base.py",
    "SideCall": "engine/backends/base.py",
    "PREFILL_CALLS": "engine/backends/base.py",
    "SlotOperation": "engine/slot_operations.py",
    "ROUTES": "handler/apis/openai/api.py",
    "OperationName": "emulator/http/route_facts.py",
    "_PROBE": "emulator/console/description.py",
    "_CHECKS": "validation/checks.py",
    "Checks": "validation/checks.py",
    "too_long": "validation/rules.yaml",
    "ABIS": "engine/backends/rkllm/abi/abi.py",
    "Abi": "engine/backends/rkllm/abi/abi.py",
    "Api": "handler/apis/core/api.py",
    "wait_until": "tests/waiting.py",
    "script": "tests/conftest.py",
    "engine_factory": "tests/conftest.py",
}


def test_every_named_path_exists() -> None:
    assert [path for path in PATHS if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("target", TARGETS)
def test_every_named_target_is_in_the_makefile(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_named_name_is_in_its_file(name: str) -> None:
    assert f"`{name}`" in PAGE
    assert re.search(rf"\b{name}\b", (ROOT / NAMES[name]).read_text())


def test_each_of_six_examples_names_three_or_more_files() -> None:
    assert len(SECTIONS) == 6
    for steps in SECTIONS.values():
        assert sum(f"`{path}`" in steps for path in PATHS) >= 3


def test_page_names_the_four_commands_and_is_short() -> None:
    assert {"run", "check", "test", "test-changed"} <= set(TARGETS)
    assert len(PAGE.splitlines()) <= 110
