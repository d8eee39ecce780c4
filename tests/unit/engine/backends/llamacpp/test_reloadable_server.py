"""One server for many users, loaded again between them (R17)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.backends.llamacpp.reloadable_server import ReloadableServer
from engine.backends.llamacpp.server import DraftConfig, ServerConfig
from engine.errors import BackendFailed, ModelLoadFailed
from tests.waiting import wait_until_blocking

USUAL, FAR, NEAR = DraftConfig(5, 0.0), DraftConfig(16, 0.5), DraftConfig(2, 0.0)
PLAN = ServerConfig(path=Path("m"), name="m", context=8, slots=2, threads=1, draft=USUAL)
NEVER = threading.Event()


@dataclass(slots=True)
class Tiny:
    """A server that knows how it was loaded, and whether it is there."""

    draft: DraftConfig
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class Loader:
    """Loads servers, one at a time, unless it is told to fail or to wait."""

    loaded: list[Tiny] = field(default_factory=list)
    failures: list[DraftConfig] = field(default_factory=list)
    may_load: threading.Event = field(default_factory=threading.Event)

    def __call__(self, plan: ServerConfig) -> Any:
        assert all(each.closed for each in self.loaded), "there may be no room for two"
        assert self.may_load.wait(10)
        if plan.draft in self.failures:
            self.failures.remove(plan.draft)
            raise ModelLoadFailed("no room")
        self.loaded.append(Tiny(plan.draft))
        return self.loaded[-1]


@pytest.fixture
def load() -> Loader:
    loader = Loader()
    loader.may_load.set()
    return loader


class User(threading.Thread):
    """Uses a server until it is told to leave."""

    def __init__(self, servers: ReloadableServer, draft: DraftConfig | None = None) -> None:
        super().__init__(daemon=True)
        self.servers = servers
        self.draft = draft
        self.aborted = threading.Event()
        self.begun = threading.Event()
        self.leave = threading.Event()
        self.server: Tiny | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.servers.use(self.draft, self.aborted) as (server, _):
                self.server = server  # type: ignore[assignment]
                self.begun.set()
                assert self.leave.wait(10)
        except (BackendFailed, ModelLoadFailed) as error:
            self.error = error
            self.begun.set()

    def begins(self) -> Tiny:
        assert self.begun.wait(10)
        assert self.server is not None
        return self.server

    def end(self) -> None:
        self.leave.set()
        self.join(10)
        assert not self.is_alive()


@contextmanager
def using(servers: ReloadableServer, draft: DraftConfig | None = None) -> Iterator[Tiny]:
    user = User(servers, draft)
    try:
        yield user.begins()
    finally:
        user.end()


@contextmanager
def aside(servers: ReloadableServer) -> Iterator[Any]:
    with servers.use_unqueued() as server:
        yield server


def wait_in_line(servers: ReloadableServer, count: int) -> None:
    """Wait until so many stand in line; nobody is told of that."""

    def so_many() -> bool:
        with servers._changed:
            return len(servers._queue) == count

    wait_until_blocking(so_many)


def test_requests_without_draft_settings_share_the_server(load: Loader) -> None:
    servers = ReloadableServer(PLAN, load)
    with using(servers) as one, using(servers, USUAL) as other, aside(servers) as third:
        assert one is other is third
    assert [each.draft for each in load.loaded] == [USUAL]


def test_other_draft_settings_are_loaded_once_and_stay(load: Loader) -> None:
    servers = ReloadableServer(PLAN, load)
    for draft in (FAR, FAR, None):
        with using(servers, draft) as server:
            assert server.draft == FAR
    assert [each.draft for each in load.loaded] == [USUAL, FAR]


def test_reload_time_is_returned(load: Loader) -> None:
    servers = ReloadableServer(PLAN, load)
    for draft, loads in ((USUAL, False), (FAR, True), (FAR, False)):
        with servers.use(draft, NEVER) as (_, reload_ms):
            assert (reload_ms > 0) is loads


def test_reload_waits_for_users_and_is_not_overtaken(load: Loader) -> None:
    servers = ReloadableServer(PLAN, load)
    first = User(servers)
    first.begins()
    second = User(servers, FAR)
    wait_in_line(servers, 1)
    third = User(servers)
    wait_in_line(servers, 2)
    # Questions that are answered at once do not wait for a whole generation.
    with aside(servers) as server:
        assert server is first.server
    assert not second.begun.is_set()
    assert not third.begun.is_set()
    first.end()
    assert second.begins().draft == FAR
    assert third.begins() is second.server
    assert first.server is not None
    assert first.server.closed
    second.end()
    third.end()


def test_two_draft_settings_alternate(load: Loader) -> None:
    servers = ReloadableServer(PLAN, load)
    users = [User(servers, draft) for draft in (FAR, NEAR) * 5]
    for user in users:
        user.leave.set()
    for user in users:
        assert user.begins().draft == user.draft
        user.end()
    assert all(each.closed for each in load.loaded[:-1])


def test_abort_ends_the_wait(load: Loader) -> None:
    servers = ReloadableServer(PLAN, load)
    with using(servers) as server:
        waiting = User(servers, FAR)
        wait_in_line(servers, 1)
        waiting.aborted.set()
        servers.wake()
        # It is over at its first callback, whatever it runs on.
        assert waiting.begins() is server
        waiting.end()
    assert [each.draft for each in load.loaded] == [USUAL]


def test_abort_does_not_wait_for_a_reload(load: Loader) -> None:
    servers = ReloadableServer(PLAN, load)
    load.may_load.clear()
    loading = User(servers, FAR)
    wait_in_line(servers, 1)
    waiting = User(servers)
    wait_in_line(servers, 2)
    waiting.aborted.set()
    servers.wake()
    assert waiting.begun.wait(10)
    assert isinstance(waiting.error, BackendFailed)
    load.may_load.set()
    assert loading.begins().draft == FAR
    loading.end()


def test_failed_reload_restores_the_previous_settings(load: Loader) -> None:
    servers = ReloadableServer(PLAN, load)
    load.failures.append(FAR)
    with pytest.raises(ModelLoadFailed), servers.use(FAR, NEVER):
        pytest.fail("it was not loaded")
    with using(servers) as server:
        assert server.draft == USUAL


def test_next_request_retries_after_two_failures(load: Loader) -> None:
    servers = ReloadableServer(PLAN, load)
    load.failures += [FAR, USUAL]
    with pytest.raises(ModelLoadFailed), servers.use(FAR, NEVER):
        pytest.fail("it was not loaded")
    with pytest.raises(BackendFailed), servers.use_unqueued():
        pytest.fail("there is none")
    with using(servers) as server:
        assert server.draft == USUAL
    servers.close()
    assert all(each.closed for each in load.loaded)
