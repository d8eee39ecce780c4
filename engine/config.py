"""The configuration of an engine: plain values that entry points read from their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.timeouts import Timeouts

BackendName = Literal["llamacpp", "rkllm", "scripted"]
Isolation = Literal["process", "thread"]


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """A backend and its options, which are JSON values because they are sent to the host process.

    `memory_mb` limits the memory of a host process, the mapped model file not counted; 0 is no
    limit.
    """

    backend: BackendName
    options: Mapping[str, Any] = field(default_factory=dict)
    memory_mb: int = 0


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
