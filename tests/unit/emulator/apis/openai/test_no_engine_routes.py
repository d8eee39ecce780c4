"""The OpenAI paths of a server that has no model."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.apis.openai.no_engine_routes import NoEngineRoutes
from emulator.http.responses import on_error
from handler.errors import HandlerError
from tests.unit.emulator.asgi import call, serve_routes

ERRORS: Any = {HandlerError: on_error}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/rerank"),
        ("POST", "/v1/score"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/some/name"),
        ("DELETE", "/v1/files/file-1"),
        ("POST", "/chat/completions"),
        ("POST", "/completions"),
        ("GET", "/models"),
    ],
)
async def test_openai_path_without_a_model_is_404_and_names_the_path_of_the_handler(
    method: str, path: str
) -> None:
    app = serve_routes(NoEngineRoutes("my-worker", has_handler=True).routes(), ERRORS)
    response = await call(app, path, method)
    assert response.status == 404
    assert "are under /v2/my-worker/openai/v1; " in response.error["message"]


async def test_other_path_is_not_answered_by_these_routes() -> None:
    app = serve_routes(NoEngineRoutes("my-worker", has_handler=True).routes(), ERRORS)
    response = await call(app, "/v2/my-worker/openai/v1/models")
    assert response.status == 404
    assert b"has no model" not in response.body


async def test_server_without_a_model_names_the_setting_that_brings_one() -> None:
    app = serve_routes(NoEngineRoutes("default", has_handler=False).routes(), ERRORS)
    response = await call(app, "/v1/models")
    assert response.status == 404
    assert response.error["message"] == (
        "this server has no model, because LOCAL_WORKER=off or ENGINE=none is set; "
        "MODEL_PATH names one, and OpenAI calls to workers are under /v2/default/openai/v1"
    )
