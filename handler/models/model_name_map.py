"""Choose the served model for a name that a client sends and that no model has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from common.value_description import describe_value

# Ollama's tag of a model without another one.
LATEST = ":latest"


def find_served_name(name: str, served: Collection[str]) -> str | None:
    """Return the served name for one that a client sends; None if there is none.

    Clients of Ollama add `:latest` to a name without a tag. A model that has the whole name is
    found first.
    """
    return next((each for each in (name, name.removesuffix(LATEST)) if each in served), None)


class ModelNameMap:
    """Pairs of a pattern and the name of the model that answers to it; the first match counts.

    In a pattern, `*` stands for any text. None as the name of a model stands for the default model.
    Immutable.
    """

    def __init__(self, pairs: Sequence[tuple[str, str | None]]) -> None:
        self._pairs = tuple(pairs)

    @property
    def models(self) -> Sequence[str]:
        """The names of the models that answer."""
        return tuple(model for _, model in self._pairs if model is not None)

    def find(self, name: str, served: Collection[str]) -> str | None:
        """Return the name of the model that answers; None for the default model.

        A served name is never replaced, and a name that no pattern matches is returned as it is.
        """
        if find_served_name(name, served) is not None:
            return name
        return next((model for pattern, model in self._pairs if fnmatchcase(name, pattern)), name)


# For servers without a map of their own.
CLAUDE_TO_DEFAULT = ModelNameMap([("claude*", None)])


def parse_name_map(setting: str) -> ModelNameMap:
    """Return the map of a setting such as `claude-*=tiny,gpt-*=tiny`. Raises ValueError."""
    pairs = []
    for entry in filter(None, (each.strip() for each in setting.split(","))):
        pattern, _, model = (each.strip() for each in entry.partition("="))
        if not pattern or not model:
            raise ValueError(f"must be pairs such as claude-*=tiny, got {describe_value(entry)}")
        pairs.append((pattern, model))
    return ModelNameMap(pairs)
