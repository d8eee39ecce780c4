"""Describe the models as Ollama does."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.json_object import JsonObject
from common.value_description import describe_value
from engine import Capabilities, EngineState
from handler.errors import InvalidRequest
from handler.models.model_file import ModelFile, describe_file
from handler.models.registry import ModelRegistry, model_not_found
from handler.pipeline import Pipeline

_LATEST = ":latest"
# Ollama reports it for a model that stays loaded.
_NEVER = "2318-01-01T00:00:00Z"


class ModelDescriptions:
    """Describes the served models; `paths` has the file of each model that has one.

    The files are read once, on first use, which may be on any thread. Has no other state.
    """

    def __init__(self, models: ModelRegistry, paths: Mapping[str, Path]) -> None:
        self._models = models
        self._paths = dict(paths)
        self._files: dict[str, ModelFile] = {}

    def find_name(self, name: Any) -> str | None:
        """Return the served name for one that a client sends, which may end in `:latest`.

        None if the client sends none. Raises InvalidRequest or ModelNotFound.
        """
        if name is None or name == "":
            return None
        if not isinstance(name, str):
            raise InvalidRequest(f"model must be a string, got {describe_value(name)}", "model")
        served = self._models.names
        for each in (name, name.removesuffix(_LATEST)):
            if each in served:
                return each
        raise model_not_found(name, served)

    def has(self, name: str) -> bool:
        """Return whether a name is served."""
        served = self._models.names
        return name in served or name.removesuffix(_LATEST) in served

    def find_by_file(self, path: Path) -> str | None:
        """Return the name of the served model that has this file; None if there is none."""
        target = path.resolve()
        return next((name for name, each in self._paths.items() if each.resolve() == target), None)

    def add_file(self, name: str, path: Path) -> None:
        """Add the file of a model that was added to the served ones."""
        self._paths[name] = path

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
            capabilities = engine.capabilities
            # An NPU has no memory of its own, so its models are counted as the machine's.
            residency = engine.residency
            expires_at = None if residency is None else residency.expires_at
            described = {
                **self._describe(name),
                "expires_at": _NEVER if expires_at is None else _format_time(expires_at),
                "size_vram": 0,
            }
            if capabilities is not None:
                described["context_length"] = capabilities.context_length
            running.append(described)
        return {"models": running}

    def show(self, name: str | None) -> JsonObject:
        """Return the details of a model. Raises ModelNotFound."""
        pipeline = self._models.find(name)
        file, capabilities = self._file(pipeline), pipeline.engine.capabilities
        architecture = file.family or "unknown"
        context = file.context_length if capabilities is None else capabilities.context_length
        info: dict[str, Any] = {
            "general.architecture": architecture,
            "general.basename": pipeline.model_name,
        }
        if context is not None:
            info[f"{architecture}.context_length"] = context
        if capabilities is not None and capabilities.embedding_size:
            info[f"{architecture}.embedding_length"] = capabilities.embedding_size
        return {
            "modelfile": f"FROM {pipeline.model_name}\n",
            "parameters": "",
            "template": "",
            "details": _encode_details(file),
            "model_info": info,
            "capabilities": _list_capabilities(capabilities),
            "modified_at": _format_time(file.modified_at),
        }

    def _describe(self, name: str) -> JsonObject:
        file = self._file(self._models.find(name))
        # Clients look for a name with a tag.
        tagged = name if ":" in name else name + _LATEST
        return {
            "name": tagged,
            "model": tagged,
            "modified_at": _format_time(file.modified_at),
            "size": file.size_bytes,
            "digest": file.digest,
            "details": _encode_details(file),
        }

    def _file(self, pipeline: Pipeline) -> ModelFile:
        name = pipeline.model_name
        if name not in self._files:
            self._files[name] = describe_file(self._paths.get(name), name)
        return self._files[name]


def _list_capabilities(capabilities: Capabilities | None) -> list[str]:
    """Return what a model can do, in Ollama's words; "completion" alone before it is loaded."""
    if capabilities is None:
        return ["completion"]
    named = {
        "tools": capabilities.chat_template,
        "insert": capabilities.infill,
        "embedding": capabilities.embeddings,
        "thinking": capabilities.starts_in_reasoning,
        "vision": capabilities.images,
    }
    return ["completion", *(name for name, has in named.items() if has)]


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
