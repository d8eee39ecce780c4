"""A parser of Dockerfiles, for tests that follow the instructions without a daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_STAGE = re.compile(r"FROM\s+(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?", re.I)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its lines joined, such as `RUN` and its command."""

    name: str
    text: str

    def words(self) -> list[str]:
        """Return the words of an instruction in JSON form."""
        words: list[str] = json.loads(self.text)
        return words


@dataclass(slots=True)
class Stage:
    """One build stage: the image or stage that it starts from, and its instructions."""

    base: str
    name: str | None
    instructions: list[Instruction] = field(default_factory=list)


def default_build(path: Path, target: str | None = None) -> Sequence[Instruction]:
    """Return the instructions of a target, or of the last stage, with those of its base stages."""
    before: list[Instruction] = []
    stages: list[Stage] = []
    for each in _instructions(path.read_text(encoding="utf-8")):
        if each.name == "FROM":
            match = _STAGE.fullmatch(f"FROM {each.text}")
            assert match is not None, each
            stages.append(Stage(match[1], match[2]))
        else:
            (stages[-1].instructions if stages else before).append(each)
    named = {stage.name: stage for stage in stages if stage.name}
    chain = [stages[-1] if target is None else named[target]]
    while (below := named.get(chain[0].base)) is not None:
        chain.insert(0, below)
    return [*before, *(each for stage in chain for each in stage.instructions)]


def all_instructions(path: Path) -> Sequence[Instruction]:
    """Return the instructions of all stages, in the order of the file."""
    return _instructions(path.read_text(encoding="utf-8"))


def outside_bases(path: Path) -> Sequence[str]:
    """Return the images that the stages begin with, other than stages of the file itself.

    An image in a variable is the variable's default, which must be set before it.
    """
    defaults: dict[str, str] = {}
    stages: set[str | None] = set()
    bases: list[str] = []
    for each in _instructions(path.read_text(encoding="utf-8")):
        if each.name == "ARG":
            name, _, value = each.text.partition("=")
            defaults.setdefault(name, value)
        elif each.name == "FROM":
            match = _STAGE.fullmatch(f"FROM {each.text}")
            assert match is not None, each
            base = re.sub(r"\$\{?(\w+)\}?", lambda variable: defaults[variable[1]], match[1])
            if base not in stages:
                bases.append(base)
            stages.add(match[2])
    return bases


def _instructions(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    instructions = []
    for line in joined.splitlines():
        name, _, rest = line.strip().partition(" ")
        instructions.append(Instruction(name.upper(), rest.strip()))
    return instructions
