"""The budget of received bodies: in all, per address, and given back exactly."""

from __future__ import annotations

from emulator.http.body_budget import FREE_BYTES, BodyBudget, ReceivedBody


def budget(limit_bytes: int = 1_000, per_address: int = 600) -> BodyBudget:
    return BodyBudget(limit_bytes, per_address, 1_000)


def test_received_body_does_not_count_its_first_bytes() -> None:
    shared = budget()
    body = ReceivedBody(shared, "a")
    assert body.add(FREE_BYTES)
    assert shared.used_bytes == 0
    assert body.add(5)
    assert shared.used_bytes == 5


def test_received_body_is_rejected_above_the_limit_of_its_address() -> None:
    shared = budget()
    assert ReceivedBody(shared, "a").add(FREE_BYTES + 400)
    assert not ReceivedBody(shared, "a").add(FREE_BYTES + 201)
    assert ReceivedBody(shared, "b").add(FREE_BYTES + 201)


def test_received_body_is_rejected_above_the_total_limit() -> None:
    shared = budget()
    assert ReceivedBody(shared, "a").add(FREE_BYTES + 600)
    body = ReceivedBody(shared, "b")
    assert not body.add(FREE_BYTES + 401)
    assert shared.used_bytes == 600
    assert body.add(FREE_BYTES + 400)


def test_release_releases_no_more_than_was_counted() -> None:
    shared = budget()
    body = ReceivedBody(shared, "a")
    body.add(FREE_BYTES + 300)
    body.release(100)
    assert shared.used_bytes == 200
    body.release(1_000_000)
    body.release()
    assert shared.used_bytes == 0
    assert not shared._by_address
