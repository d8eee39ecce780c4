"""Text generation: admission, streams, stop strings, and the host that a backend runs in.

Depends on no job, HTTP or RunPod code, and can be imported without any backend's library.
"""

from engine.admission import Slot
from engine.capabilities import Capabilities
from engine.config import BackendConfig, EngineConfig
from engine.engine import Engine
from engine.instance import EngineState, Instance
from engine.models.pool import AnyEngine, EnginePool, engines_by_model
from engine.output import (
    Delta,
    Embedding,
    Finish,
    FinishReason,
    PromptToken,
    Relevance,
    Timings,
    TokenLogprob,
    Usage,
)
from engine.request import Chat, ChatImage, GenerationRequest, Message, Priority, SamplingParams
from engine.runs.stream import TokenStream
from engine.slot_operations import EMBED, RERANK, SCORE, SlotOperation
from engine.timeouts import Timeouts

__all__ = [
    "EMBED",
    "RERANK",
    "SCORE",
    "AnyEngine",
    "BackendConfig",
    "Capabilities",
    "Chat",
    "ChatImage",
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
    "Relevance",
    "SamplingParams",
    "Slot",
    "SlotOperation",
    "Timeouts",
    "Timings",
    "TokenLogprob",
    "TokenStream",
    "Usage",
    "engines_by_model",
]
