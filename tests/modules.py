"""What a process has imported by the time it has imported a module of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def loaded_with(module: str) -> set[str]:
    """Import a module in a process of its own; return the names of all that are there then."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=ROOT,
    )
    return set(done.stdout.split())
