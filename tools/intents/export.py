"""Export the student model to the file that `validation/classifier.py` reads."""

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
    """Write the weights as int8 with one scale per row or column, and a reduced vocabulary."""
    ids_by_piece = pieces.tokenizer.get_vocab()
    used_ids = {number for text_ids in ids for number in text_ids}
    letters = set(string.ascii_lowercase + string.digits)
    # Ordered by id in the teacher's vocabulary, which is roughly by frequency.
    candidate_ids = [
        number
        for piece, number in sorted(ids_by_piece.items(), key=lambda item: item[1])
        if number in used_ids or set(piece.removeprefix("##")) <= letters or len(piece) == 1
    ]
    unused_ids = [number for number in candidate_ids if number not in used_ids]
    common_ids = unused_ids[: VOCABULARY - len(used_ids) - 1]
    unknown_id = ids_by_piece["[UNK]"]
    exported_ids = [unknown_id, *sorted((used_ids | set(common_ids)) - {unknown_id})]
    piece_by_id = {number: piece for piece, number in ids_by_piece.items()}
    table = student.embed(torch.arange(len(ids_by_piece)))[exported_ids].detach().numpy()
    arrays: dict[str, Any] = {
        "vocabulary": _encode_lines(piece_by_id[number] for number in exported_ids),
        "labels": _encode_lines(LABELS),
        "heads": np.int64(student.heads),
        **_quantize("table", table, axis=1),
        "position": student.position.detach().numpy().astype(np.float16),
    }
    state = {name: value.numpy() for name, value in student.state_dict().items()}
    for name, value in state.items():
        module, _, part = name.rpartition(".")
        module = module.removeprefix("layers.")
        if module == "widened":
            continue
        if part == "bias":
            arrays[f"{module}.bias"] = value.astype(np.float16)
        elif part == "weight" and value.ndim == 1:
            arrays[f"{module}.gain"] = value.astype(np.float16)
        elif part == "weight" and module != "map":
            arrays |= _quantize(module, value.T, axis=0)
    np.savez_compressed(path, **arrays)
    print(f"{path}: {len(exported_ids)} pieces, {path.stat().st_size / 1e6:.2f} MB")


def _quantize(name: str, values: Any, axis: int) -> dict[str, Any]:
    scale = np.abs(values).max(axis=axis, keepdims=True) / 127 + 1e-12
    return {
        name: np.round(values / scale).astype(np.int8),
        f"{name}.scale": scale.astype(np.float32),
    }


def _encode_lines(lines: Any) -> Any:
    return np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)
