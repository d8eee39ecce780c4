"""LoRA adapters as the settings name them: `name=path`, separated by commas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelLoadFailed

_PATH_WITH_SCALE = re.compile(r"(?P<path>.+):(?P<scale>\d+(?:\.\d+)?|\.\d+)")
_MAX_SCALE = 100.0


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA: the name that requests have for it, its file, and how much it weighs."""

    name: str
    path: Path
    scale: float = 1.0


def parse_adapters(written: str) -> tuple[LoraAdapter, ...]:
    """Return the adapters of RKLLM_LORA, in order.

    Raises:
        ValueError: one of them is no `name=path`, or two have one name.
    """
    found = [_parse_adapter(each.strip()) for each in written.split(",") if each.strip()]
    names = [adapter.name for adapter in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two adapters are named {name}")
    return tuple(found)


def _parse_adapter(written: str) -> LoraAdapter:
    name, _, path = (part.strip() for part in written.partition("="))
    if not name or not path or not name.isprintable():
        raise ValueError(f"an adapter is name=path or name=path:scale, not {written!r}")
    scaled = _PATH_WITH_SCALE.fullmatch(path)
    if scaled is None:
        return LoraAdapter(name, Path(path))
    scale = float(scaled["scale"])
    if scale > _MAX_SCALE:
        raise ValueError(f"an adapter's scale is from 0 to {_MOST_SCALE:g}, not {scale:g}")
    return LoraAdapter(name, Path(scaled["path"]), scale)


def check_adapters(adapters: tuple[LoraAdapter, ...], model_name: str) -> None:
    """Refuse an adapter that is the model's namesake, or has no file. Raises ModelLoadFailed."""
    for adapter in adapters:
        if adapter.name == model_name:
            raise ModelLoadFailed(
                f"RKLLM_LORA: {adapter.name} is the model's own name (MODEL_NAME), an adapter "
                "needs another one"
            )
        if not adapter.path.is_file():
            raise ModelLoadFailed(f"RKLLM_LORA: there is no file {adapter.path}")
