"""R17: the answers with a draft model are the same as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import Engine
from engine.errors import ModelLoadFailed
from handler.apis.core.best_of import build_requests
from handler.apis.openai.dialect import OVMS
from handler.apis.openai.service import OpenAIService
from handler.pipeline import Pipeline
from handler.settings.engine_configs import build_engine_config
from handler.settings.shared_settings import Settings
from tests.conftest import EngineFactory
from tests.unit.handler.apis.openai.calls import COMPLETIONS, complete, complete_streamed

PROMPTS = ["The capital of France is", "def fibonacci(n):"]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
# Greedy, sampled with a seed, ended by a stop sequence, constrained, and too short to draft.
MANNERS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 16},
    {"temperature": 1, "seed": 7, "max_tokens": 8},
    {"temperature": 0, "max_tokens": 8, "stop": [" a", "\n"]},
    {
        "temperature": 0,
        "max_tokens": 8,
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    },
    {"temperature": 0, "max_tokens": 1},
]


def settings(model_path: Path, **options: Any) -> Settings:
    return Settings(model_path=model_path, model_name="tiny", context_length=512, **options)


def service_of(engine_factory: EngineFactory, server_settings: Settings) -> OpenAIService:
    config = build_engine_config(server_settings)
    engine = engine_factory(config.backend, slots=config.slots)
    return OpenAIService(Pipeline(engine, server_settings.served_model))


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_answers_are_the_same_with_the_model_as_its_own_draft_model(
    engine_factory: EngineFactory, model_path: Path
) -> None:
    undrafted = service_of(engine_factory, settings(model_path, deterministic=True))
    drafted = service_of(
        engine_factory, settings(model_path, deterministic=True, draft_model_path=model_path)
    )
    for manner in MANNERS:
        for prompt in PROMPTS:
            body = {"prompt": prompt, **manner}
            expected = await complete(undrafted, COMPLETIONS, body)
            response = await complete_streamed(drafted, COMPLETIONS, body)
            assert response.choices == expected.choices, body
            assert response.usage == expected.usage, body


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_request_sets_draft_length_and_threshold(
    engine_factory: EngineFactory, model_path: Path
) -> None:
    service = service_of(
        engine_factory, settings(model_path, max_concurrency=2, draft_model_path=model_path)
    )
    engine: Engine = service._models.default.engine
    capabilities = await engine.ready()
    assert capabilities.draft
    reloads = []
    for parameters in (
        {"num_assistant_tokens": 3},
        {"num_assistant_tokens": 3},
        {},
        {"assistant_confidence_threshold": 0.6},
        {"num_assistant_tokens": 64},
    ):
        body = {"model": "tiny", "prompt": "Once", "max_tokens": 4, "temperature": 0, **parameters}
        call = service.parse_call(COMPLETIONS, body, OVMS)
        answer = await service._models.default.run(build_requests(call.parsed)[0])
        assert answer.finish.usage.completion_tokens == 4
        assert answer.warnings == ()
        reloads.append(answer.finish.timings.reload_ms > 100)
    # A request without these parameters does not reload the model.
    assert reloads == [True, False, False, True, True]


@pytest.mark.long
async def test_logprobs_are_ignored_with_a_warning(
    engine_factory: EngineFactory, model_path: Path
) -> None:
    # R16
    service = service_of(engine_factory, settings(model_path, draft_model_path=model_path))
    body = {"prompt": "Once", "max_tokens": 2, "logprobs": 1}
    response = await complete(service, COMPLETIONS, body)
    assert response.warnings == ["logprobs is not supported by the llamacpp engine and was ignored"]


@pytest.fixture(params=["gone", "damaged", "another"])
def unusable(request: pytest.FixtureRequest, tmp_path: Path, model_path: Path) -> Path:
    path = tmp_path / "draft.gguf"
    if request.param != "gone":
        model = model_path.read_bytes()
        # One token of its vocabulary is another one.
        other = model.replace("Ġwater".encode(), "Ġmetal".encode())
        path.write_bytes(other if request.param == "another" else model[: len(model) // 2])
    return path


@pytest.mark.long_except("gone", "another")
async def test_unusable_draft_model_is_named_in_the_error(
    engine_factory: EngineFactory, model_path: Path, unusable: Path
) -> None:
    service = service_of(engine_factory, settings(model_path, draft_model_path=unusable))
    with pytest.raises(ModelLoadFailed, match=r"DRAFT_MODEL_PATH: .*draft\.gguf"):
        await service._models.default.engine.ready()
