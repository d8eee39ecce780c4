"""The description of the routes: all of them, and in the words of the standard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from emulator.app import create_app
from emulator.console.pages import ASSETS
from emulator.http.public_files import DOCS_PATHS
from emulator.openapi.spec import OPERATIONS, TAGS, build_description, openapi_path
from emulator.settings.emulator_settings import EmulatorSettings
from emulator.startup.components import build_components
from engine import Engine
from handler.apis.openai.service import OpenAIService
from handler.errors import HandlerError
from handler.pipeline import Pipeline
from handler.settings.engine_configs import build_engine_config
from tests.unit.emulator.server_routes import api_routes, mounted_routes

ROUTES = {"Completion": "/v1/completions", "Chat": "/v1/chat/completions"}
TURNS = [{"role": "user", "content": "hi"}]
# The API's reference and the console's files are not part of the API.
OF_THE_PAGE = {*DOCS_PATHS, *ASSETS}


@pytest.fixture(scope="module")
def app() -> Starlette:
    # Without `faults_per_request` the routes of the faults are absent.
    settings = EmulatorSettings(engine="scripted", job_db=":memory:", faults_per_request=True)
    return create_app(build_components(settings, Engine(build_engine_config(settings))))


@pytest.fixture(scope="module")
def description(app: Starlette) -> dict[str, Any]:
    return build_description(api_routes(app), EmulatorSettings(faults_per_request=True))


@pytest.fixture(scope="module")
def service() -> OpenAIService:
    settings = EmulatorSettings(engine="scripted")
    return OpenAIService(Pipeline(Engine(build_engine_config(settings)), settings.served_model))


def test_every_route_is_described(app: Starlette, description: dict[str, Any]) -> None:
    routes = {
        (openapi_path(route.path), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
        if route.path not in OF_THE_PAGE
    }
    described = {
        (path, method) for path, methods in description["paths"].items() for method in methods
    }
    assert described == routes
    pairs = [
        (each.path, method)
        for each in app.routes
        if isinstance(each, Route)
        for method in each.methods or ()
    ]
    assert len(pairs) == len(set(pairs))
    assert all(isinstance(each, Route) for each in app.routes)


def test_every_described_route_exists(description: dict[str, Any]) -> None:
    for name in OPERATIONS:
        path = name.split()[-1]
        assert any(known.endswith(path) for known in description["paths"]), path


def test_schemas_are_sorted_valid_and_used(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    for name, schema in schemas.items():
        jsonschema_rs.meta.validate(
            schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        )
        assert f"#/components/schemas/{name}'" in str(description), name
    assert list(schemas) == sorted(schemas)
    referenced = set(re.findall(r"#/components/schemas/(\w+)'", str(description)))
    assert referenced == set(schemas)


def bodies(description: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paths with a body, and its description for each content type."""
    for path, methods in description["paths"].items():
        for known in methods.values():
            for content in known.get("requestBody", {}).get("content", {}).values():
                yield path, content


def examples_of(content: dict[str, Any]) -> list[Any]:
    several = content.get("examples", {}).values()
    return [each["value"] for each in several] or [content["example"]]


def test_every_example_is_valid(description: dict[str, Any]) -> None:
    result = list(bodies(description))
    assert result
    for path, content in result:
        schema = {**content["schema"], "components": description["components"]}
        validator = jsonschema_rs.validator_for(schema)
        for example in examples_of(content):
            assert list(validator.iter_errors(example)) == [], path


def test_examples_of_generations_are_short(description: dict[str, Any]) -> None:
    for path, content in bodies(description):
        for example in examples_of(content):
            if "completions" in path:
                assert example["max_tokens"] <= 32
            elif path.rpartition("/")[2] in ("run", "runsync"):
                assert example["input"]["sampling_params"]["max_tokens"] <= 32


def test_streamable_bodies_have_a_streamed_example(description: dict[str, Any]) -> None:
    for path in ROUTES.values():
        content = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert [each.get("stream", False) for each in examples_of(content)] == [False, True]


def test_tags_are_in_their_order_and_described(description: dict[str, Any]) -> None:
    assert [each["name"] for each in description["tags"]] == list(TAGS)
    assert all(each["description"].endswith(".") for each in description["tags"])
    used = [
        operation["tags"][0]
        for path in description["paths"].values()
        for operation in path.values()
    ]
    assert list(dict.fromkeys(used)) == list(TAGS)


