"""Find the model that a request names."""

from __future__ import annotations

from typing import Any

import pytest

from engine import EngineState
from handler.apis.openai.service import EMBEDDINGS, MODELS, OpenAIService
from handler.errors import InvalidRequest, ModelNotFound
from handler.generation.active_generation import ActiveGeneration
from handler.job.job_handler import JobHandler
from handler.models.registry import ModelRegistry
from handler.pipeline import Pipeline
from tests.unit.handler.conftest import PipelineFactory

COMPLETIONS = "/v1/completions"


@pytest.fixture
def models(pipeline_of: PipelineFactory) -> ModelRegistry:
    """Two: each answers with its name."""
    return ModelRegistry(*(named(pipeline_of, name) for name in ("big", "small")))


def named(pipeline_of: PipelineFactory, name: str, **script: Any) -> Pipeline:
    made = pipeline_of({"pieces": [f"I am {name}."]}, **script)
    return Pipeline(made.engine, name)


async def call(service: OpenAIService, **body: Any) -> tuple[str, str]:
    answer = await service.complete(service.parse_call(COMPLETIONS, {"prompt": "who?", **body}))
    return answer["model"], answer["choices"][0]["text"]


async def test_openai_calls_go_to_the_model_they_name(models: ModelRegistry) -> None:
    # R7
    service = OpenAIService(models)
    assert await call(service) == ("big", "I am big.")
    assert await call(service, model="small") == ("small", "I am small.")
    assert await call(service, model="big") == ("big", "I am big.")


async def test_streams_and_several_answers_go_there_too(models: ModelRegistry) -> None:
    service = OpenAIService(models)
    parsed = service.parse_call(COMPLETIONS, {"prompt": "who?", "model": "small", "stream": True})
    async with await service.open_stream(parsed) as running:
        assert isinstance(running, ActiveGeneration)
        texts = [delta.text async for batch in running.batches() for delta in batch]
    assert "".join(texts) == "I am small."
    body = {"prompt": ["who?", "you?"], "model": "small"}
    answer = await service.complete(service.parse_call(COMPLETIONS, body))
    assert [choice["text"] for choice in answer["choices"]] == ["I am small."] * 2


@pytest.mark.parametrize("route", [COMPLETIONS, EMBEDDINGS])
def test_error_of_an_unknown_model_lists_the_served_models(
    models: ModelRegistry, route: str
) -> None:
    # R7
    service = OpenAIService(models)
    with pytest.raises(ModelNotFound, match="does not exist, there is: big, small") as caught:
        service.check_call(route, {"prompt": "x", "input": "x", "model": "gpt"})
    assert (caught.value.param, caught.value.details) == (
        "model",
        {"available_models": ["big", "small"]},
    )
    with pytest.raises(InvalidRequest, match="model must be a string, got 5"):
        service.check_call(route, {"prompt": "x", "input": "x", "model": 5})


async def test_all_are_listed_the_default_first(models: ModelRegistry) -> None:
    service = OpenAIService(models)
    listed = await service.answer_without_generation(MODELS, {})
    assert listed is not None
    assert [model["id"] for model in listed["data"]] == ["big", "small"]
    assert (await service.get_model("small"))["id"] == "small"
    with pytest.raises(ModelNotFound, match="there is: big, small"):
        await service.get_model("gpt")


async def test_jobs_go_to_the_model_they_name(models: ModelRegistry) -> None:
    jobs = JobHandler(models)
    for fields, name in (({}, "big"), ({"model": "small"}, "small")):
        output = await jobs.run({"id": "j", "input": {"prompt": "who?", **fields}})
        assert (output["model"], output["choices"][0]["text"]) == (name, f"I am {name}.")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt", 'the model "gpt" does not exist, there is: big, small'),
        (5, "input.model must be a string, got 5"),
    ],
)
async def test_job_for_an_unknown_model_fails_with_the_reason(
    models: ModelRegistry, model: object, expected: str
) -> None:
    jobs = JobHandler(models)
    job = {"id": "j", "input": {"prompt": "who?", "model": model}}
    assert expected in (await jobs.run(job))["error"]
    with pytest.raises((ModelNotFound, InvalidRequest), match=expected) as caught:
        jobs.check(job)
    assert caught.value.param == "input.model"


