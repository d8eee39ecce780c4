"""A model that this process serves, whichever settings name it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.backends.lora_adapters import LoraAdapter
from engine.backends.options import BackendName
from handler.models.model_file import ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model of MODELS, or the one that the settings for a single model name.

    `names` are those in requests; answers have the first. Without a file there is no `path`.
    `projector` turns images into input: llama.cpp's projector, or the vision encoder of an NPU's
    model. `library` is the runtime's library for a model of the NPU; None to search for it.
    `memory_mb` is what one process of it takes according to the user.
    """

    path: Path | None
    backend: BackendName
    names: Sequence[str]
    context_length: int
    tokenizer: Path | None = None
    projector: Path | None = None
    draft: Path | None = None
    library: Path | None = None
    adapters: Sequence[LoraAdapter] = ()
    copies: int = 1
    base_domain_id: int | None = None
    memory_mb: int | None = None

    @property
    def name(self) -> str:
        """The name in answers."""
        return self.names[0]

    @property
    def has_vision_encoder(self) -> bool:
        """Whether the NPU computes images for it, with another runtime than that of the model."""
        return self.backend == "rkllm" and self.projector is not None

    @property
    def size_bytes(self) -> int:
        """The size of the model file; 0 if it is missing, which the engine reports."""
        try:
            return 0 if self.path is None else self.path.stat().st_size
        except OSError:
            return 0

    @property
    def source(self) -> ModelSource | None:
        """The model's file, for what reads it without the engine; None without one."""
        if self.path is None:
            return None
        return ModelSource(self.path, self.context_length, self.projector is not None)
