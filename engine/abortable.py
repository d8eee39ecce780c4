"""What stops when its reader leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Abortable(ABC):
    """A stream that runs on its own: leaving its `async with` block, in any way, stops it."""

    @abstractmethod
    def abort(self) -> None:
        """Stop it now; harmless once it is over."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *left: object) -> None:
        self.abort()
