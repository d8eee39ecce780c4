"""A served model, its aliases and its adapters: names in requests, and `/models` (R7, R63)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handler.errors import InvalidRequest, ModelNotFound
from handler.openai.dialect import Dialect
from handler.pipeline import Pipeline
from handler.sampling import describe_value


def read_model(
    body: Mapping[str, Any],
    served: str,
    dialect: Dialect,
    adapters: Sequence[str] = (),
    aliases: Sequence[str] = (),
) -> str:
    """Return the name of the model, or of the adapter, that a body asks for.

    An alias is returned as the model's own name, which is the one that answers report.

    Raises:
        InvalidRequest: `model` is not a string, or is missing where the dialect requires it.
        ModelNotFound: no model or adapter has that name.
    """
    model = body.get("model")
    if model is None:
        if dialect.model_required:
            raise InvalidRequest("model must be given", "model")
        return served
    if not isinstance(model, str):
        raise InvalidRequest(f"model must be a string, got {describe_value(model)}", "model")
    if model in aliases:
        return served
    if model != served and model not in adapters:
        raise unknown_model(model, [served, *aliases, *adapters])
    return model


def unknown_model(name: str, served: Sequence[str], param: str = "model") -> ModelNotFound:
    """Return the error of a model that is not served, which names those that are."""
    return ModelNotFound(
        f"the model {describe_value(name)} does not exist, there is: {', '.join(served)}",
        param,
        {"available_models": list(served)},
    )


def describe_model(name: str, pipeline: Pipeline, created: int) -> dict[str, Any]:
    """Return the object that `/models` has for a name of a model.

    Each name has an object of its own, as clients look models up by `id`. The further fields are
    vLLM's: `max_model_len` is the context length in tokens, null until the model is loaded; `root`
    of an alias is the name that answers report, and `parent` of an adapter is its model.
    """
    capabilities, served = pipeline.engine.capabilities, pipeline.model_name
    described = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "worker-rkllm",
        "root": served if name in pipeline.aliases else name,
        "max_model_len": None if capabilities is None else capabilities.context_length,
    }
    return described | {"parent": served} if name in pipeline.adapters else described
