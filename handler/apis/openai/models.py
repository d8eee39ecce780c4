"""The names of a model, its aliases and its adapters, and their `/models` objects."""

from __future__ import annotations

from collections.abc import Sequence

from common.json_object import JsonObject
from common.value_description import describe_value
from handler.apis.openai.dialect import Dialect
from handler.errors import InvalidRequest
from handler.models.model_name_map import find_served_name
from handler.models.registry import model_not_found
from handler.pipeline import Pipeline


def read_model(
    body: JsonObject,
    served: str,
    dialect: Dialect,
    adapters: Sequence[str] = (),
    aliases: Sequence[str] = (),
) -> str:
    """Return the name of the model, or of the adapter, that a body requests.

    An alias is returned as the model's own name, because responses report that name.

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
    names = [served, *aliases, *adapters]
    if (name := find_served_name(model, names)) is None:
        raise model_not_found(model, names)
    return served if name in aliases else name


def describe_model(
    name: str, pipeline: Pipeline, created: int, file_context: int | None = None
) -> JsonObject:
    """Return the `/models` object of a name.

    Each name has an object of its own, because clients look models up by `id`. The other fields are
    vLLM's: `max_model_len` is the context length in tokens; before the load it is `file_context`,
    which the model's file says, and null if it does not. `root` of an alias is the name that
    responses report; `parent` of an adapter is its model. `state` is that of the model's engine,
    and `failure` is why it is dead.
    """
    engine = pipeline.engine
    capabilities, served = engine.capabilities, pipeline.model_name
    described = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "worker-rkllm",
        "root": served if name in pipeline.aliases else name,
        # 0 stands for an unknown length.
        "max_model_len": (capabilities.context_length if capabilities else file_context) or None,
        "state": engine.state.value,
    }
    if engine.failure is not None:
        described["failure"] = engine.failure.message
    return described | {"parent": served} if name in pipeline.adapters else described
