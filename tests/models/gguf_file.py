"""Write GGUF files with the library of llama.cpp's project."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_ARCHITECTURE = "general.architecture"


def write_gguf(
    path: Path, properties: Mapping[str, object], tensors: Mapping[str, FloatArray]
) -> Path:
    """Write a GGUF file with these properties and 32-bit tensors; return its path.

    Matrices have one row for each output, as in PyTorch.
    """
    writer = gguf.GGUFWriter(path, str(properties[_ARCHITECTURE]))
    for name, value in properties.items():
        if name != _ARCHITECTURE:
            _add_property(writer, name, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_property(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case [*_]:
            writer.add_array(name, value)
        case _:
            raise TypeError(value)
