"""The list of test files for a change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.changed_tests import changed_files, imported_names, main, select

# The imports: store <- shelf <- shop <- street <- town. `garden` and `pots` have no importers.
FILES = {
    "pyproject.toml": '[tool.importlinter]\nroot_packages = ["changed_tests_sample"]\n',
    "README.md": "Read me.\n",
    "changed_tests_sample/__init__.py": "",
    "changed_tests_sample/store.py": "",
    "changed_tests_sample/shelf.py": "from changed_tests_sample import store\n",
    "changed_tests_sample/shop.py": "from changed_tests_sample.shelf import store\n",
    "changed_tests_sample/street.py": "import changed_tests_sample.shop\n",
    "changed_tests_sample/town.py": "import changed_tests_sample.street\n",
    "changed_tests_sample/garden.py": 'PLANTS = "plants.yaml"\nPICTURES = "pictures"\n',
    "changed_tests_sample/garden_wall.py": "",
    "changed_tests_sample/plants.yaml": "",
    "changed_tests_sample/garden.yaml": "",
    "changed_tests_sample/pictures/rose.svg": "",
    "changed_tests_sample/pots/__init__.py": "",
    "changed_tests_sample/pots/clay.py": "",
    "tests/helper.py": "",
    "tests/second_helper.py": "import tests.helper\n",
    "tests/data/lines.txt": "",
    "tests/unit/conftest.py": "",
    "tests/unit/test_page.py": 'PAGE = ROOT / "README.md"\nLINES = "tests/data/lines.txt"\n',
    "tests/unit/test_helped.py": "from tests import helper\n",
    "tests/unit/changed_tests_sample/test_store.py": "",
    "tests/unit/changed_tests_sample/test_shelf.py": "",
    "tests/unit/changed_tests_sample/test_shop.py": "",
    "tests/unit/changed_tests_sample/test_street.py": "",
    "tests/unit/changed_tests_sample/test_town.py": "",
    "tests/unit/changed_tests_sample/test_garden.py": "",
    "tests/unit/changed_tests_sample/test_garden_paths.py": "",
    "tests/unit/changed_tests_sample/test_garden_wall.py": "",
    "tests/unit/changed_tests_sample/test_pots.py": "",
    "tests/unit/test_shelved.py": "import changed_tests_sample.shelf\n",
    "tests/unit/test_shopping.py": "import changed_tests_sample.shop\n",
    "tests/property/test_shelves.py": "import changed_tests_sample.shelf\n",
    "tests/integration/test_trade.py": "from changed_tests_sample import shop, town\n",
    "tests/security/test_theft.py": "import changed_tests_sample.store, tests.second_helper\n",
    "tests/long/test_years.py": "import changed_tests_sample.store, tests.helper\n",
}
UNIT = "tests/unit/changed_tests_sample"


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Jo", "-c", "user.email=jo@example.com")
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with the files, all of them committed."""
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    # The import graph finds the package through this path, and adds none of its own.
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    return tmp_path


def change(root: Path, *paths: str) -> None:
    for path in paths:
        with (root / path).open("a") as file:
            file.write("# changed\n")


def selected(root: Path, distance: int = 2) -> list[str]:
    return [choice.path for choice in select(root, distance=distance).choices]


def test_changed_files_has_modified_deleted_and_untracked_ones(root: Path) -> None:
    change(root, "README.md")
    (root / "changed_tests_sample/town.py").unlink()
    (root / "new.py").touch()
    (root / ".gitignore").write_text("ignored.py\n")
    (root / "ignored.py").touch()
    assert changed_files(root, "HEAD") == [
        ".gitignore",
        "README.md",
        "changed_tests_sample/town.py",
        "new.py",
    ]


def test_select_compares_with_the_base_commit(root: Path) -> None:
    change(root, "changed_tests_sample/pots/clay.py")
    git(root, "commit", "-q", "-a", "-m", "clay")
    assert selected(root) == []
    assert [each.path for each in select(root, "HEAD~1").choices] == [f"{UNIT}/test_pots.py"]


def test_select_takes_a_leaf_modules_own_tests(root: Path) -> None:
    change(root, "changed_tests_sample/garden.py")
    assert selected(root) == [f"{UNIT}/test_garden.py", f"{UNIT}/test_garden_paths.py"]


def test_select_takes_a_packages_tests_for_a_module_without_its_own(root: Path) -> None:
    change(root, "changed_tests_sample/pots/clay.py")
    assert selected(root) == [f"{UNIT}/test_pots.py"]


def test_select_takes_all_tests_of_a_folder_for_a_module_without_any_by_name(root: Path) -> None:
    (root / "changed_tests_sample/untested.py").touch()
    files = selected(root)
    assert len(files) == sum(name.startswith(f"{UNIT}/test_") for name in FILES)
    assert all(file.startswith(f"{UNIT}/test_") for file in files)


