from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from common import product_version
from common.product_version import describe_version

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(product_version, "version", missing)


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack\n{COMMIT} refs/heads/main\n"},
        {"HEAD": f"{COMMIT}\n"},
    ],
    ids=["branch", "packed", "commit"],
)
def test_describe_version_of_a_clone_is_its_commit(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tmp_path / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert describe_version(tmp_path) == "a clone at commit 0123456789ab"


def test_describe_version_without_git_is_a_copy(tmp_path: Path) -> None:
    assert describe_version(tmp_path) == "a copy of the source"


def test_describe_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_version, "version", lambda name: "1.2.3")
    assert describe_version() == "1.2.3"
