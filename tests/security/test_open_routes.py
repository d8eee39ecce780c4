"""What the routes that need no key show of a server's secrets: states and counts, nothing else."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from emulator.app import create_app
from emulator.autoscaling.program.interpreter import Interpreter
from emulator.autoscaling.program.worker_program import handler_program
from emulator.autoscaling.start_failure import build_start_failure
from emulator.http.route_facts import Access
from emulator.startup.components import build_components
from engine.errors import EngineError
from handler.settings.engine_configs import build_engine
from tests.conftest import ScriptFactory
from tests.integration.emulator.conftest import build_settings
from tests.unit.emulator.asgi import AsgiResponse, call
from tests.unit.emulator.server_routes import mounted_routes

KEY = "the-key-of-the-server"
SECRET = "postgres://admin:hunter2@db.internal"
FOLDER = "customer-acme"
FORBIDDEN = [each.encode() for each in (KEY, SECRET, "hunter2", FOLDER, "/opt/python")]
CLOSED = ("/v1/models", "/api/ps", "/api/tags", "/console/description", "/v2/default/health")
WITHOUT_KEY: Mapping[str, Mapping[str, str]] = {
    "no key": {},
    "wrong key": {"authorization": "Bearer wrong"},
    "two keys": {"authorization": f"Bearer {KEY}, {KEY}"},
    "foreign page": {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
}
OPEN = sorted(
    route.path
    for route in mounted_routes(metrics_open=True)
    if route.facts.access is not Access.KEY
)


def build_handler_app(tmp_path: Path, **settings: Any) -> Starlette:
    """Return a server whose handler did not start after it had printed a secret."""
    file = tmp_path / FOLDER / "handler.py"
    program = handler_program(file, Interpreter("/opt/python", "chosen"))
    values = {"job_db": ":memory:", "metrics_open": True}
    components = build_components(build_settings(values | settings), None, {"default": program})
    output = [f"connecting to {SECRET}", f"key {KEY}", f"no file {file}"]
    components.autoscalers["default"]._generations.failure = build_start_failure(
        "w", file.name, f"printed {SECRET}", output
    )
    return create_app(components)


async def build_broken_model_app(tmp_path: Path, script: ScriptFactory) -> Starlette:
    """Return a server whose model could not be loaded, with a reason that has a path."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    path = script({}, load_error=f"{folder}/model.json is damaged: {SECRET}")
    path = path.rename(folder / "model.json")
    settings = build_settings(
        {
            "job_db": ":memory:",
            "metrics_open": True,
            "api_keys": KEY,
            "engine": "scripted",
            "engine_isolation": "thread",
            "model_path": path,
        }
    )
    engine = build_engine(settings)
    with pytest.raises(EngineError):
        await engine.ready()
    app = create_app(build_components(settings, engine))
    await engine.close()
    return app


def body_of(response: AsgiResponse) -> bytes:
    is_packed = response.headers.get("content-encoding") == "gzip"
    return gzip.decompress(response.body) if is_packed else response.body


async def find_disclosures(app: Starlette) -> list[str]:
    """Return the requests without a key whose responses have something secret."""
    found = []
    for path in (*OPEN, *CLOSED, "/nothing"):
        for who, headers in WITHOUT_KEY.items():
            for method in ("GET", "HEAD", "POST", "DELETE"):
                response = await call(app, path, method, {"host": "localhost", **headers})
                text = body_of(response) + str(response.headers).encode()
                assert response.status in (200, 401, 403, 405, 503), (path, who, method)
                assert response.status != 200 or path in OPEN, (path, who)
                if any(each in text for each in FORBIDDEN):
                    found.append(f"{method} {path} with {who}")
    return found


async def test_open_routes_show_no_output_of_a_handler(tmp_path: Path) -> None:
    assert await find_disclosures(build_handler_app(tmp_path, api_keys=KEY)) == []


async def test_open_routes_show_no_path_of_a_model(tmp_path: Path, script: ScriptFactory) -> None:
    assert await find_disclosures(await build_broken_model_app(tmp_path, script)) == []


async def test_health_without_a_key_has_states_and_counts(
    tmp_path: Path, script: ScriptFactory
) -> None:
    handler = await call(build_handler_app(tmp_path, api_keys=KEY), "/health")
    assert json.loads(handler.body) == {
        "status": "degraded",
        "handler": {"state": "failed"},
        "handlers": [{"state": "failed"}],
        "jobs": {"database": "memory"},
    }
    model = await call(await build_broken_model_app(tmp_path, script), "/health")
    body = json.loads(model.body)
    assert body["engine"].keys() == {"state", "slots", "running", "waiting", "restarts"}
    assert body.keys() == {"status", "engine", "jobs"}


@pytest.mark.parametrize(
    ("keys", "headers", "is_shown"),
    [
        (KEY, {"authorization": f"Bearer {KEY}"}, True),
        (KEY, {"x-api-key": KEY, "host": "any.name"}, True),
        (KEY, {}, False),
        ("", {}, True),
        ("", {"host": "localhost:8000"}, True),
        # A page that has rebound its name, and one of another origin.
        ("", {"host": "evil.example"}, False),
        ("", {"host": "localhost", "origin": "https://evil.example"}, False),
    ],
)
async def test_health_has_details_only_for_those_who_may_call_the_other_routes(
    tmp_path: Path, keys: str, headers: dict[str, str], is_shown: bool
) -> None:
    app = build_handler_app(tmp_path, api_keys=keys)
    response = await call(app, "/health", headers=headers, scope={"scheme": "http"})
    assert (response.status, SECRET in response.body.decode()) == (200, is_shown)
