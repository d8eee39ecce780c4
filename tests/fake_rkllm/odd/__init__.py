"""Build libraries with librkllmrt.so's symbols but invalid behaviour; odd.c lists the variants."""

from __future__ import annotations

from pathlib import Path

from tests.fake_rkllm import FLAGS, LIBRARY, SHARED, run

_SOURCE = Path(__file__).with_name("odd.c")


def build_odd(directory: Path, *defines: str) -> Path:
    """Compile a variant into a folder; return the library's path."""
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / LIBRARY
    run(*FLAGS, *SHARED, *(f"-D{define}" for define in defines), str(_SOURCE), "-o", str(library))
    return library
