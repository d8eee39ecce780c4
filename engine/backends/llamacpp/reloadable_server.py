"""The generating server, which is reloaded when a request needs other draft settings."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from engine.backends.llamacpp.server import DraftConfig, LlamaServer, ServerConfig
from engine.errors import BackendFailed, ModelLoadFailed


class ReloadableServer:
    """One server that any number of requests with the same draft settings use at a time.

    llama.cpp reads the draft settings only when it is loaded. A request with other settings
    waits until the server is idle and then reloads it; a request without settings uses the server
    as it is. Requests are served in order of arrival; otherwise requests that need no reload could
    delay a reload forever. Thread-safe.
    """

    def __init__(
        self, config: ServerConfig, load: Callable[[ServerConfig], LlamaServer] = LlamaServer
    ) -> None:
        self._load_server = load
        self._config = config
        # None during a reload, and after a reload that failed.
        self._server: LlamaServer | None = load(config)
        self._loading = False
        self._users = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def use_unqueued(self) -> Iterator[LlamaServer]:
        """Use the server briefly, ahead of the queue. Raises BackendFailed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._loading)
            server = self._take_server()
        try:
            yield server
        finally:
            self._release()

    @contextmanager
    def use(
        self, draft: DraftConfig | None, aborted: threading.Event
    ) -> Iterator[tuple[LlamaServer, float]]:
        """Use the server with these draft settings; yield it and the reload time in ms.

        Setting `aborted` ends the wait.

        Raises:
            ModelLoadFailed: the reload failed; the previous settings are loaded again.
            BackendFailed: no server is loaded.
        """
        ticket = object()
        reload_ms = 0.0
        with self._changed:
            self._queue.append(ticket)
        try:
            with self._changed:
                self._changed.wait_for(lambda: aborted.is_set() or self._is_turn(ticket, draft))
                must_load = not aborted.is_set() and not self._is_compatible(draft)
                if must_load:
                    self._loading = True
                    old, self._server = self._server, None
            if must_load:
                started = time.monotonic()
                self._reload(old, replace(self._config, draft=draft or self._config.draft))
                reload_ms = (time.monotonic() - started) * 1000
            with self._changed:
                server = self._take_server()
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield server, reload_ms
        finally:
            self._release()

    def wake(self) -> None:
        """Make waiting requests check whether they were aborted."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the server; the caller makes sure that it is idle."""
        if self._server is not None:
            self._server.close()

    def _is_turn(self, ticket: object, draft: DraftConfig | None) -> bool:
        return self._queue[0] is ticket and (self._is_compatible(draft) or not self._users)

    def _is_compatible(self, draft: DraftConfig | None) -> bool:
        return self._server is not None and draft in (None, self._config.draft)

    def _take_server(self) -> LlamaServer:
        if self._server is None:
            raise BackendFailed("llama.cpp is not loaded")
        self._users += 1
        return self._server

    def _release(self) -> None:
        with self._changed:
            self._users -= 1
            self._changed.notify_all()

    def _reload(self, old: LlamaServer | None, config: ServerConfig) -> None:
        """Reload the server without holding the lock, so that an abort does not wait for it."""
        try:
            if old is not None:
                # Close the old server first: there may be no memory for two.
                old.close()
            try:
                self._server = self._load_server(config)
                self._config = config
            except ModelLoadFailed:
                self._server = self._load_server(self._config)
                raise
        finally:
            with self._changed:
                self._loading = False
