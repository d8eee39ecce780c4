"""Puts a fake rknn-toolkit-lite2 on the path, and writes its "model files"."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_FOLDER = Path(__file__).parent


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `rknnlite` importable in this process and in its child processes."""
    for name in ("rknnlite", "rknnlite.api"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(_FOLDER))
    path = os.pathsep.join(filter(None, (str(_FOLDER), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)


def write_encoder(path: Path, **options: Any) -> Path:
    """Write a vision encoder; keywords are fields of `FakeModel`."""
    path.write_text(json.dumps(options), encoding="utf-8")
    return path


class Call(NamedTuple):
    """A line of FAKE_RKNN_LOG: the start of a call, or the end of an inference."""

    ns: int
    pid: int
    name: str


def read_log(path: Path) -> list[Call]:
    """Return the calls logged so far, in order; `ns` is of the clock of FAKE_RKLLM_LOG."""
    lines = (line.split(" ") for line in path.read_text(encoding="utf-8").splitlines())
    return [Call(int(ns), int(pid), name) for ns, pid, name in lines]


def read_names(path: Path) -> list[str]:
    """Return the names of the calls logged so far."""
    return [call.name for call in read_log(path)]
