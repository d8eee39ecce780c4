"""Tokenise texts into pieces and form padded batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

Ids = list[list[int]]


class Pieces:
    """Encodes texts as ids of pieces; a text that is too long loses its middle."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def encode(self, texts: Sequence[str], max_length: int, *, special_tokens: bool) -> Ids:
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=special_tokens)
        unknown = [self.tokenizer.token_to_id("[UNK]")]
        return [_cut(encoding.ids, max_length) or unknown for encoding in encoded]


def _cut(ids: list[int], max_length: int) -> list[int]:
    return ids if len(ids) <= max_length else ids[: max_length // 2] + ids[-max_length // 2 :]


def batches(ids: Ids, size: int, *, shuffled: bool) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield batches of texts of similar length: their indices, padded ids and mask."""
    order = list(range(len(ids)))
    sort_window = len(ids)
    if shuffled:
        random.shuffle(order)
        sort_window = size * 32
    groups = []
    for start in range(0, len(order), sort_window):
        window = sorted(order[start : start + sort_window], key=lambda index: len(ids[index]))
        groups += [window[offset : offset + size] for offset in range(0, len(window), size)]
    if shuffled:
        random.shuffle(groups)
    for group in groups:
        longest = max(len(ids[index]) for index in group)
        padded = torch.zeros(len(group), longest, dtype=torch.long)
        mask = torch.zeros(len(group), longest, dtype=torch.bool)
        for row, index in enumerate(group):
            padded[row, : len(ids[index])] = torch.tensor(ids[index])
            mask[row, : len(ids[index])] = True
        yield group, padded, mask
