"""The server that generates, and when it is loaded again."""

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
    """One server, for any number of users at a time who draft in the same manner.

    llama.cpp reads how far to draft at its load alone (R17). So whoever asks for another manner
    waits until nobody uses the server, and has it loaded again; whoever asks for none takes it as
    it is. First come first served: else a load would be put off for ever by those who need none.
    Any thread may use it.
    """

    def __init__(
        self, plan: ServerConfig, load: Callable[[ServerConfig], LlamaServer] = LlamaServer
    ) -> None:
        self._load = load
        self._plan = plan
        # None while it is loaded again, and then where that failed.
        self._server: LlamaServer | None = load(plan)
        self._loading = False
        self._users = 0
        self._line: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def side(self) -> Iterator[LlamaServer]:
        """Use it for a moment, past those who wait in line. Raises BackendFailed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._loading)
            server = self._taken()
        try:
            yield server
        finally:
            self._give_back()

    @contextmanager
    def use(
        self, draft: DraftConfig | None, aborted: threading.Event
    ) -> Iterator[tuple[LlamaServer, float]]:
        """Use it, drafting in this manner; tell how long loading it took, in ms.

        `aborted` ends the waiting.

        Raises:
            ModelLoadFailed: it could not be loaded in this manner; it is then as it was before.
            BackendFailed: there is none, or not yet.
        """
        place = object()
        reload_ms = 0.0
        with self._changed:
            self._line.append(place)
        try:
            with self._changed:
                self._changed.wait_for(lambda: aborted.is_set() or self._is_turn(place, draft))
                loads = not aborted.is_set() and not self._suits(draft)
                if loads:
                    self._loading = True
                    old, self._server = self._server, None
            if loads:
                started = time.monotonic()
                self._reload(old, replace(self._plan, draft=draft or self._plan.draft))
                reload_ms = (time.monotonic() - started) * 1000
            with self._changed:
                server = self._taken()
        finally:
            with self._changed:
                self._line.remove(place)
                self._changed.notify_all()
        try:
            yield server, reload_ms
        finally:
            self._give_back()

    def wake(self) -> None:
        """Have those who wait look whether they were aborted."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the server; nobody uses it."""
        if self._server is not None:
            self._server.close()

    def _is_turn(self, place: object, draft: DraftConfig | None) -> bool:
        return self._line[0] is place and (self._suits(draft) or not self._users)

    def _suits(self, draft: DraftConfig | None) -> bool:
        return self._server is not None and draft in (None, self._plan.draft)

    def _taken(self) -> LlamaServer:
        if self._server is None:
            raise BackendFailed("llama.cpp is not loaded")
        self._users += 1
        return self._server

    def _give_back(self) -> None:
        with self._changed:
            self._users -= 1
            self._changed.notify_all()

    def _reload(self, old: LlamaServer | None, plan: ServerConfig) -> None:
        """Load it again, without the lock: an abort must not have to wait for that."""
        try:
            if old is not None:
                # First, for there may be no room for two.
                old.close()
            try:
                self._server = self._load(plan)
                self._plan = plan
            except ModelLoadFailed:
                self._server = self._load(self._plan)
                raise
        finally:
            with self._changed:
                self._loading = False
