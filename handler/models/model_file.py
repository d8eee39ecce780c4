"""Describe a model by its file, without loading it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from common.fingerprint import sha256_of_ends
from engine.backends.gguf import (
    GgufHeader,
    Property,
    has_infill_tokens,
    read_chat_template,
    read_header,
)
from engine.errors import ModelLoadFailed
from engine.prompts.reasoning import has_reasoning

# The file types of llama.cpp (`llama_ftype`) by their numbers.
_GGUF_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K"},
    **{11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S"},
    **{17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS"},
    **{23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S"},
    **{29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0"},
}
# As Rockchip's converter names its quantizations: weights and activations, and groups.
_RKLLM_TYPE = re.compile(r"w\d+a\d+(?:_g\d+)?", re.IGNORECASE)
_PARAMETERS = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)
# llama.cpp's pooling number of a reranking model, which has no embeddings.
_RANKING_POOLING = 4


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a served model comes from.

    `context_limit` is the setting CONTEXT_LENGTH of the model, 0 for the model's own context;
    `has_projector` is whether a projector or a vision encoder is configured.
    """

    path: Path
    context_limit: int = 0
    has_projector: bool = False


@dataclass(frozen=True, slots=True)
class FileCapabilities:
    """The uses of a model by its file, before the model is loaded.

    `completion`: it generates text. `tools`: its chat template has functions. `thinking`: its chat
    template has a mark of reasoning. `insert`: it has tokens for filling gaps.
    """

    completion: bool
    tools: bool
    thinking: bool
    insert: bool
    embedding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model file. Texts that are not known are empty.

    `modified_at` is in seconds since the epoch. `digest` are 64 hex digits that change with the
    file: the SHA-256 of its ends and its size, because all of it takes long to read.
    `context_length` is what requests may have, in tokens; None if it is not known before the load.
    `properties` are those of a GGUF's header. Only a GGUF file has `capabilities`.
    """

    size_bytes: int
    modified_at: float
    digest: str
    format: str
    family: str
    parameter_size: str
    quantization: str
    context_length: int | None
    has_projector: bool = False
    properties: Mapping[str, Property] = field(default_factory=dict)
    capabilities: FileCapabilities | None = None


class ModelFiles:
    """The files of the served models by the models' names; each is read once, on first use.

    Reading may take milliseconds, and may be done on any thread.
    """

    def __init__(self, sources: Mapping[str, ModelSource]) -> None:
        self._sources = dict(sources)
        self._described: dict[str, ModelFile] = {}

    def describe(self, name: str) -> ModelFile:
        """Return the description of a model's file; see `describe_file`."""
        if name not in self._described:
            self._described[name] = describe_file(self._sources.get(name), name)
        return self._described[name]

    def find_name(self, path: Path) -> str | None:
        """Return the name of the model that has this file; None if there is none."""
        target = path.resolve()
        return next(
            (name for name, each in self._sources.items() if each.path.resolve() == target), None
        )

    def add(self, name: str, source: ModelSource) -> None:
        """Add the file of a model that was added to the served ones."""
        self._sources[name] = source


def describe_file(source: ModelSource | None, name: str) -> ModelFile:
    """Describe the file of the model called `name`.

    A missing or damaged file is described by its name alone. The load of the model reports the
    reason.
    """
    path = None if source is None else source.path
    suffix = "" if path is None else path.suffix.lstrip(".")
    header: GgufHeader | None = None
    capabilities: FileCapabilities | None = None
    size, modified_at, ends = 0, 0.0, name
    try:
        # A pipe would be read for as long as nothing writes to it.
        if path is not None and path.is_file():
            stat = path.stat()
            size, modified_at, ends = stat.st_size, stat.st_mtime, sha256_of_ends(path)
            if suffix == "gguf":
                header = read_header(path)
                capabilities = _read_capabilities(path, header)
    except (OSError, ModelLoadFailed):
        # See the docstring.
        header = capabilities = None
    stem = name if path is None else path.stem
    quantization = _find(_RKLLM_TYPE, stem).lower() if suffix == "rkllm" else ""
    if header is not None:
        quantization = _GGUF_TYPES.get(header.file_type, "")
    parameter_size = (header.size_label if header else "") or _find(_PARAMETERS, stem).upper()
    return ModelFile(
        size_bytes=size,
        modified_at=modified_at,
        digest=hashlib.sha256(f"{size} {ends}".encode()).hexdigest(),
        format=suffix,
        family=header.architecture if header else "",
        parameter_size=parameter_size,
        quantization=quantization,
        context_length=_limit_context(header, source) if header and source else None,
        has_projector=source is not None and source.has_projector,
        properties=header.properties if header else {},
        capabilities=capabilities,
    )


def _read_capabilities(path: Path, header: GgufHeader) -> FileCapabilities:
    template = read_chat_template(path) or ""
    return FileCapabilities(
        completion=header.pooling == 0,
        tools="tools" in template,
        thinking=has_reasoning(template),
        insert=has_infill_tokens(path),
        embedding=header.pooling != _RANKING_POOLING,
    )


def _limit_context(header: GgufHeader, source: ModelSource) -> int:
    trained = header.context_length
    return min(source.context_limit, trained) if source.context_limit else trained


def _find(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[0] if match else ""
