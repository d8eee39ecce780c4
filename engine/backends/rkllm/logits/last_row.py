"""Keep the logits of a run's last token, without numpy."""

from __future__ import annotations

from typing import Any

from engine.backends.rkllm.float_rows import FloatRows
from engine.errors import BackendFailed


class LastRow:
    """Copies the logits after the last token during callbacks, after which they are freed."""

    def __init__(self) -> None:
        self._row_count = 0
        self._data = b""

    def copy_result(self, result: Any) -> None:
        """Copy the last row of a callback."""
        logits = result.logits
        rows = FloatRows.from_pointer(logits.logits, logits.num_tokens, logits.vocab_size)
        if rows is not None:
            self._data = rows.copy(rows.count - 1, 1)
            self._row_count += rows.count

    def data(self, tokens: int) -> bytes:
        """Return the row as 32-bit floats, after `tokens` were computed.

        Raises:
            BackendFailed: there is neither one row per token nor only the row of the last token.
        """
        if self._row_count not in (1, tokens):
            raise BackendFailed(
                f"the RKLLM runtime gave {self._row_count} rows of logits for {tokens} tokens"
            )
        return self._data
