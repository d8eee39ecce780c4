"""Which parameter is honoured where, found out by asking: the tables of docs/openai.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine import Capabilities
from engine.errors import UnsupportedParameter
from handler.errors import InvalidRequest, ModelNotFound
from handler.openai import chat, completions
from handler.openai.codec import Codec
from handler.openai.dialect import OPENAI, ORACLE, OVMS, Dialect
from handler.openai.probes import CHAT, COMPLETIONS, PROBES, Probe
from handler.openai.shape import Shape

# An engine, each way to set it up that makes a difference, the usual one first and without a name.
Engines = Mapping[str, Mapping[str, Capabilities]]

DIALECTS = (OPENAI, ORACLE, OVMS)
SHAPES: Mapping[str, tuple[Shape, Mapping[str, Any]]] = {
    COMPLETIONS: (completions.COMPLETIONS, {"model": "m", "prompt": "hi"}),
    CHAT: (chat.CHAT, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
}
_YES = "yes"
# What probes call an adapter, where there is one.
ADAPTERS = ("an-adapter",)


def codec_of(
    route: str,
    body: Mapping[str, Any],
    dialect: Dialect = OPENAI,
    adapters: Sequence[str] = ADAPTERS,
) -> Codec:
    """Return what a route makes of a body and of what it cannot do without."""
    shape, least = SHAPES[route]
    given = {**least, **body}
    return Codec(shape, given, "m", None, dialect=dialect, stream_several=True, adapters=adapters)


class Matrix:
    """Asks every probe of every dialect and engine, and writes down what is said.

    Sentences that a client would get become numbered notes, each of them once.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._notes: dict[str, int] = {}

    def table(self, route: str) -> str:
        """Return the parameters of a route that are honoured somewhere, as a table."""
        head = ["parameter", "takes", "unset", *(each.name for each in DIALECTS), *self._engines]
        probes = [probe for probe in PROBES if route in probe.routes]
        rows = [
            self._row(route, probe) for probe in probes if not self._ignored(route, probe.bodies[0])
        ]
        return in_markdown(head, rows)

    def notes(self) -> str:
        """Return the sentences that the tables refer to; after them."""
        return "\n".join(f"{number}. {sentence}" for sentence, number in self._notes.items())

    def ignored(self, route: str, names: Sequence[str]) -> Sequence[str]:
        """Return those of the names that a route ignores whatever runs it, with a warning."""
        return [name for name in sorted(names) if self._ignored(route, {name: "x"})]

    def _ignored(self, route: str, body: Mapping[str, Any]) -> bool:
        try:
            warnings = codec_of(route, body).request.warnings
        except InvalidRequest:
            return False
        return any("was ignored" in warning for warning in warnings)

    def _row(self, route: str, probe: Probe) -> list[str]:
        shape, _ = SHAPES[route]
        field = shape.parameters.model_fields.get(probe.name)
        takes = probe.takes or (field.description or "" if field is not None else "")
        name = f"`{probe.name}`{f' ({probe.kind})' if probe.kind else ''}"
        return [
            name,
            takes,
            _default(route, probe.name),
            *(self._of_dialect(route, probe, dialect) for dialect in DIALECTS),
            *(self._of_engine(route, probe, engine) for engine in self._engines.values()),
        ]

    def _of_dialect(self, route: str, probe: Probe, dialect: Dialect) -> str:
        refused = []
        for body in probe.bodies:
            try:
                codec_of(route, body, dialect)
            except InvalidRequest as error:
                refused.append(f"400: {error.message}")
        if len(refused) == len(probe.bodies):
            return f"400 {self._noted(refused)}"
        return f"{_YES} {self._noted(refused)}".rstrip()

    def _of_engine(self, route: str, probe: Probe, ways: Mapping[str, Capabilities]) -> str:
        usual, *others = ((way, self._of_way(route, probe, able)) for way, able in ways.items())
        told = [f"{way}: {found}" for way, found in others if found != usual[1]]
        return "; ".join([usual[1], *told])

    def _of_way(self, route: str, probe: Probe, capabilities: Capabilities) -> str:
        try:
            codec = codec_of(route, probe.bodies[0], adapters=capabilities.adapters)
            said = _said(codec, capabilities)
        except ModelNotFound as error:
            return f"404 {self._noted([f'404: {error.message}'])}"
        except UnsupportedParameter as error:
            return f"400 {self._noted([f'400: {error.message}'])}"
        if probe.name in ("messages", "prompt"):
            # A call cannot do without, so all that is said of any other call is said here too.
            said = [sentence for sentence in said if sentence.startswith(probe.name)]
        else:
            usual = _said(codec_of(route, {}), capabilities)
            said = [sentence for sentence in said if sentence not in usual]
        cell = f"warns {self._noted(said)}" if said else _YES
        for dialect in DIALECTS:
            if refusal := _unsuited(route, probe, dialect, capabilities):
                cell += f", {dialect.name}: 400 {self._noted([refusal])}"
        return cell

    def _noted(self, sentences: Sequence[str]) -> str:
        numbers = [self._notes.setdefault(each, len(self._notes) + 1) for each in sentences]
        return f"({', '.join(map(str, sorted(numbers)))})" if numbers else ""


def _said(codec: Codec, capabilities: Capabilities) -> list[str]:
    """Return what a call's answer would warn of on an engine. Raises UnsupportedParameter."""
    codec.suit(capabilities)
    asked = codec.request.generation
    said = (*codec.request.warnings, *capabilities.check(asked.prompt, asked.sampling))
    # By its name there, by what it is here: the others say the same.
    return [each.replace(f"the {capabilities.backend} engine", "the engine") for each in said]


def _unsuited(route: str, probe: Probe, dialect: Dialect, capabilities: Capabilities) -> str | None:
    """Return why a dialect refuses on an engine what it takes on others, None where it does not."""
    try:
        codec = codec_of(route, probe.bodies[0], dialect)
    except InvalidRequest:
        return None
    try:
        codec.suit(capabilities)
    except InvalidRequest as error:
        return f"400: {error.message}"
    return None


def _default(route: str, name: str) -> str:
    """Return what a parameter is where a call does not say, as far as that is a plain value."""
    parameters = codec_of(route, {}).parameters
    for holder in (parameters, parameters.sampling):
        value = getattr(holder, name, None)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int | float):
            return f"{value:g}"
    return ""


def dialect_table(words: Mapping[str, str]) -> str:
    """Return how the dialects differ, a row for each of their fields by its name in `words`."""
    rows = [
        [said, *(_told(getattr(dialect, name)) for dialect in DIALECTS)]
        for name, said in words.items()
    ]
    return in_markdown(["", *(dialect.name for dialect in DIALECTS)], rows)


def in_markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _told(value: bool | int | None) -> str:
    if isinstance(value, bool):
        return _YES if value else "no"
    return "no" if value is None else str(value)