def test_descriptions_are_sentences(description: dict[str, Any]) -> None:
    for path, methods in description["paths"].items():
        for known in methods.values():
            assert known["summary"][0].isupper(), path
            assert not known["summary"].endswith("."), path
            texts = [each["description"] for each in known["responses"].values()]
            texts += [each["description"] for each in known["parameters"]]
            for text in texts:
                assert text[0].isupper(), (path, text)
                assert text.endswith("."), (path, text)


def test_operation_ids_have_no_underscore(description: dict[str, Any]) -> None:
    # Swagger UI's deep links read an underscore as a space.
    for methods in description["paths"].values():
        assert all(
            re.fullmatch(r"[a-z][A-Za-z0-9]+", each["operationId"]) for each in methods.values()
        )


def test_endpoint_parameter_defaults_to_the_servers_own(app: Starlette) -> None:
    result = build_description(api_routes(app), EmulatorSettings(endpoint_id="mine"))
    [endpoint] = result["paths"]["/v2/{endpoint}/run"]["post"]["parameters"]
    assert endpoint["schema"]["default"] == "mine"


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("Completion", {"prompt": ""}),
        ("Completion", {"prompt": ["a", 1]}),
        ("Completion", {"prompt": "a", "model": "another"}),
        ("Completion", {"prompt": "a", "stream_options": {}}),
        ("Completion", {"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}}),
        ("Completion", {"prompt": "a", "logit_bias": {"a": 1}}),
        ("Completion", {"prompt": "a", "n": 129}),
        ("Completion", {"prompt": "a", "validation": {"regenerate": 5}}),
        ("Chat", {"messages": []}),
        ("Chat", {"messages": [{"role": "user"}]}),
        ("Chat", {"messages": [{"role": "user", "content": None}]}),
        ("Chat", {"messages": [{"role": "king", "content": "a"}]}),
        ("Chat", {"messages": TURNS, "top_logprobs": 21}),
        ("Chat", {"messages": TURNS, "tool_choice": "some"}),
        ("Chat", {"messages": TURNS, "tools": [{"type": "function", "function": {}}]}),
        ("Chat", {"messages": TURNS, "response_format": {"type": "json_schema"}}),
    ],
)
def test_invalid_bodies_do_not_match_the_schemas(
    description: dict[str, Any], service: OpenAIService, schema: str, body: dict[str, Any]
) -> None:
    described = {"components": description["components"], "$ref": f"#/components/schemas/{schema}"}
    assert not jsonschema_rs.validator_for(described).is_valid(body)
    with pytest.raises(HandlerError):
        service.parse_call(ROUTES[schema], body)


def test_operation_ids_are_unique(description: dict[str, Any]) -> None:
    names = [
        each["operationId"] for path in description["paths"].values() for each in path.values()
    ]
    assert len(set(names)) == len(names)


def test_every_path_parameter_is_described(description: dict[str, Any]) -> None:
    for path, methods in description["paths"].items():
        for known in methods.values():
            places = [each["name"] for each in known["parameters"] if each["in"] == "path"]
            assert places == re.findall(r"\{(\w+)\}", path)


def test_api_keys_are_described_if_set(app: Starlette) -> None:
    closed = build_description(api_routes(app), EmulatorSettings(api_keys="one"))
    assert closed["security"] == [{"key": []}, {"header": []}]  # R67
    assert closed["paths"]["/health"]["get"]["security"] == []
    assert "one" not in str(closed["components"]["securitySchemes"])
    assert "security" not in build_description(api_routes(app), EmulatorSettings())


@pytest.mark.parametrize("metrics_open", [False, True])
def test_metrics_security_follows_the_setting(metrics_open: bool) -> None:
    routes = mounted_routes(metrics_open=metrics_open)
    result = build_description(routes, EmulatorSettings(api_keys="one"))
    operation = result["paths"]["/metrics"]["get"]
    assert ("401" not in operation["responses"]) is metrics_open
    assert (operation.get("security") == []) is metrics_open


def test_policy_bounds_follow_the_settings(app: Starlette) -> None:
    result = build_description(api_routes(app), EmulatorSettings(min_job_ttl_ms=77))
    policy = result["components"]["schemas"]["NewJob"]["properties"]["policy"]["anyOf"][0]
    assert policy["properties"]["ttl"]["anyOf"][0]["minimum"] == 77
