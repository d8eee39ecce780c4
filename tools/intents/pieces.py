"""Texts as the models read them: numbers of pieces, in batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

Ids = list[list[int]]


class Pieces:
    """Texts as numbers of pieces, cut in the middle to at most so many."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def encode(self, texts: Sequence[str], most: int, *, marks: bool) -> Ids:
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=marks)
        return [_cut(each.ids, most) or [self.tokenizer.token_to_id("[UNK]")] for each in encoded]


def _cut(ids: list[int], most: int) -> list[int]:
    return ids if len(ids) <= most else ids[: most // 2] + ids[-most // 2 :]


def batches(ids: Ids, size: int, *, shuffled: bool) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield indices, ids and mask of texts of about the same length together."""
    order = list(range(len(ids)))
    stretch = len(ids)
    if shuffled:
        random.shuffle(order)
        stretch = size * 32
    groups = []
    for start in range(0, len(order), stretch):
        part = sorted(order[start : start + stretch], key=lambda index: len(ids[index]))
        groups += [part[at : at + size] for at in range(0, len(part), size)]
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
