"""The models that the programs for structured output request, and how they report the objects.

Lengths and numbers have limits, so that a small model ends its answer soon.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import BaseModel, Field

Name = Annotated[str, Field(max_length=20)]


class Priority(str, Enum):  # noqa: UP042 - the form that most programs use
    """An enum, which becomes a `$ref` in the schema."""

    LOW = "low"
    HIGH = "high"


class Person(BaseModel):
    """An optional part of a plan."""

    name: Name


class Step(BaseModel):
    """One of several parts of a plan."""

    title: Name
    minutes: Annotated[int, Field(ge=0, le=90)] | None


class Plan(BaseModel):
    """A nested model: an enum, an optional model and a list of models.

    Pydantic AI returns partial objects only once the last field has begun, so this is a list.
    """

    title: Name
    priority: Priority
    owner: Person | None = None
    steps: list[Step] = Field(max_length=2)
    tags: list[Name] = Field(max_length=3)


class Tree(BaseModel):
    """A recursive model."""

    name: Name
    children: list[Tree]


class Forest(BaseModel):
    """A model that contains a recursive one."""

    trees: list[Tree]


MODELS: dict[str, type[BaseModel]] = {"Plan": Plan, "Tree": Tree, "Forest": Forest}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The server, the name of its model, and the names of the models to request."""

    base_url: str
    api_key: str
    model_name: str
    requested: list[str]

    @property
    def models(self) -> list[type[BaseModel]]:
        return [MODELS[name] for name in self.requested]


def read_arguments() -> Arguments:
    """Parse the program's last argument, a JSON object."""
    return Arguments(**json.loads(sys.argv[-1]))


def uses_responses() -> bool:
    """Return whether the program shall use the Responses API instead of chats."""
    return "--responses" in sys.argv


def write_prompt(model: type[BaseModel], method: str) -> str:
    """Return the prompt; the script of the test chooses its answer by this text."""
    return f"Write a {model.__name__} as {method}"


def report(method: str, value: BaseModel, model: type[BaseModel]) -> None:
    """Print an object that a call without streaming returned."""
    assert isinstance(value, model)
    _print(model, method, "whole", value, parts=1)


def report_stream(method: str, partials: Iterable[BaseModel], model: type[BaseModel]) -> None:
    """Print the last object of a stream, and how many different objects came."""
    # Partial objects may contain the text of an enum; that is no reason for a warning.
    dumps = [partial.model_dump_json(warnings=False) for partial in partials]
    last = model.model_validate_json(dumps[-1])
    _print(model, method, "streamed", last, parts=len(set(dumps)))


def report_parts(method: str, value: BaseModel, model: type[BaseModel], parts: int) -> None:
    """Print an object that a client made after the end of a stream of `parts` pieces of text."""
    assert isinstance(value, model)
    _print(model, method, "streamed", value, parts)


def _print(model: type[BaseModel], method: str, mode: str, value: BaseModel, parts: int) -> None:
    line = {
        "case": f"{model.__name__} {method} {mode}",
        "value": value.model_dump(mode="json"),
        "parts": parts,
    }
    sys.stdout.write(json.dumps(line) + "\n")
