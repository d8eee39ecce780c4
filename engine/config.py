"""The configuration of an engine: plain values that entry points read from their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from engine.backends.options import (
    BackendName,
    BackendOptions,
    options_from_wire,
    options_to_wire,
)
from engine.timeouts import Timeouts

Isolation = Literal["process", "thread"]


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """The options of a backend.

    `memory_mb` limits the memory of a host process, the mapped model file not counted; 0 is no
    limit.
    """

    options: BackendOptions
    memory_mb: int = 0

    @property
    def backend(self) -> BackendName:
        """The name of the backend."""
        return self.options.backend

    def to_wire(self) -> dict[str, Any]:
        """Return JSON values for another process."""
        options = options_to_wire(self.options)
        return {"backend": self.backend, "options": options, "memory_mb": self.memory_mb}

    @classmethod
    def from_wire(
        cls, backend: str, options: Mapping[str, Any] | None = None, memory_mb: int = 0
    ) -> Self:
        """Return the configuration that JSON values describe.

        Raises:
            ValueError: no backend has this name.
        """
        return cls(options_from_wire(backend, options or {}), memory_mb)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The configuration of an engine.

    `copies` are further backends with the same model, each in a process of its own like the first.
    `slots` is the number to assume until the backend has loaded and reports its own. `max_queue` is
    how many interactive requests may wait for a slot.
    """

    backend: BackendConfig
    copies: tuple[BackendConfig, ...] = ()
    isolation: Isolation = "process"
    slots: int = 1
    max_queue: int = 256
    timeouts: Timeouts = field(default_factory=Timeouts)
