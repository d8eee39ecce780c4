"""One vector of a text, out of what the model's last layer has for each of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from engine.backends.rkllm.logits_rows import FloatRows
from engine.errors import BackendFailed

Pooling = Literal["last", "mean", "cls"]


class HiddenStates:
    """Copies hidden states while they are there: the runtime's memory ends with the callback.

    Of all rows, one a token, only those are copied that the pooling needs: all of them are
    megabytes a thousand tokens. `take` is called by one thread at a time, `vector` afterwards.
    """

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._width = 0
        self._rows = 0
        self._copied = b""

    def take(self, result: Any) -> None:
        """Copy what a callback brings; a long text may come in several."""
        layer = result.last_hidden_layer
        rows = FloatRows.at(layer.hidden_states, layer.num_tokens, layer.embd_size)
        if rows is None:
            return
        self._width = rows.width
        if self._pooling == "mean":
            self._copied += rows.copied(0, rows.count)
        elif self._pooling == "last":
            self._copied = rows.copied(rows.count - 1, 1)
        elif not self._rows:
            self._copied = rows.copied(0, 1)
        self._rows += rows.count

    def vector(self, tokens: int) -> list[float]:
        """Return the text's vector, of length 1.

        Raises:
            BackendFailed: there is not a row for each of the tokens, or a row is not made of
                numbers.
        """
        # The last row alone would do where it is the one that is wanted.
        if self._rows != tokens and not (self._pooling == "last" and self._rows == 1):
            raise BackendFailed(
                f"the RKLLM runtime gave {self._rows} rows of hidden states for {tokens} tokens"
            )
        numbers = memoryview(self._copied).cast("f")
        found: Sequence[float] = numbers.tolist()
        if self._pooling == "mean":
            # The length is put right below, so the sum is as good.
            found = [sum(numbers[column :: self._width]) for column in range(self._width)]
        length = math.hypot(*found)
        if not math.isfinite(length):
            raise BackendFailed("the RKLLM runtime gave hidden states that are no numbers")
        return [number / length for number in found] if length else [*found]
