"""Find the pipeline of the model that a request names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.value_description import describe_value
from engine import EngineState
from handler.errors import InvalidRequest, ModelNotFound
from handler.models.model_name_map import find_served_name
from handler.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model of a request: its pipeline, and the adapter to use; None for none."""

    pipeline: Pipeline
    adapter: str | None = None

    @property
    def name(self) -> str:
        """The name in answers."""
        return self.pipeline.model_name if self.adapter is None else self.adapter


class ModelRegistry:
    """The served models by name; the first one is the default.

    A model is also found by its aliases and by the names of its adapters, each with `:latest` after
    it too. `has_several` states whether there is a choice of models. Shared by all entry points;
    models may be added, on the event loop.

    Raises:
        ValueError: there is no model, or two models have the same name.
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

    def add(self, pipeline: Pipeline) -> None:
        """Add a model. Raises ValueError if one of its names is in use."""
        names = (pipeline.model_name, *pipeline.aliases)
        if in_use := [name for name in names if name in self._by_name]:
            raise ValueError(f"there is a model {in_use[0]} already")
        self._by_name |= dict.fromkeys(names, pipeline)
        self.has_several = True

    def add_alias(self, model: str, alias: str) -> None:
        """Let a model be found by one more name. Raises ValueError if the name is in use."""
        if alias in self._by_name:
            raise ValueError(f"there is a model {alias} already")
        pipeline = self._by_name[alias] = self._by_name[model]
        pipeline.aliases = (*pipeline.aliases, alias)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models (the default first), of their aliases and of their adapters."""
        return tuple(self._by_name)

    @property
    def is_dead(self) -> bool:
        """Whether the engines of all models are dead."""
        return all(each.engine.state is EngineState.DEAD for each in self._by_name.values())

    def is_adapter(self, name: str) -> bool:
        """Return whether a served name is that of an adapter."""
        pipeline = self._by_name.get(name)
        return pipeline is not None and name in pipeline.adapters

    def find_name(self, name: str) -> str | None:
        """Return the served name for one that a client sends; None if there is none."""
        return find_served_name(name, self._by_name)

    def find(self, name: str | None, param: str = "model") -> Pipeline:
        """Return the pipeline of a model, or of the default for None. Raises ModelNotFound."""
        if name is None:
            return self.default
        if (served := self.find_name(name)) is None:
            raise model_not_found(name, self.names, param)
        return self._by_name[served]

    def resolve(self, name: Any, param: str = "model") -> ResolvedModel:
        """Return the model that a request names; the default for null.

        Raises:
            InvalidRequest: the name is not a string.
            ModelNotFound: there is no such model.
        """
        if name is not None and not isinstance(name, str):
            raise InvalidRequest(f"{param} must be a string, got {describe_value(name)}", param)
        pipeline = self.find(name, param)
        served = None if name is None else self.find_name(name)
        return ResolvedModel(pipeline, served if served in pipeline.adapters else None)

    def find_for_body(self, body: Mapping[str, Any], path: str = "") -> Pipeline:
        """Return the pipeline of the model that a request body names.

        With one model the field `model` is not read here: the caller decides whether a missing or
        different name is an error. `path` precedes the field's name in messages.

        Raises:
            InvalidRequest: the name is not a string.
            ModelNotFound: there is no such model.
        """
        if not self.has_several:
            return self.default
        name, param = body.get("model"), f"{path}model"
        if name is not None and not isinstance(name, str):
            raise InvalidRequest(f"{param} must be a string, got {describe_value(name)}", param)
        return self.find(name, param)


def model_not_found(name: str, served: Sequence[str], param: str = "model") -> ModelNotFound:
    """Return the error for a model that is not served; it lists the served models."""
    return ModelNotFound(
        f"the model {describe_value(name)} does not exist, there is: {', '.join(served)}",
        param,
        {"available_models": list(served)},
    )
