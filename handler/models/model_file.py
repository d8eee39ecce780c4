"""Describe a model by its file, without loading it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from common.fingerprint import sha256_of_ends
from engine.backends.gguf import GgufHeader, read_header
from engine.errors import ModelLoadFailed

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model file. Texts that are not known are empty.

    `modified_at` is in seconds since the epoch. `digest` are 64 hex digits that change with the
    file: the SHA-256 of its ends and its size, because all of it takes long to read.
    """

    size_bytes: int
    modified_at: float
    digest: str
    format: str
    family: str
    parameter_size: str
    quantization: str
    context_length: int | None


def describe_file(path: Path | None, name: str) -> ModelFile:
    """Describe the file of the model called `name`.

    A missing or damaged file is described by its name alone. The load of the model reports the
    reason.
    """
    suffix = "" if path is None else path.suffix.lstrip(".")
    header: GgufHeader | None = None
    size, modified_at, ends = 0, 0.0, name
    try:
        if path is not None:
            stat = path.stat()
            size, modified_at, ends = stat.st_size, stat.st_mtime, sha256_of_ends(path)
        if path is not None and suffix == "gguf":
            header = read_header(path)
    except (OSError, ModelLoadFailed):
        # See the docstring.
        header = None
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
        context_length=header.context_length if header else None,
    )


def _find(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[0] if match else ""
