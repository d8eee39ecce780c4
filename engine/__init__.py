"""Text generation: admission, streams, stop strings, and the host that a backend runs in.

Depends on no job, HTTP or RunPod code, and can be imported without any backend's library. Each name
is imported on first use: a host process starts in half the time because it does not import asyncio,
which only the engine's side needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.admission import Slot
    from engine.capabilities import Capabilities
    from engine.config import BackendConfig, EngineConfig
    from engine.engine import Engine
    from engine.instance import EngineState, Instance
    from engine.output import (
        Delta,
        Embedding,
        Finish,
        FinishReason,
        PromptToken,
        Timings,
        TokenLogprob,
        Usage,
    )
    from engine.pool import AnyEngine, EnginePool, engines_by_model
    from engine.request import Chat, GenerationRequest, Message, Priority, SamplingParams
    from engine.stream import TokenStream
    from engine.timeouts import Timeouts

_NAMES = {
    "admission": ("Slot",),
    "capabilities": ("Capabilities",),
    "timeouts": ("Timeouts",),
    "config": ("BackendConfig", "EngineConfig"),
    "engine": ("Engine",),
    "instance": ("EngineState", "Instance"),
    "output": (
        *("Delta", "Embedding", "Finish", "FinishReason", "PromptToken", "Timings", "TokenLogprob"),
        "Usage",
    ),
    "pool": ("AnyEngine", "EnginePool", "engines_by_model"),
    "request": ("Chat", "GenerationRequest", "Message", "Priority", "SamplingParams"),
    "stream": ("TokenStream",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AnyEngine",
    "BackendConfig",
    "Capabilities",
    "Chat",
    "Delta",
    "Embedding",
    "Engine",
    "EngineConfig",
    "EnginePool",
    "EngineState",
    "Finish",
    "FinishReason",
    "GenerationRequest",
    "Instance",
    "Message",
    "Priority",
    "PromptToken",
    "SamplingParams",
    "Slot",
    "Timeouts",
    "Timings",
    "TokenLogprob",
    "TokenStream",
    "Usage",
    "engines_by_model",
]


def __getattr__(name: str) -> Any:
    """Import a name's module and cache the name here. Raises AttributeError."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value
