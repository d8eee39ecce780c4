"""The base class of streams that stop when their `async with` block is left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Abortable(ABC):
    """A stream that is produced in the background; leaving its `async with` block aborts it."""

    @abstractmethod
    def abort(self) -> None:
        """Stop it now; does nothing after its end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *left: object) -> None:
        self.abort()