def test_select_takes_the_tests_of_importers_the_nearest_first(root: Path) -> None:
    change(root, "changed_tests_sample/store.py")
    selection = select(root)
    assert [(each.path, each.distance) for each in selection.choices] == [
        (f"{UNIT}/test_store.py", None),
        (f"{UNIT}/test_shelf.py", 1),
        ("tests/unit/test_shelved.py", 1),
        (f"{UNIT}/test_shop.py", 2),
    ]
    # The tests of `street` and `town`.
    assert selection.left_out == 2
    assert selected(root, distance=9)[4:] == [f"{UNIT}/test_street.py", f"{UNIT}/test_town.py"]


def test_select_ends_at_the_limit_but_keeps_the_modules_own_tests(root: Path) -> None:
    change(root, "changed_tests_sample/store.py", "changed_tests_sample/town.py")
    selection = select(root, limit=1)
    assert [each.path for each in selection.choices] == [
        f"{UNIT}/test_store.py",
        f"{UNIT}/test_town.py",
    ]
    assert selection.left_out > 0


def test_select_takes_direct_importers_without_servers_and_long_tests(root: Path) -> None:
    change(root, "changed_tests_sample/town.py")
    assert selected(root) == [f"{UNIT}/test_town.py", "tests/integration/test_trade.py"]
    change(root, "changed_tests_sample/store.py")
    assert not {"tests/security/test_theft.py", "tests/long/test_years.py"} & set(selected(root))


def test_select_takes_property_tests_of_the_changed_module_only(root: Path) -> None:
    change(root, "changed_tests_sample/store.py")
    assert "tests/property/test_shelves.py" not in selected(root)
    change(root, "changed_tests_sample/shelf.py")
    assert "tests/property/test_shelves.py" in selected(root)


def test_select_takes_a_changed_test_but_no_deleted_or_long_one(root: Path) -> None:
    change(root, "tests/security/test_theft.py", "tests/long/test_years.py")
    (root / UNIT / "test_town.py").unlink()
    assert selected(root) == ["tests/security/test_theft.py"]


def test_select_takes_the_tests_that_use_a_changed_helper(root: Path) -> None:
    change(root, "tests/helper.py")
    assert selected(root) == ["tests/unit/test_helped.py", "tests/security/test_theft.py"]


def test_select_takes_the_tests_below_a_changed_conftest(root: Path) -> None:
    change(root, "tests/unit/conftest.py")
    files = selected(root)
    assert len(files) == sum(name.startswith("tests/unit/") for name in FILES) - 1
    assert all(file.startswith("tests/unit/") for file in files)


@pytest.mark.parametrize("data", ["plants.yaml", "garden.yaml", "pictures/rose.svg"])
def test_select_counts_a_data_file_as_the_module_that_reads_it(root: Path, data: str) -> None:
    change(root, f"changed_tests_sample/{data}")
    assert selected(root) == [f"{UNIT}/test_garden.py", f"{UNIT}/test_garden_paths.py"]


@pytest.mark.parametrize("path", ["README.md", "tests/data/lines.txt"])
def test_select_takes_the_tests_that_name_another_file(root: Path, path: str) -> None:
    change(root, path)
    assert selected(root) == ["tests/unit/test_page.py"]


def test_imported_names_has_both_meanings_of_a_from_import() -> None:
    source = "import a.b\ndef f():\n    from c import d as e\nfrom . import g\n"
    assert list(imported_names(source)) == ["a.b", "c", "c.d"]


def test_main_prints_the_files_on_stdout_and_the_reasons_on_stderr(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(root, "changed_tests_sample/store.py")
    assert main(["--explain", "--distance", "1"], root) == 0
    output = capsys.readouterr()
    assert output.out == f"{UNIT}/test_store.py\n{UNIT}/test_shelf.py\ntests/unit/test_shelved.py\n"
    assert output.err == (
        "3 test files for 1 changed file since HEAD; "
        "3 more depend on them (`make test` runs all).\n"
        f"{UNIT}/test_store.py: it tests changed_tests_sample.store\n"
        f"{UNIT}/test_shelf.py: it tests changed_tests_sample.shelf, "
        "which imports a changed module (distance 1)\n"
        "tests/unit/test_shelved.py: it imports changed_tests_sample.shelf, "
        "which imports a changed module (distance 1)\n"
    )


def test_main_prints_a_sentence_when_nothing_differs(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], root) == 0
    assert capsys.readouterr() == ("", "Nothing differs from HEAD: there is no test to run.\n")


def test_main_prints_a_sentence_when_no_test_belongs_to_the_change(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(root, "pyproject.toml", "new.txt")
    assert main([], root) == 0
    assert capsys.readouterr() == ("", "No test belongs to the 2 changed files since HEAD.\n")


def test_main_returns_2_for_an_unknown_commit(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--base", "nowhere"], root) == 2
    assert "git cannot compare with 'nowhere': name a commit.\n" in capsys.readouterr().err
