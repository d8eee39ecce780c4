"""A model that is served, as calls name it and the list shows it (R7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handler.errors import InvalidRequest, ModelNotFound
from handler.openai.dialect import Dialect
from handler.sampling import shown


def read_model(body: Mapping[str, Any], served: str, dialect: Dialect) -> str:
    """Return the name of the model a body asks for, which is the one that is served.

    Raises:
        InvalidRequest: it is no name, or there is none where the dialect needs one.
        ModelNotFound: it is another one.
    """
    model = body.get("model")
    if model is None:
        if dialect.model_required:
            raise InvalidRequest("model must be given", "model")
        return served
    if not isinstance(model, str):
        raise InvalidRequest(f"model must be a string, got {shown(model)}", "model")
    if model != served:
        raise unknown_model(model, [served])
    return model


def unknown_model(name: str, served: Sequence[str], param: str = "model") -> ModelNotFound:
    """Return the error of a model that is not served, which names those that are."""
    return ModelNotFound(
        f"the model {shown(name)} does not exist, there is: {', '.join(served)}",
        param,
        {"available_models": list(served)},
    )


def describe_model(served: str, created: int) -> dict[str, Any]:
    """Return the model as `/models` shows it."""
    return {"id": served, "object": "model", "created": created, "owned_by": "worker-rkllm"}
