"""A model that is served and its adapters, as calls name them and the list shows them (R7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handler.errors import InvalidRequest, ModelNotFound
from handler.openai.dialect import Dialect
from handler.sampling import shown


def read_model(
    body: Mapping[str, Any], served: str, dialect: Dialect, adapters: Sequence[str] = ()
) -> str:
    """Return the name a body asks for: that of the model, or of one of its adapters.

    Raises:
        InvalidRequest: it is no name, or there is none where the dialect needs one.
        ModelNotFound: it is neither.
    """
    model = body.get("model")
    if model is None:
        if dialect.model_required:
            raise InvalidRequest("model must be given", "model")
        return served
    if not isinstance(model, str):
        raise InvalidRequest(f"model must be a string, got {shown(model)}", "model")
    if model != served and model not in adapters:
        raise unknown_model(model, [served, *adapters])
    return model


def unknown_model(name: str, served: Sequence[str], param: str = "model") -> ModelNotFound:
    """Return the error of a model that is not served, which names those that are."""
    return ModelNotFound(
        f"the model {shown(name)} does not exist, there is: {', '.join(served)}",
        param,
        {"available_models": list(served)},
    )


def describe_model(name: str, served: str, created: int) -> dict[str, Any]:
    """Return a model as `/models` shows it; an adapter names the model it is for (vLLM's word)."""
    described = {"id": name, "object": "model", "created": created, "owned_by": "worker-rkllm"}
    return described if name == served else described | {"parent": served}
