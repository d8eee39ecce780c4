"""Describe the models as Ollama does."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from common.json_object import JsonObject
from engine import EngineState
from handler.models.model_file import ModelFile, ModelFiles
from handler.models.model_name_map import LATEST
from handler.models.registry import ModelRegistry
from handler.pipeline import Pipeline

# Ollama reports it for a model that stays loaded.
_NEVER = "2318-01-01T00:00:00Z"


class ModelDescriptions:
    """Describes the served models, from their files and from what their engines have loaded.

    Reads files, so call it in a thread, not on the event loop. Has no state.
    """

    def __init__(self, models: ModelRegistry, files: ModelFiles) -> None:
        self._models = models
        self._files = files

    def list_models(self) -> JsonObject:
        """Return all names that a request may use."""
        return {"models": [self._describe(name) for name in self._models.names]}

    def list_running(self) -> JsonObject:
        """Return the models that are loaded."""
        running = []
        for name in self._models.names:
            pipeline = self._models.find(name)
            engine = pipeline.engine
            if name != pipeline.model_name or engine.state is not EngineState.READY:
                continue
            # An NPU has no memory of its own, so its models are counted as the machine's.
            residency = engine.residency
            expires_at = None if residency is None else residency.expires_at
            described = {
                **self._describe(name),
                "expires_at": _NEVER if expires_at is None else _format_time(expires_at),
                "size_vram": 0,
            }
            running.append(described)
        return {"models": running}

    def show(self, name: str | None) -> JsonObject:
        """Return the details of a model. Raises ModelNotFound."""
        pipeline = self._models.find(name)
        file, capabilities = self._file(pipeline), pipeline.engine.capabilities
        architecture = file.family or "unknown"
        info: dict[str, Any] = {
            "general.basename": pipeline.model_name,
            # Ollama leaves the name out.
            **{name: each for name, each in file.properties.items() if name != "general.name"},
            "general.architecture": architecture,
        }
        if (context := _find_context(pipeline, file)) is not None:
            info[f"{architecture}.context_length"] = context
        if capabilities is not None and capabilities.embedding_size:
            info[f"{architecture}.embedding_length"] = capabilities.embedding_size
        return {
            "modelfile": f"FROM {pipeline.model_name}\n",
            "parameters": "",
            "template": "",
            "details": _encode_details(file),
            "model_info": info,
            "capabilities": _list_capabilities(pipeline, file),
            "modified_at": _format_time(file.modified_at),
        }

    def _describe(self, name: str) -> JsonObject:
        pipeline = self._models.find(name)
        file = self._file(pipeline)
        # Clients look for a name with a tag.
        tagged = name if ":" in name else name + LATEST
        described = {
            "name": tagged,
            "model": tagged,
            "modified_at": _format_time(file.modified_at),
            "size": file.size_bytes,
            "digest": file.digest,
            "details": _encode_details(file),
            "capabilities": _list_capabilities(pipeline, file),
        }
        if (context := _find_context(pipeline, file)) is not None:
            described["context_length"] = context
        return described

    def _file(self, pipeline: Pipeline) -> ModelFile:
        return self._files.describe(pipeline.model_name)


def _find_context(pipeline: Pipeline, file: ModelFile) -> int | None:
    """Return the context in tokens; None if it is not known before the model is loaded."""
    loaded = pipeline.engine.capabilities
    return file.context_length if loaded is None else loaded.context_length


def _list_capabilities(pipeline: Pipeline, file: ModelFile) -> list[str]:
    """Return what a model can do, in Ollama's words.

    A GGUF says it in its header, so that the list is the same before and after the load. Of other
    files only text and images are known before the load.
    """
    loaded, named = pipeline.engine.capabilities, {"completion": True}
    if file.capabilities is not None:
        named = asdict(file.capabilities)
    elif loaded is not None:
        named = {
            "completion": not loaded.is_reranking_model,
            "tools": loaded.chat_template,
            "insert": loaded.infill,
            "embedding": loaded.embeddings,
            "thinking": loaded.starts_in_reasoning,
        }
    named["vision"] = file.has_projector if loaded is None else loaded.images
    return [name for name, has in named.items() if has]


def _encode_details(file: ModelFile) -> JsonObject:
    return {
        "parent_model": "",
        "format": file.format,
        "family": file.family,
        "families": [file.family] if file.family else [],
        "parameter_size": file.parameter_size,
        "quantization_level": file.quantization,
    }


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
