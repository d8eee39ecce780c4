"""Run the page's modules in Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from emulator.http.public_files import CONSOLE_FOLDER


def copy_modules(folder: Path) -> Path:
    """Copy the modules, marked as modules, which the page does in a browser."""
    shutil.copytree(CONSOLE_FOLDER, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def run_program(modules: Path, program: str) -> Any:
    """Return the JSON that a program prints."""
    command = ["node", "--input-type=module", "--eval", program]
    done = subprocess.run(command, cwd=modules, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)
