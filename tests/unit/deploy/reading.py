"""Read settings from chosen environment variables only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pytest
from pydantic_settings import BaseSettings

T = TypeVar("T", bound=BaseSettings)


def read(kind: type[T], variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> T:
    """Return the settings of these variables, without the other variables of the environment."""
    for name in kind.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return kind()
