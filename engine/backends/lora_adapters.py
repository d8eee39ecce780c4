"""Parse and check settings with LoRA adapters: `name=path`, separated by commas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.errors import ModelLoadFailed

_PATH_WITH_SCALE = re.compile(r"(?P<path>.+):(?P<scale>\d+(?:\.\d+)?|\.\d+)")
_MAX_SCALE = 100.0


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA adapter: the name that requests use, its file and its weight."""

    name: str
    path: Path
    scale: float = 1.0

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Self:
        """Return the adapter that JSON values describe."""
        return cls(values["name"], Path(values["path"]), values["scale"])


def parse_adapters(setting: str) -> tuple[LoraAdapter, ...]:
    """Return the adapters of a setting, in order.

    Raises:
        ValueError: an entry has no form `name=path` or `name=path:scale`, or a name is repeated.
    """
    adapters = [_parse_adapter(entry.strip()) for entry in setting.split(",") if entry.strip()]
    names = [adapter.name for adapter in adapters]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two adapters are named {name}")
    return tuple(adapters)


def _parse_adapter(entry: str) -> LoraAdapter:
    name, _, path = (part.strip() for part in entry.partition("="))
    if not name or not path or not name.isprintable():
        raise ValueError(f"an adapter is name=path or name=path:scale, not {entry!r}")
    match = _PATH_WITH_SCALE.fullmatch(path)
    if match is None:
        return LoraAdapter(name, Path(path))
    scale = float(match["scale"])
    if scale > _MAX_SCALE:
        raise ValueError(f"an adapter's scale is from 0 to {_MAX_SCALE:g}, not {scale:g}")
    return LoraAdapter(name, Path(match["path"]), scale)


def check_adapters(adapters: tuple[LoraAdapter, ...], model_name: str, setting: str) -> None:
    """Raise ModelLoadFailed if an adapter has the model's name or its file does not exist.

    `setting` is the setting's name, for the message.
    """
    for adapter in adapters:
        if adapter.name == model_name:
            raise ModelLoadFailed(
                f"{setting}: {adapter.name} is the model's own name (MODEL_NAME), an adapter "
                "needs another one"
            )
        if not adapter.path.is_file():
            raise ModelLoadFailed(f"{setting}: there is no file {adapter.path}")
