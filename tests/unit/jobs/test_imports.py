"""The store process begins without what only those need who ask it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import jobs

ROOT = Path(__file__).resolve().parents[3]


def test_the_store_process_begins_without_what_its_parent_needs() -> None:
    program = "import sys, jobs.store_process; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=ROOT,
    )
    loaded = set(done.stdout.split())
    assert "jobs.store_process" in loaded
    assert loaded.isdisjoint({"asyncio", "jobs.memory", "jobs.sqlite_journal"})


def test_every_public_name_is_there() -> None:
    assert all(hasattr(jobs, name) for name in jobs.__all__)
    assert sorted(name for names in jobs._NAMES.values() for name in names) == jobs.__all__


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="module 'jobs' has no attribute 'Jbo'"):
        jobs.Jbo  # noqa: B018 - asked for is enough
