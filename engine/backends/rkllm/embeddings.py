"""Pool the hidden states of a text's tokens into one embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from engine.backends.rkllm.float_rows import FloatRows
from engine.errors import BackendFailed

Pooling = Literal["last", "mean", "cls"]


class HiddenStates:
    """Copies hidden states during callbacks, after which the runtime frees them.

    There is one row per token. Only the rows that the pooling needs are copied, because all rows
    of a thousand tokens take megabytes. One thread at a time calls `copy_result`; `embedding` is
    called afterwards.
    """

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._width = 0
        self._row_count = 0
        self._data = b""

    def copy_result(self, result: Any) -> None:
        """Copy the rows of a callback; a long text may arrive in several callbacks."""
        layer = result.last_hidden_layer
        rows = FloatRows.from_pointer(layer.hidden_states, layer.num_tokens, layer.embd_size)
        if rows is None:
            return
        self._width = rows.width
        if self._pooling == "mean":
            self._data += rows.copy(0, rows.count)
        elif self._pooling == "last":
            self._data = rows.copy(rows.count - 1, 1)
        elif not self._row_count:
            self._data = rows.copy(0, 1)
        self._row_count += rows.count

    def embedding(self, tokens: int) -> list[float]:
        """Return the text's embedding, normalised to length 1.

        Raises:
            BackendFailed: the number of rows differs from the number of tokens, or the rows
                contain NaN or infinity.
        """
        # With "last" pooling it is enough if the runtime returns only the last row.
        if self._row_count != tokens and not (self._pooling == "last" and self._row_count == 1):
            raise BackendFailed(
                f"the RKLLM runtime gave {self._row_count} rows of hidden states for {tokens} "
                "tokens"
            )
        values = memoryview(self._data).cast("f")
        vector: Sequence[float] = values.tolist()
        if self._pooling == "mean":
            # The sum is enough: the vector is normalised below.
            vector = [sum(values[column :: self._width]) for column in range(self._width)]
        length = math.hypot(*vector)
        if not math.isfinite(length):
            raise BackendFailed("the RKLLM runtime gave hidden states that are no numbers")
        return [value / length for value in vector] if length else [*vector]
