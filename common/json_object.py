"""The type of JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# An object as a client sent it, or as it is sent to one. The members of a client's object are
# checked by the reader of its API.
JsonObject: TypeAlias = Mapping[str, Any]
