"""Fixes the import path when the user's folder has modules with the names of this package's.

RunPod users have a `handler.py` in their folder, and some an `engine.py` or a `jobs.py`. If
such a folder is first on `sys.path`, `import handler` imports the wrong module.
"""

from __future__ import annotations

import sys
from collections.abc import MutableSequence
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("batch", "common", "emulator", "engine", "handler", "jobs", "validation")
ROOT = Path(__file__).resolve().parents[1]


def put_own_packages_first(path: MutableSequence[str] = sys.path, root: Path = ROOT) -> None:
    """Put `root` first on `path` if a module elsewhere hides one of the packages in `root`.

    Otherwise the path is unchanged, because modules in `root` could needlessly hide modules of the
    standard library with the same names.
    """
    if any(_is_hidden(name, path, root) for name in PACKAGES):
        path.insert(0, str(root))


def _is_hidden(name: str, path: MutableSequence[str], root: Path) -> bool:
    spec = PathFinder.find_spec(name, list(path))
    if spec is None or spec.origin is None:
        return True
    return Path(spec.origin).resolve() != root / name / "__init__.py"