async def test_model_of_a_job_is_ignored_with_one_model(
    pipeline_of: PipelineFactory,
) -> None:
    jobs = JobHandler(named(pipeline_of, "big"))
    output = await jobs.run({"id": "j", "input": {"prompt": "who?", "model": "whatever"}})
    assert output["model"] == "big"


async def test_dead_model_does_not_stop_others(pipeline_of: PipelineFactory) -> None:
    # R54
    models = ModelRegistry(
        named(pipeline_of, "dead", load_error="no memory"), named(pipeline_of, "alive")
    )
    jobs = JobHandler(models)
    failed = await jobs.run({"id": "j", "input": {"prompt": "who?"}})
    assert "no memory" in failed["error"]
    assert "refresh_worker" not in failed
    assert models.default.engine.state is EngineState.DEAD
    output = await jobs.run({"id": "j", "input": {"prompt": "who?", "model": "alive"}})
    assert output["choices"][0]["text"] == "I am alive."


def test_models_need_names_of_their_own(models: ModelRegistry) -> None:
    for pipelines in ((), (models.default, models.default)):
        with pytest.raises(ValueError, match="a name of its own"):
            ModelRegistry(*pipelines)


def test_adapter_name_finds_its_model(pipeline_of: PipelineFactory) -> None:
    pipeline = pipeline_of()
    adapted = Pipeline(pipeline.engine, "one", adapters=("french",))
    models = ModelRegistry(adapted)
    assert models.names == ("one", "french")
    assert models.find("french") is adapted
    assert not models.has_several
    assert [models.is_adapter(name) for name in ("french", "one", "gpt")] == [True, False, False]


@pytest.mark.parametrize("count", [1, 2])
async def test_job_that_names_an_adapter_as_its_model_uses_it(
    pipeline_of: PipelineFactory, count: int
) -> None:
    names = ("french", "legal")
    adapted = named(pipeline_of, "small", capabilities={"adapters": names})
    pipelines = [named(pipeline_of, "big"), Pipeline(adapted.engine, "small", adapters=names)]
    jobs = JobHandler(ModelRegistry(*pipelines[2 - count :]))
    fields: dict[str, str]
    for fields, expected in (
        ({"model": "french"}, "french"),
        ({"model": "small"}, "small"),
        ({"model": "small", "lora": "legal"}, "legal"),
        ({"model": "french", "lora": "legal"}, "legal"),
    ):
        output = await jobs.run({"id": "j", "input": {"prompt": "who?", **fields}})
        assert (output["model"], output["choices"][0]["text"]) == (expected, "I am small.")
        assert not output.get("warnings")


async def test_added_model_answers_by_all_its_names(pipeline_of: PipelineFactory) -> None:
    models = ModelRegistry(named(pipeline_of, "big"))
    assert not models.has_several
    made = pipeline_of({"pieces": ["I am new."]})
    models.add(Pipeline(made.engine, "new", aliases=("hf:org/new",)))
    service = OpenAIService(models)
    assert models.names == ("big", "new", "hf:org/new")
    for name in ("new", "hf:org/new"):
        assert (await call(service, model=name))[1] == "I am new."
    with pytest.raises(ValueError, match="there is a model new already"):
        models.add(Pipeline(made.engine, "new"))


async def test_alias_of_a_served_model_is_no_further_model(pipeline_of: PipelineFactory) -> None:
    models = ModelRegistry(named(pipeline_of, "big"))
    models.add_alias("big", "hf:org/big")
    assert (models.names, models.has_several) == (("big", "hf:org/big"), False)
    assert models.find("hf:org/big") is models.default
    assert (await call(OpenAIService(models), model="hf:org/big"))[0] == "big"
    with pytest.raises(ValueError, match="there is a model hf:org/big already"):
        models.add_alias("big", "hf:org/big")
