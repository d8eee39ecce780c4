"""Pooling of hidden states, compared with a simple implementation."""

from __future__ import annotations

import ctypes
import math

import pytest

from engine.backends.rkllm.abi.structs import RKLLMResult, RKLLMResultLastHiddenLayer
from engine.backends.rkllm.embeddings import HiddenStates, Pooling
from engine.errors import BackendFailed

ROWS = [[1.0, -2.0, 0.5], [0.0, 4.0, -0.25], [3.0, 3.0, 8.0], [-1.0, 0.125, 2.0]]


def copy_all(states: HiddenStates, rows: list[list[float]]) -> None:
    """Make one callback, whose memory is overwritten afterwards."""
    numbers = [number for row in rows for number in row]
    memory = (ctypes.c_float * len(numbers))(*numbers)
    layer = RKLLMResultLastHiddenLayer(
        ctypes.cast(memory, ctypes.POINTER(ctypes.c_float)), len(rows[0]), len(rows)
    )
    states.copy_result(RKLLMResult(last_hidden_layer=layer))
    ctypes.memset(memory, 0xA5, ctypes.sizeof(memory))


def expected(pooling: Pooling) -> list[float]:
    if pooling == "mean":
        pooled = [sum(column) / len(ROWS) for column in zip(*ROWS, strict=True)]
    else:
        pooled = ROWS[-1 if pooling == "last" else 0]
    length = math.sqrt(sum(number * number for number in pooled))
    return [number / length for number in pooled]


@pytest.mark.parametrize("cut", [0, 1, 3])
@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_embedding_is_pooled_and_normalised(pooling: Pooling, cut: int) -> None:
    # A long text may arrive in any number of callbacks.
    states = HiddenStates(pooling)
    for part in (ROWS[:cut], ROWS[cut:]):
        if part:
            copy_all(states, part)
    vector = states.embedding(len(ROWS))
    assert vector == pytest.approx(expected(pooling))
    assert math.hypot(*vector) == pytest.approx(1)


def test_last_pooling_needs_only_the_last_row() -> None:
    states = HiddenStates("last")
    copy_all(states, ROWS[-1:])
    assert states.embedding(4) == pytest.approx(expected("last"))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_other_poolings_need_all_rows(pooling: Pooling) -> None:
    states = HiddenStates(pooling)
    copy_all(states, ROWS[-1:])
    with pytest.raises(BackendFailed, match="gave 1 rows of hidden states for 4 tokens"):
        states.embedding(4)


def test_missing_rows_are_refused() -> None:
    states = HiddenStates("last")
    states.copy_result(RKLLMResult())
    with pytest.raises(BackendFailed, match="gave 0 rows of hidden states for 2 tokens"):
        states.embedding(2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_invalid_numbers_are_refused(bad: float) -> None:
    states = HiddenStates("mean")
    copy_all(states, [[1.0, bad]])
    with pytest.raises(BackendFailed, match="that are no numbers"):
        states.embedding(1)


def test_zero_vector_is_kept() -> None:
    states = HiddenStates("cls")
    copy_all(states, [[0.0, 0.0]])
    assert states.embedding(1) == [0.0, 0.0]
