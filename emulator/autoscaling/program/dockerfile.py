"""Find the Python file that the image of a project starts, from the text of its Dockerfile."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

# RunPod builds from the first of these; the project's folder is the context of each.
_NAMES = (".runpod/Dockerfile", "Dockerfile", "dockerfile")
_MAX_BYTES = 1_000_000
_MAX_COMMAND_CHARS = 100
_ROOT = PurePosixPath("/")
_SHELLS = ("sh", "bash")
# The option with which a shell runs the next word.
_RUNS_TEXT = re.compile("-[a-z]*c")
# The begin of a text that stands in the following lines, up to the word itself.
_HEREDOC = re.compile(r"(?<!<)<<-?[\"']?([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class ImageStart:
    """The program of an image: its command as one line, and the file of the project in it, if
    any."""

    command: str
    file: Path | None

    @property
    def is_script(self) -> bool:
        """Whether the command is a shell script."""
        return any(word.endswith(".sh") for word in self.command.split())


@dataclass(slots=True)
class _Stage:
    """The state of one build stage; `copies` are the sources and the target of each COPY."""

    folder: PurePosixPath = _ROOT
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    copies: list[tuple[Sequence[str], PurePosixPath]] = field(default_factory=list)


def read_image_start(project: Path) -> ImageStart | None:
    """Return what the image of a project's folder starts.

    None if the folder has no Dockerfile that can be read, or if it leaves the command to its base.
    """
    text = _read_dockerfile(project)
    stage = None if text is None else _read_last_stage(text)
    if stage is None or not (words := [*stage.entrypoint, *stage.command]):
        return None
    command = " ".join(" ".join(words).split())
    if len(command) > _MAX_COMMAND_CHARS:
        command = f"{command[: _MAX_COMMAND_CHARS - 1]}…"
    return ImageStart(command, _find_python_file(project, stage, words))


def find_dockerfile(project: Path) -> Path | None:
    """Return the file that RunPod would build a project's image from; None if there is none."""
    return next((project / name for name in _NAMES if (project / name).is_file()), None)


def _read_dockerfile(project: Path) -> str | None:
    for name in _NAMES:
        try:
            with (project / name).open("rb") as file:
                return file.read(_MAX_BYTES).decode(errors="replace")
        except OSError:
            # Most often it does not exist. The next may; without any, an error lists the
            # names that a handler can have.
            continue
    return None


def _read_last_stage(text: str) -> _Stage:
    stage = _Stage()
    stages: dict[str, _Stage] = {}
    for name, value in _read_instructions(text):
        if name == "FROM":
            images = [word for word in value.split() if not word.startswith("--")]
            base = stages.get(images[0].lower(), _Stage()) if images else _Stage()
            stage = _Stage(base.folder, base.entrypoint, base.command, [*base.copies])
            if len(images) == 3:
                stages[images[2].lower()] = stage
        elif name == "WORKDIR":
            stage.folder = _join(stage.folder, value.strip("\"'"))
        elif name == "CMD":
            stage.command = _split(value)
        elif name == "ENTRYPOINT":
            stage.entrypoint = _split(value)
        elif name in ("COPY", "ADD") and "--from=" not in value:
            *sources, target = [word for word in _split(value) if not word.startswith("--")] or [""]
            stage.copies.append((sources, _join(stage.folder, target)))
    return stage


def _read_instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each instruction, with its continued lines joined."""
    lines = text.splitlines()
    position = 0
    while position < len(lines):
        parts: list[str] = []
        while position < len(lines):
            line = lines[position].strip()
            position += 1
            if line.startswith("#") or (parts and not line):
                continue
            parts.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                break
        name, value = [*" ".join(parts).split(maxsplit=1), "", ""][:2]
        for end in _HEREDOC.findall(value):
            rest = [line.strip() for line in lines[position:]]
            if end in rest:
                position += rest.index(end) + 1
        yield name.upper(), value.strip()


def _split(value: str) -> list[str]:
    """Return the words of an instruction, which is a JSON array or text for a shell."""
    try:
        words = json.loads(value)
    except (ValueError, RecursionError):
        words = None
    if isinstance(words, list):
        return [word for word in words if isinstance(word, str)]
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def _join(folder: PurePosixPath, path: str) -> PurePosixPath:
    return PurePosixPath(posixpath.normpath(posixpath.join("/", folder, path)))


def _find_python_file(project: Path, stage: _Stage, words: Sequence[str]) -> Path | None:
    if PurePosixPath(words[0]).name in _SHELLS and _RUNS_TEXT.fullmatch(" ".join(words[1:2])):
        words = _split(words[-1])
    # The last of several commands is the one that goes on.
    last = max((index for index, word in enumerate(words) if word in ("&&", ";")), default=-1)
    for word in words[last + 1 :]:
        if word.endswith(".py"):
            return _find_in_project(project, stage, _join(stage.folder, word))
    return None


def _find_in_project(project: Path, stage: _Stage, path: PurePosixPath) -> Path | None:
    """Return the file of the project that is at a path of the image; None if there is none.

    It is the one that a COPY or ADD puts there. Of a path that none of these explains, the longest
    end that the project has counts.
    """
    for sources, target in reversed(stage.copies):
        for source in sources:
            for candidate in _candidates(project, source.lstrip("/"), target, path):
                if candidate.is_file():
                    return candidate
    parts = path.parts[1:]
    ends = (project.joinpath(*parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if end.is_file()), None)


def _candidates(
    project: Path, source: str, target: PurePosixPath, path: PurePosixPath
) -> Iterator[Path]:
    """Yield the files of the project that copying a source to a target could put at a path."""
    source = posixpath.normpath(source)
    if source.startswith(".."):
        return
    if path.is_relative_to(target):
        # The source is a folder, whose content is copied.
        yield project / source / path.relative_to(target)
    name = PurePosixPath(source)
    if path.parent == target and name.name and path.match(name.name):
        yield project / name.parent / path.name
    if path == target:
        yield project / source
