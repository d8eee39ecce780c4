"""The store process begins without what only those need who ask it."""

from __future__ import annotations

from tests.modules import loaded_with


def test_the_store_process_begins_without_what_its_parent_needs() -> None:
    loaded = loaded_with("jobs.sqlite.server")
    assert "jobs.sqlite.server" in loaded
    assert loaded.isdisjoint({"asyncio", "jobs.memory.store", "jobs.sqlite.journal"})
