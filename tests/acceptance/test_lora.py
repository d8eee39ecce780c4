"""LoRA adapters through the APIs, with the built-in model and an adapter with random weights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from common.json_object import JsonObject
from engine.backends.lora_adapters import LoraAdapter
from handler.apis.openai.service import MODELS
from handler.composition import Services, build_services, build_validation
from handler.settings.engine_configs import build_engine_config
from handler.settings.shared_settings import Settings
from tests.conftest import EngineFactory
from tests.models.lora_adapter import build_lora_adapter

TEXT = "The capital of France is"
SAMPLING = {"temperature": 0, "max_tokens": 12}


@pytest.fixture
def services(engine_factory: EngineFactory, model_path: Path, tmp_path: Path) -> Services:
    adapter = build_lora_adapter(tmp_path / "french.gguf")
    settings = Settings(
        model_path=model_path,
        model_name="tiny",
        context_length=512,
        lora_adapters=(LoraAdapter("french", adapter),),
    )
    config = build_engine_config(settings)
    engine = engine_factory(config.backend, slots=config.slots)
    return build_services(settings, engine, build_validation(settings))


async def call(services: Services, route: str, **body: Any) -> JsonObject:
    openai = services.openai
    return await openai.complete(openai.parse_call(route, {**SAMPLING, **body}))


async def test_openai_calls_and_jobs_choose_an_adapter(services: Services) -> None:
    async def ask_all(model: str) -> list[str]:
        messages = [{"role": "user", "content": TEXT}]
        completion, chat, job = await asyncio.gather(
            call(services, "/v1/completions", prompt=TEXT, model=model),
            call(services, "/v1/chat/completions", messages=messages, model=model),
            services.jobs.run(
                {
                    "id": "j",
                    "input": {"prompt": TEXT, "model": model, "sampling_params": SAMPLING},
                }
            ),
        )
        assert {completion["model"], chat["model"], job["model"]} == {model}
        texts = [each["choices"][0]["text"] for each in (completion, job)]
        return [*texts, chat["choices"][0]["message"]["content"]]

    base, adapted = await asyncio.gather(ask_all("tiny"), ask_all("french"))
    assert all(one != other for one, other in zip(base, adapted, strict=True))
    assert await ask_all("tiny") == base
    assert await ask_all("french") == adapted


async def test_models_list_has_the_adapter_with_its_parent(services: Services) -> None:
    listed = await services.openai.answer_without_generation(MODELS, {})
    assert listed is not None
    assert [(model["id"], model.get("parent")) for model in listed["data"]] == [
        ("tiny", None),
        ("french", "tiny"),
    ]


async def test_prompt_of_an_adapter_has_no_log_probabilities(services: Services) -> None:
    body = {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 1}
    for model, has_logprobs in (("tiny", True), ("french", False)):
        response = await call(services, "/v1/completions", model=model, **body)
        assert response["choices"][0]["text"].startswith(TEXT)
        second = response["choices"][0]["logprobs"]["token_logprobs"][1]
        assert (second is not None) == has_logprobs
        warnings = "".join(response.get("warnings") or ())
        assert ("computed without adapters" in warnings) != has_logprobs
