"""Find the models of the servers of UPSTREAM_URL, where no setting names them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import httpx2

from common.setting_error import SettingError
from common.url_credentials import hide_credentials
from engine.backends.openai.server_models import ServerModel, describe_refusal, read_models
from engine.backends.openai.server_pool import base_url
from handler.models.model_list import ModelEntry
from handler.settings.shared_settings import Settings

S = TypeVar("S", bound=Settings)

# Each model has a process of its own, which takes some 50 MB.
_MAX_MODELS = 16
_TIMEOUT_S = 10.0
# The start waits for a server that is still loading its model, up to LOAD_TIMEOUT_S. Nothing else
# runs in this process yet.
_RETRY_S = 1.0


def resolve_upstream_models(settings: S) -> S:
    """Return the settings with the models of the servers, if they name none.

    Raises:
        SettingError: no server answers within LOAD_TIMEOUT_S, or one has no models or too many.
    """
    if settings.models:
        named = [
            each if each.name is not None else each.model_copy(update={"name": str(each.path)})
            for each in settings.models
        ]
        return settings.model_copy(update={"models": tuple(named)})
    if settings.model_path is not None or settings.model_name is not None:
        return settings
    names = [model.id for model in _wait_for_models(settings)]
    if not names or len(names) > _MAX_MODELS:
        raise SettingError(
            f"UPSTREAM_URL: the server lists {len(names)} models, and 1 to {_MAX_MODELS} can be "
            "served without MODEL_NAME or MODELS"
        )
    if len(names) == 1:
        return settings.model_copy(update={"model_path": Path(names[0])})
    entries = tuple(ModelEntry(path=Path(name), name=name) for name in names)
    return settings.model_copy(update={"models": entries})


def _wait_for_models(settings: Settings) -> Sequence[ServerModel]:
    """Return the models of the first server that answers."""
    deadline = time.monotonic() + settings.load_timeout_s
    secret = settings.upstream_secret
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    is_reported = False
    while True:
        reasons = []
        for url in settings.upstream_urls:
            try:
                return _request_models(url, headers)
            except httpx2.HTTPError as error:
                reasons.append(
                    f"{hide_credentials(url)} does not answer: {str(error) or type(error).__name__}"
                )
        reason = "; ".join(reasons)
        if time.monotonic() > deadline:
            raise SettingError(f"UPSTREAM_URL: {reason}")
        if not is_reported:
            is_reported = True
            sys.stderr.write(
                f"waiting for the models of UPSTREAM_URL, as MODEL_NAME is not set: {reason}\n"
            )
        time.sleep(_RETRY_S)


def _request_models(url: str, headers: dict[str, str]) -> Sequence[ServerModel]:
    response = httpx2.get(f"{base_url(url)}/v1/models", headers=headers, timeout=_TIMEOUT_S)
    if refusal := describe_refusal(response):
        raise SettingError(f"UPSTREAM_URL: {refusal}")
    return read_models(response.content)
