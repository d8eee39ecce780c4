"""The models of a server, as `/v1/models` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from common.url_credentials import hide_credentials
from engine.backends.openai.server_errors import BUSY

_NOT_ALLOWED = frozenset({401, 403})
# Of the engines of this project.
_LOADING_STATES = frozenset({"loading", "restarting"})


@dataclass(frozen=True, slots=True)
class ServerModel:
    """A model in the list of a server.

    `context_length` is in tokens; 0 if the list does not have it. Only a worker-rkllm lists models
    that are not ready: `is_loading` is whether the model is being loaded, and `failure` is why it
    could not be.
    """

    id: str
    owner: str = ""
    context_length: int = 0
    is_loading: bool = False
    failure: str = ""


async def list_models(http: httpx2.AsyncClient, url: str) -> httpx2.Response:
    """Request the models of the server at a base URL. Raises httpx2.HTTPError."""
    return await http.get(f"{url}/v1/models")


def describe_refusal(response: httpx2.Response) -> str | None:
    """Return why a server will never list its models; None if it does, or has no list.

    Raises httpx2.HTTPStatusError if it may do so later.
    """
    status, url = response.status_code, hide_credentials(str(response.url))
    if status in _NOT_ALLOWED:
        return f"{url} refuses UPSTREAM_KEY with status {status}"
    if response.is_redirect:
        location = hide_credentials(response.headers.get("location", ""))
        return f"{url} redirects to {location}: set UPSTREAM_URL to the server itself"
    if status in BUSY or status >= httpx2.codes.INTERNAL_SERVER_ERROR:
        raise httpx2.HTTPStatusError(
            f"{url} answered with status {status}", request=response.request, response=response
        )
    return None


def read_models(content: bytes) -> tuple[ServerModel, ...]:
    """Return the models in an answer of `/v1/models`; none if it has another form.

    vLLM and SGLang have the context as `max_model_len`, llama-server as `meta.n_ctx`.
    """
    try:
        models: Any = orjson.loads(content)["data"]
        return tuple([_read_model(model) for model in models if isinstance(model, dict)])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ()


def _read_model(model: Mapping[str, Any]) -> ServerModel:
    meta = model.get("meta")
    lengths = (model.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None)
    length = next((each for each in lengths if isinstance(each, int) and each > 0), 0)
    owner = model.get("owned_by")
    return ServerModel(
        str(model["id"]),
        owner if isinstance(owner, str) else "",
        length,
        is_loading=model.get("state") in _LOADING_STATES,
        failure=str(model.get("failure") or ""),
    )
