"""The models that are served, by name, each with the pipeline that leads to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine import EngineState
from handler.errors import InvalidRequest
from handler.openai.models import model_not_found
from handler.pipeline import Pipeline
from handler.sampling import describe_value


class ModelRegistry:
    """Finds the pipeline of the model that a request names; the first one is the default's.

    An alias and an adapter's name find the model they are for. `several` tells whether there is a
    choice of models. Immutable, and shared by all doors.

    Raises:
        ValueError: there is none, or two have the same name.
    """

    def __init__(self, *pipelines: Pipeline) -> None:
        self._by_name = {
            name: each for each in pipelines for name in (each.model_name, *each.aliases)
        }
        names = sum(1 + len(each.aliases) for each in pipelines)
        if not pipelines or len(self._by_name) < names:
            raise ValueError("models must be one or more, with a name of its own each")
        self.has_several = len(pipelines) > 1
        self.default = pipelines[0]
        for each in pipelines:
            self._by_name |= dict.fromkeys(each.adapters, each)

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names, the default's first, and those of their aliases and adapters."""
        return tuple(self._by_name)

    @property
    def is_dead(self) -> bool:
        """Whether none of them will answer any more."""
        return all(each.engine.state is EngineState.DEAD for each in self._by_name.values())

    def find(self, name: str | None, param: str = "model") -> Pipeline:
        """Return a model's pipeline, the default's for None. Raises ModelNotFound, naming all."""
        if name is None:
            return self.default
        if (found := self._by_name.get(name)) is None:
            raise model_not_found(name, self.names, param)
        return found

    def find_for_body(self, body: Mapping[str, Any], path: str = "") -> Pipeline:
        """Return the pipeline that a body is for, the only one where there is no choice.

        `path` comes before the field's name in messages. Where there is one model, its name is
        left to those who know whether it has to be given and right.

        Raises:
            InvalidRequest: the name is none.
            ModelNotFound: there is no such model.
        """
        if not self.has_several:
            return self.default
        name, param = body.get("model"), f"{path}model"
        if name is not None and not isinstance(name, str):
            raise InvalidRequest(f"{param} must be a string, got {describe_value(name)}", param)
        return self.find(name, param)
