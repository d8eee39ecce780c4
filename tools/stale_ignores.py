"""`python tools/stale_ignores.py`: report exceptions in pyproject.toml that no file needs.

Ruff reports a `noqa` without use (RUF100), but no entry of `per-file-ignores` without use. Such an
entry hides the next finding of its rule.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """A finding of ruff: its rule, and the file relative to the root."""

    rule: str
    path: str


def find_everything(root: Path) -> set[Finding]:
    """Return what ruff finds in a project without its per-file-ignores."""
    command = [sys.executable, "-m", "ruff", "check", "--exit-zero", "--output-format", "json"]
    command += ["--config", "lint.per-file-ignores={}", "."]
    done = subprocess.run(command, cwd=root, capture_output=True, check=True)
    return {
        Finding(each["code"], str(Path(each["filename"]).relative_to(root.resolve())))
        for each in json.loads(done.stdout)
    }


def find_stale_ignores(root: Path) -> Iterator[str]:
    """Yield each rule of per-file-ignores that finds nothing in the files of its pattern."""
    with (root / "pyproject.toml").open("rb") as file:
        ignores = tomllib.load(file)["tool"]["ruff"]["lint"]["per-file-ignores"]
    findings = find_everything(root)
    for pattern, rules in ignores.items():
        # `*` of fnmatch crosses folders, so `**` is the same.
        path_pattern = pattern.replace("**/", "*").replace("**", "*")
        matching_rules = [each.rule for each in findings if fnmatch(each.path, path_pattern)]
        for rule in rules:
            if not any(each.startswith(rule) for each in matching_rules):
                yield f'pyproject.toml: "{pattern}" ignores {rule}, which finds nothing there'


def main() -> int:
    """Print the findings, one a line. Return 1 if there are any, else 0."""
    findings = list(find_stale_ignores(Path()))
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
