"""Parse MODELS: the list of several models, or of several copies of one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

from engine.backends.lora_adapters import LoraAdapter, parse_adapters
from handler.models.served_model import ServedModel

# The NPU's address space is divided into domains of 4 GB; each model starts in its own domain.
MAX_DOMAIN = 63
_ENDINGS = (".gguf", ".rkllm", ".json")
_PART_NUMBER = re.compile(r"-\d{5}-of-\d{5}$")


class ModelEntry(BaseModel):
    """One model of the list; a field without a value uses the setting for one model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path
    name: str | None = Field(None, min_length=1)
    copies: int = Field(1, ge=1, le=16)
    base_domain_id: int | None = Field(None, ge=0, le=MAX_DOMAIN)
    context_length: int | None = Field(None, ge=0)
    tokenizer: Path | None = None
    memory_mb: int | None = Field(None, ge=1)
    mmproj: Path | None = None
    lib_path: Path | None = None
    lora: tuple[LoraAdapter, ...] = ()

    @field_validator("name")
    @classmethod
    def _check_names(cls, value: str | None) -> str | None:
        if value is not None:
            split_names(value)
        return value

    @field_validator("lora", mode="before")
    @classmethod
    def _read_adapters(cls, value: object) -> object:
        """Read adapters from the object that maps their names to files."""
        if not isinstance(value, Mapping):
            return value
        for name, path in value.items():
            if not isinstance(path, str):
                raise ValueError(f"the path of {name} must be a string, got {path!r}")
        adapters = parse_adapters(",".join(f"{name}={path}" for name, path in value.items()))
        if [adapter.name for adapter in adapters] != list(value):
            raise ValueError("an adapter's name and path must not contain a comma")
        return adapters

    @property
    def served_name(self) -> str:
        """The model's name in answers."""
        return self.served_names[0]

    @property
    def served_names(self) -> Sequence[str]:
        """All names of the model in requests; answers have the first."""
        return (model_name_from_path(self.path),) if self.name is None else split_names(self.name)


def model_name_from_path(path: Path) -> str:
    """Return a model's default name: the file name without ending and split-GGUF part number."""
    return _PART_NUMBER.sub("", path.stem)


def split_names(setting: str) -> Sequence[str]:
    """Return a model's names from a comma-separated list. Raises ValueError if it is empty."""
    names = tuple(dict.fromkeys(name.strip() for name in setting.split(",") if name.strip()))
    if not names:
        raise ValueError("must be a name, or several separated by commas")
    return names


def read_models(setting: str) -> list[object]:
    """Return the entries of a JSON list, not yet validated. Raises ValueError."""
    try:
        entries = orjson.loads(setting)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"must be a JSON list: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise ValueError('must be a JSON list of one or more like {"path": "/models/a.rkllm"}')
    return entries


def check_models(
    models: Sequence[ModelEntry], single_model_settings: Sequence[str], *, in_threads: bool
) -> None:
    """Check a list together with the other settings.

    `single_model_settings` are the names of settings that are set and only allow one model.
    `in_threads` states that ENGINE_ISOLATION is thread.

    Raises:
        ValueError: the settings contradict each other, or two models or adapters have the
            same name.
    """
    if single_model_settings:
        raise ValueError(f"MODELS and {single_model_settings[0]} cannot both be set")
    # The name of a model in a folder or repository is unknown until the folder has been read.
    named_models = [
        each for each in models if each.name is not None or each.path.suffix in _ENDINGS
    ]
    names = [name for each in named_models for name in each.served_names]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"MODELS has two models named {duplicates[0]}: give one another name, or set its copies"
        )
    names += [adapter.name for each in models for adapter in each.lora]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"MODELS: lora has an adapter named {duplicates[0]}, and another adapter or a model "
            "has that name"
        )
    if in_threads and sum(each.copies for each in models) > 1:
        raise ValueError("MODELS must be one model with one copy where ENGINE_ISOLATION is thread")


def assign_domains(models: Sequence[ServedModel], first: int) -> Mapping[str, Sequence[int]]:
    """Return the `base_domain_id` of each copy of each model, by the model's name.

    The domains are numbered from `first` in the list's order; a model with its own
    `base_domain_id` starts there. Each copy gets one domain, whatever the model's size: for models
    above 4 GB the user must leave domains free.

    Raises:
        ValueError: there are too few domains, or two copies would have the same one.
    """
    owners: dict[int, str] = {}
    assigned: dict[str, range] = {}
    for model in models:
        start = first if model.base_domain_id is None else model.base_domain_id
        copies = assigned[model.name] = range(start, start + model.copies)
        if copies[-1] > MAX_DOMAIN:
            raise ValueError(
                f"MODELS: the copies of {model.name} would have base_domain_id {start} to "
                f"{copies[-1]}, and {MAX_DOMAIN} is the last"
            )
        for domain in copies:
            if (other := owners.setdefault(domain, model.name)) != model.name:
                raise ValueError(
                    f"MODELS: {other} and {model.name} would both have base_domain_id {domain}"
                )
        first = copies.stop
    return assigned
