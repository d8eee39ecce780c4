"""Imports of the store process."""

from __future__ import annotations

from tests.modules import loaded_with


def test_store_process_does_not_import_modules_of_its_parent() -> None:
    loaded = loaded_with("jobs.sqlite.server")
    assert "jobs.sqlite.server" in loaded
    assert loaded.isdisjoint({"asyncio", "jobs.memory.store", "jobs.sqlite.journal"})
