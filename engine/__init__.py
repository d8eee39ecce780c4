"""Text generation: admission, streams, stop strings, and the host that a backend runs in.

Knows nothing of jobs, HTTP or RunPod, and imports without any backend's library being there.
"""

from engine.admission import Slot
from engine.capabilities import Capabilities
from engine.clocks import Clocks
from engine.config import BackendConfig, EngineConfig
from engine.engine import Engine
from engine.instance import EngineState, Instance
from engine.output import Delta, Embedding, Finish, FinishReason, Timings, TokenLogprob, Usage
from engine.pool import AnyEngine, EnginePool, by_model
from engine.request import Chat, GenerationRequest, Message, Priority, SamplingParams
from engine.stream import TokenStream

__all__ = [
    "AnyEngine",
    "BackendConfig",
    "Capabilities",
    "Chat",
    "Clocks",
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
    "SamplingParams",
    "Slot",
    "Timings",
    "TokenLogprob",
    "TokenStream",
    "Usage",
    "by_model",
]
