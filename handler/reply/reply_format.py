"""What an output may have besides its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """How to take an output apart.

    `functions` has the JSON Schemas of the functions' parameters by name. Without
    `parallel_calls`, calls after the first one are dropped. `must_call` means that the answer is a
    call, so checks of its form apply to the calls. `tool_format` is the name of the one form of
    calls that is recognised; None for all forms.
    """

    functions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parallel_calls: bool = True
    must_call: bool = False
    tool_format: str | None = None


REASONING_ONLY = ReplyFormat()
