"""MODELS: several models, or several copies of one, as an operator writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

# The NPU's address space has domains of 4 GB, and a model begins in one of its own.
MAX_DOMAIN = 63
_ENDINGS = (".gguf", ".rkllm", ".json")
_PART_NUMBER = re.compile(r"-\d{5}-of-\d{5}$")


class ModelEntry(BaseModel):
    """One model of the list; what is None is as the settings for one model say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path
    name: str | None = Field(None, min_length=1)
    copies: int = Field(1, ge=1, le=16)
    base_domain_id: int | None = Field(None, ge=0, le=MAX_DOMAIN)
    context_length: int | None = Field(None, ge=0)
    tokenizer: Path | None = None

    @field_validator("name")
    @classmethod
    def _names(cls, value: str | None) -> str | None:
        if value is not None:
            split_names(value)
        return value

    @property
    def served_name(self) -> str:
        """The model's name in answers."""
        return self.served_names[0]

    @property
    def served_names(self) -> Sequence[str]:
        """All of the model's names in requests; answers have the first."""
        return (model_name_from_path(self.path),) if self.name is None else split_names(self.name)

    @property
    def size_bytes(self) -> int:
        """The size of the model file; 0 if there is none, which its engine reports."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def model_name_from_path(path: Path) -> str:
    """Return the name that a model has by its file, without the number of a split GGUF's part."""
    return _PART_NUMBER.sub("", path.stem)


def split_names(written: str) -> Sequence[str]:
    """Return a model's names from a comma-separated list. Raises ValueError: there is none."""
    names = tuple(dict.fromkeys(name.strip() for name in written.split(",") if name.strip()))
    if not names:
        raise ValueError("must be a name, or several separated by commas")
    return names


def read_models(written: str) -> list[object]:
    """Return the entries of a JSON list, as yet unread. Raises ValueError."""
    try:
        found = orjson.loads(written)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"must be a JSON list: {error}") from None
    if not isinstance(found, list) or not found:
        raise ValueError('must be a JSON list of one or more like {"path": "/models/a.rkllm"}')
    return found


def check_models(models: Sequence[ModelEntry], alone: Sequence[str], *, in_threads: bool) -> None:
    """Look at a list beside the other settings; `alone` are those that are for one model.

    Raises:
        ValueError: they do not go together, or two models have one name.
    """
    if alone:
        raise ValueError(f"MODELS and {alone[0]} cannot both be set")
    # The name of what a folder or a repository contains is not known before it is looked up.
    known = [each for each in models if each.name is not None or each.path.suffix in _ENDINGS]
    names = [name for each in known for name in each.served_names]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"MODELS has two models named {doubled[0]}: give one another name, or set its copies"
        )
    if in_threads and sum(each.copies for each in models) > 1:
        raise ValueError("MODELS must be one model with one copy where ENGINE_ISOLATION is thread")


def assign_domains(models: Sequence[ModelEntry], first: int) -> Mapping[str, Sequence[int]]:
    """Return the `base_domain_id` of each copy of each model, by the model's name.

    They count up from `first` in the list's order; a model that names its own begins there. Each
    is taken once, whatever a model's size: of larger ones the user must leave some out.

    Raises:
        ValueError: there are not enough, or two copies would have the same one.
    """
    taken: dict[int, str] = {}
    found: dict[str, range] = {}
    for entry in models:
        start = first if entry.base_domain_id is None else entry.base_domain_id
        mine = found[entry.served_name] = range(start, start + entry.copies)
        if mine[-1] > MAX_DOMAIN:
            raise ValueError(
                f"MODELS: the copies of {entry.served_name} would have base_domain_id {start} to "
                f"{mine[-1]}, and {MAX_DOMAIN} is the last"
            )
        for domain in mine:
            if (other := taken.setdefault(domain, entry.served_name)) != entry.served_name:
                raise ValueError(
                    f"MODELS: {other} and {entry.served_name} would both have base_domain_id "
                    f"{domain}"
                )
        first = mine.stop
    return found
