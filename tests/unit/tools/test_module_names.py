"""The check of constants without a reader, and of names that hide a function."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.module_names import check, main

HIDES = "module.py: count in total (line 4) hides the function of the module"


def findings(folder: Path, **modules: str) -> list[str]:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return [each.removeprefix(f"{folder}/") for each in check([folder])]


@pytest.mark.parametrize("name", ["LIMIT", "_LIMIT"])
def test_check_finds_a_constant_that_nothing_reads(tmp_path: Path, name: str) -> None:
    assert findings(tmp_path, module=f"{name} = 1\n") == [f"module.py: nothing reads {name}"]


@pytest.mark.parametrize(
    "other", ["from module import LIMIT\n", "import module\n\nprint(module.LIMIT)\n"]
)
def test_check_accepts_a_constant_that_another_module_reads(tmp_path: Path, other: str) -> None:
    assert findings(tmp_path, module="LIMIT = 1\n", other=other) == []


@pytest.mark.parametrize("name", ["__all__", "pytestmark", "_", "test_store"])
def test_check_accepts_names_that_programs_read(tmp_path: Path, name: str) -> None:
    assert findings(tmp_path, module=f"{name} = ()\n") == []


@pytest.mark.parametrize(
    "function",
    [
        "def total(count):\n    return count\n",
        "def total():\n    count = 1\n    return count\n",
        "async def total():\n    for count in (1,):\n        yield count\n",
    ],
)
def test_check_finds_a_variable_with_the_name_of_a_function(tmp_path: Path, function: str) -> None:
    module = f"def count():\n    return 1\n\n{function}"
    assert findings(tmp_path, module=module) == [HIDES]


def test_check_finds_a_variable_of_a_method(tmp_path: Path) -> None:
    module = (
        "def count():\n    return 1\n\n"
        "class A:\n    def total(self, count):\n        return count\n"
    )
    assert findings(tmp_path, module=module) == [HIDES.replace("line 4", "line 5")]


def test_check_accepts_fixtures_and_methods(tmp_path: Path) -> None:
    module = (
        "import pytest\n\n"
        '@pytest.fixture(scope="module")\ndef count():\n    return 1\n\n'
        "def test_total(count):\n    return count\n\n"
        "def name():\n    return 1\n\n"
        "class A:\n    def name(self):\n        return name()\n"
    )
    assert findings(tmp_path, module=module) == []


def test_main_fails_only_with_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    (tmp_path / "module.py").write_text("LIMIT = 1\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{tmp_path}/module.py: nothing reads LIMIT\n"
