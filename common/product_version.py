"""The version of this program, for reports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DISTRIBUTION = "worker-rkllm"
_ROOT = Path(__file__).resolve().parents[1]
_SHORT_COMMIT = 12


def describe_version(root: Path = _ROOT) -> str:
    """Return the version of the installed package, or the commit of a clone."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        commit = _read_commit(root / ".git")
        return f"a clone at commit {commit}" if commit else "a copy of the source"


def _read_commit(folder: Path) -> str:
    """Return the commit of the branch that is checked out; empty if git keeps it elsewhere."""
    head = _read(folder / "HEAD")
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        packed = _read(folder / "packed-refs").splitlines()
        head = _read(folder / name) or next(
            (line.split()[0] for line in packed if line.endswith(f" {name}")), ""
        )
    return head[:_SHORT_COMMIT]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
