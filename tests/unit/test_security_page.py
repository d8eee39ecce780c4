"""docs/security.md against the tests that it names: a defence without its test is a claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
SETTINGS_PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
# Without the environments of other clients, which contain thousands of tests.
FOLDERS = ("acceptance", "arm64", "integration", "long", "property", "security", "unit")
TESTS = [path for name in FOLDERS for path in (ROOT / "tests" / name).rglob("test_*.py")]
NAMES = {f"/{path.relative_to(ROOT)}": path for path in TESTS}
# Every test in these folders is an attack.
ATTACKS = [*(ROOT / "tests").glob("security/test_*.py")]
ATTACKS += (ROOT / "tests").glob("long/security/test_*.py")
# Variables of other programs.
FOREIGN_VARIABLES = {"HTTPS_PROXY"}

_TEST_FILE = re.compile(r"`((?:tests/)?(?:\w+/)*test_\w+\.py)`")
# A file, then the functions in it.
_FILE_WITH_TESTS = re.compile(r"`((?:[\w]+/)*test_\w+\.py)`:((?:,? `test_\w+`)+)")
_TEST_FUNCTION = re.compile(r"`(test_\w+)`")
_FOLDER = re.compile(r"`(tests/[\w/]+)`")
_SETTING = re.compile(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)(?:=[^`]*)?`")
_SETTING_GROUP = re.compile(r"`([A-Z][A-Z0-9]*_)\*`")


def rows_of_attacks() -> list[str]:
    """Return the rows of the tables with the heading `attack | test`."""
    tables = re.findall(r"^\| attack \| test \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.M)
    return [row for table in tables for row in table.splitlines()]


def files_named(name: str) -> list[Path]:
    """Return the test files that a name or a path of the page stands for."""
    return [path for full_name, path in NAMES.items() if full_name.endswith(f"/{name}")]


def settings() -> set[str]:
    """Return the names of all settings."""
    return set(re.findall(r"^\| `([A-Z0-9_]+)` \|", SETTINGS_PAGE, re.M))


@pytest.mark.parametrize("name", sorted(set(_TEST_FILE.findall(PAGE))))
def test_every_test_file_that_the_page_names_is_one_file(name: str) -> None:
    assert len(files_named(name)) == 1


def test_every_test_function_that_the_page_names_is_in_its_file() -> None:
    checked = 0
    for name, functions in _FILE_WITH_TESTS.findall(PAGE):
        (path,) = files_named(name)
        source = path.read_text(encoding="utf-8")
        for function in _TEST_FUNCTION.findall(functions):
            assert f"def {function}(" in source, f"{name} has no {function}"
            checked += 1
    # Every test on the page is named with its file.
    assert checked == len(_TEST_FUNCTION.findall(PAGE)) > 40


@pytest.mark.parametrize("path", ATTACKS, ids=lambda path: path.name)
def test_every_attack_test_is_named_by_the_page(path: Path) -> None:
    assert any(files_named(name) == [path] for name in _TEST_FILE.findall(PAGE))


def test_every_setting_that_the_page_names_exists() -> None:
    named = set(_SETTING.findall(PAGE)) - FOREIGN_VARIABLES
    # Values and methods, which are no settings, have no underscore.
    named = {name for name in named if "_" in name or name in settings()}
    assert len(named) > 20
    assert named - settings() == set()


@pytest.mark.parametrize("prefix", sorted(set(_SETTING_GROUP.findall(PAGE))))
def test_every_group_of_settings_that_the_page_names_exists(prefix: str) -> None:
    assert any(name.startswith(prefix) for name in settings())


@pytest.mark.parametrize(
    "name",
    [
        *("ABORT_GRACE_S", "ALLOWED_HOSTS", "ALLOW_NO_API_KEY", "API_KEYS", "BATCH_DIR"),
        *("BATCH_STORE_MB", "BODY_TIMEOUT_S", "CORS_ORIGINS", "ENGINE_DOWN_EXIT_S"),
        *("ENGINE_DRAIN_S", "ENGINE_MEMORY_MB", "HEAD_TIMEOUT_S", "JOB_DB"),
        *("LOG_TEXTS", "MAX_CONNECTIONS", "MAX_CONNECTIONS_PER_ADDRESS", "MAX_JSON_VALUES"),
        *("MAX_PENDING_BODY_MB", "METRICS_OPEN", "PRIVATE_TARGETS", "READ_TIMEOUT_S"),
    ],
)
def test_every_setting_that_opens_or_bounds_the_server_is_named(name: str) -> None:
    assert name in _SETTING.findall(PAGE)


@pytest.mark.parametrize("folder", sorted(set(_FOLDER.findall(PAGE))))
def test_every_folder_of_tests_that_the_page_names_exists(folder: str) -> None:
    assert (ROOT / folder).is_dir()


def test_every_attack_in_a_table_names_its_test() -> None:
    assert [row for row in rows_of_attacks() if not _TEST_FILE.search(row)] == []


def test_the_policy_and_the_page_refer_to_each_other() -> None:
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "(docs/security.md)" in policy
    assert "(../SECURITY.md)" in PAGE
