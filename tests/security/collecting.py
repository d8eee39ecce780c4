"""`batch collect` in this process, with what it prints."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

from rich.console import Console

from batch.cli import collect
from batch.queue.result_bucket import ResultBucket
from batch.settings import BatchSettings


def collected(
    place: ResultBucket, batch: str, output: Path, **options: Any
) -> tuple[int, list[str]]:
    """Run the command on a batch; return its exit code and the lines of its message."""
    values: dict[str, Any] = {"errors": None, "force": False, "wait": False} | options
    arguments = argparse.Namespace(
        results=place.url("").rstrip("/"), batch=batch, output=str(output), **values
    )
    screen = io.StringIO()
    code = collect.run(arguments, BatchSettings(), Console(file=screen))
    return code, screen.getvalue().splitlines()
