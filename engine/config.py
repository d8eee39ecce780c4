"""What an engine is built from: plain values, read from settings once by whoever starts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.timeouts import Timeouts

BackendName = Literal["llamacpp", "rkllm", "scripted"]
Isolation = Literal["process", "thread"]


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Which backend, and its options; JSON values only, since they go to the host process.

    `memory_mb` limits the memory of a host process, the mapped model file not counted; 0 is no
    limit.
    """

    backend: BackendName
    options: Mapping[str, Any] = field(default_factory=dict)
    memory_mb: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """A whole engine.

    `copies` are further backends with the same model, each in a process of its own like the first.
    `slots` is the number to assume until the backend has told its own; `max_queue` bounds how many
    interactive requests wait for one.
    """

    backend: BackendConfig
    copies: tuple[BackendConfig, ...] = ()
    isolation: Isolation = "process"
    slots: int = 1
    max_queue: int = 256
    timeouts: Timeouts = field(default_factory=Timeouts)
