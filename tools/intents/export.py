"""The student as the file that `validation/classifier.py` reads."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.intents.models import LABELS, Student
from tools.intents.pieces import Ids, Pieces

VOCABULARY = 16_000


def export(student: Student, pieces: Pieces, ids: Ids, path: Path) -> None:
    """Write the weights as bytes, one scale a row or column, with the pieces that matter."""
    known = pieces.tokenizer.get_vocab()
    used = {number for each in ids for number in each}
    letters = set(string.ascii_lowercase + string.digits)
    # In the order of the teacher's own vocabulary, which is roughly that of how common they are.
    kept = [
        number
        for piece, number in sorted(known.items(), key=lambda item: item[1])
        if number in used or set(piece.removeprefix("##")) <= letters or len(piece) == 1
    ]
    common = [number for number in kept if number not in used][: VOCABULARY - len(used) - 1]
    unknown = known["[UNK]"]
    order = [unknown, *sorted((used | set(common)) - {unknown})]
    names = {number: piece for piece, number in known.items()}
    table = student.embedded(torch.arange(len(known)))[order].detach().numpy()
    stored: dict[str, Any] = {
        "vocabulary": _text(names[number] for number in order),
        "labels": _text(LABELS),
        "heads": np.int64(student.heads),
        **_bytes("table", table, axis=1),
        "position": student.position.detach().numpy().astype(np.float16),
    }
    state = {name: value.numpy() for name, value in student.state_dict().items()}
    for name, value in state.items():
        module, _, part = name.rpartition(".")
        module = module.removeprefix("layers.")
        if module == "widened":
            continue
        if part == "bias":
            stored[f"{module}.bias"] = value.astype(np.float16)
        elif part == "weight" and value.ndim == 1:
            stored[f"{module}.gain"] = value.astype(np.float16)
        elif part == "weight" and module != "map":
            stored |= _bytes(module, value.T, axis=0)
    np.savez_compressed(path, **stored)
    print(f"{path}: {len(order)} pieces, {path.stat().st_size / 1e6:.2f} MB")


def _bytes(name: str, values: Any, axis: int) -> dict[str, Any]:
    scale = np.abs(values).max(axis=axis, keepdims=True) / 127 + 1e-12
    return {
        name: np.round(values / scale).astype(np.int8),
        f"{name}.scale": scale.astype(np.float32),
    }


def _text(lines: Any) -> Any:
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)
