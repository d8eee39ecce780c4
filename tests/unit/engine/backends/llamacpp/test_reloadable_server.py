"""Sharing and reloading one server (R17)."""

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

DEFAULT_DRAFT, LONG_DRAFT, SHORT_DRAFT = (
    DraftConfig(5, 0.0),
    DraftConfig(16, 0.5),
    DraftConfig(2, 0.0),
)
CONFIG = ServerConfig(path=Path("m"), name="m", context=8, slots=2, threads=1, draft=DEFAULT_DRAFT)
NEVER = threading.Event()


@dataclass(slots=True)
class FakeServer:
    """A server that records its draft settings and whether it was closed."""

    draft: DraftConfig
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class FakeLoader:
    """Loads fake servers, one at a time; it can be made to fail or to wait."""

    loaded: list[FakeServer] = field(default_factory=list)
    failures: list[DraftConfig] = field(default_factory=list)
    may_load: threading.Event = field(default_factory=threading.Event)

    def __call__(self, config: ServerConfig) -> Any:
        assert all(loaded_server.closed for loaded_server in self.loaded), (
            "there may be no room for two"
        )
        assert self.may_load.wait(10)
        if config.draft in self.failures:
            self.failures.remove(config.draft)
            raise ModelLoadFailed("no room")
        self.loaded.append(FakeServer(config.draft))
        return self.loaded[-1]


@pytest.fixture
def load() -> FakeLoader:
    loader = FakeLoader()
    loader.may_load.set()
    return loader


class ServerUser(threading.Thread):
    """A thread that uses a server until `may_leave` is set."""

    def __init__(self, servers: ReloadableServer, draft: DraftConfig | None = None) -> None:
        super().__init__(daemon=True)
        self.servers = servers
        self.draft = draft
        self.aborted = threading.Event()
        self.started = threading.Event()
        self.may_leave = threading.Event()
        self.server: FakeServer | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.servers.use(self.draft, self.aborted) as (server, _):
                self.server = server  # type: ignore[assignment]
                self.started.set()
                assert self.may_leave.wait(10)
        except (BackendFailed, ModelLoadFailed) as error:
            self.error = error
            self.started.set()

    def wait_for_server(self) -> FakeServer:
        assert self.started.wait(10)
        assert self.server is not None
        return self.server

    def end(self) -> None:
        self.may_leave.set()
        self.join(10)
        assert not self.is_alive()


@contextmanager
def using(servers: ReloadableServer, draft: DraftConfig | None = None) -> Iterator[FakeServer]:
    user = ServerUser(servers, draft)
    try:
        yield user.wait_for_server()
    finally:
        user.end()


@contextmanager
def use_unqueued(servers: ReloadableServer) -> Iterator[Any]:
    with servers.use_unqueued() as server:
        yield server


def wait_for_queue(servers: ReloadableServer, count: int) -> None:
    """Wait until the queue has this length; there is no event for that."""

    def has_length() -> bool:
        with servers._changed:
            return len(servers._queue) == count

    wait_until_blocking(has_length)


def test_requests_without_draft_settings_share_the_server(load: FakeLoader) -> None:
    servers = ReloadableServer(CONFIG, load)
    with (
        using(servers) as first_server,
        using(servers, DEFAULT_DRAFT) as second_server,
        use_unqueued(servers) as third,
    ):
        assert first_server is second_server is third
    assert [loaded_server.draft for loaded_server in load.loaded] == [DEFAULT_DRAFT]


def test_other_draft_settings_are_loaded_once_and_stay(load: FakeLoader) -> None:
    servers = ReloadableServer(CONFIG, load)
    for draft in (LONG_DRAFT, LONG_DRAFT, None):
        with using(servers, draft) as server:
            assert server.draft == LONG_DRAFT
    assert [loaded_server.draft for loaded_server in load.loaded] == [DEFAULT_DRAFT, LONG_DRAFT]


def test_reload_time_is_returned(load: FakeLoader) -> None:
    servers = ReloadableServer(CONFIG, load)
    for draft, loads in ((DEFAULT_DRAFT, False), (LONG_DRAFT, True), (LONG_DRAFT, False)):
        with servers.use(draft, NEVER) as (_, reload_ms):
            assert (reload_ms > 0) is loads


def test_reload_waits_for_users_and_is_not_overtaken(load: FakeLoader) -> None:
    servers = ReloadableServer(CONFIG, load)
    first = ServerUser(servers)
    first.wait_for_server()
    second = ServerUser(servers, LONG_DRAFT)
    wait_for_queue(servers, 1)
    third = ServerUser(servers)
    wait_for_queue(servers, 2)
    # A short request does not wait in the queue.
    with use_unqueued(servers) as server:
        assert server is first.server
    assert not second.started.is_set()
    assert not third.started.is_set()
    first.end()
    assert second.wait_for_server().draft == LONG_DRAFT
    assert third.wait_for_server() is second.server
    assert first.server is not None
    assert first.server.closed
    second.end()
    third.end()


def test_two_draft_settings_alternate(load: FakeLoader) -> None:
    servers = ReloadableServer(CONFIG, load)
    users = [ServerUser(servers, draft) for draft in (LONG_DRAFT, SHORT_DRAFT) * 5]
    for user in users:
        user.may_leave.set()
    for user in users:
        assert user.wait_for_server().draft == user.draft
        user.end()
    assert all(loaded_server.closed for loaded_server in load.loaded[:-1])


def test_abort_ends_the_wait(load: FakeLoader) -> None:
    servers = ReloadableServer(CONFIG, load)
    with using(servers) as server:
        waiting = ServerUser(servers, LONG_DRAFT)
        wait_for_queue(servers, 1)
        waiting.aborted.set()
        servers.wake()
        # An aborted run ends at its first callback, with any server.
        assert waiting.wait_for_server() is server
        waiting.end()
    assert [loaded_server.draft for loaded_server in load.loaded] == [DEFAULT_DRAFT]


def test_abort_does_not_wait_for_a_reload(load: FakeLoader) -> None:
    servers = ReloadableServer(CONFIG, load)
    load.may_load.clear()
    loading = ServerUser(servers, LONG_DRAFT)
    wait_for_queue(servers, 1)
    waiting = ServerUser(servers)
    wait_for_queue(servers, 2)
    waiting.aborted.set()
    servers.wake()
    assert waiting.started.wait(10)
    assert isinstance(waiting.error, BackendFailed)
    load.may_load.set()
    assert loading.wait_for_server().draft == LONG_DRAFT
    loading.end()


def test_failed_reload_restores_the_previous_settings(load: FakeLoader) -> None:
    servers = ReloadableServer(CONFIG, load)
    load.failures.append(LONG_DRAFT)
    with pytest.raises(ModelLoadFailed), servers.use(LONG_DRAFT, NEVER):
        pytest.fail("it was not loaded")
    with using(servers) as server:
        assert server.draft == DEFAULT_DRAFT


def test_next_request_retries_after_two_failures(load: FakeLoader) -> None:
    servers = ReloadableServer(CONFIG, load)
    load.failures += [LONG_DRAFT, DEFAULT_DRAFT]
    with pytest.raises(ModelLoadFailed), servers.use(LONG_DRAFT, NEVER):
        pytest.fail("it was not loaded")
    with pytest.raises(BackendFailed), servers.use_unqueued():
        pytest.fail("there is none")
    with using(servers) as server:
        assert server.draft == DEFAULT_DRAFT
    servers.close()
    assert all(loaded_server.closed for loaded_server in load.loaded)
