"""Images through the APIs, with a model and a projector with random weights."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from handler.apis.openai.service import OpenAIService
from handler.pipeline import Pipeline
from handler.settings.engine_configs import build_engine_config
from handler.settings.shared_settings import Settings
from tests.conftest import EngineFactory
from tests.models.llama import WIDTH
from tests.models.projector import build_projector
from tests.unit.handler.apis.openai.calls import CHAT, complete, complete_streamed
from tests.unit.handler.input.images import data_url


def picture(format_name: str, colour: str = "red") -> dict[str, Any]:
    file = BytesIO()
    Image.new("RGB", (64, 48), colour).save(file, format_name)
    return {"type": "image_url", "image_url": {"url": data_url(file.getvalue())}}


def body(*pictures: dict[str, Any], **fields: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": "Describe this:"}, *pictures]
    messages = [{"role": "user", "content": parts}]
    return {"messages": messages, "temperature": 0, "max_tokens": 8, **fields}


def service_of(engine_factory: EngineFactory, model: Path, **options: Any) -> OpenAIService:
    settings = Settings(model_path=model, model_name="tiny", context_length=512, **options)
    config = build_engine_config(settings)
    return OpenAIService(Pipeline(engine_factory(config.backend, slots=config.slots), "tiny"))


async def test_chat_with_images_of_each_format(
    engine_factory: EngineFactory, model_path: Path, tmp_path: Path
) -> None:
    projector = build_projector(tmp_path / "mmproj.gguf", WIDTH)
    service = service_of(engine_factory, model_path, mmproj_path=projector)
    texts = set()
    for format_name in ("PNG", "GIF", "JPEG"):
        response = await complete(service, CHAT, body(picture(format_name)))
        texts.add(response.choices[0].text)
    # The three files show the same.
    assert len(texts) == 1
    response = await complete(service, CHAT, body(picture("PNG", "blue")))
    assert response.choices[0].text not in texts
    streamed = await complete_streamed(service, CHAT, body(picture("PNG", "blue")))
    assert streamed.choices == response.choices
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer_format = {"type": "json_schema", "json_schema": {"schema": schema}}
    request = body(picture("PNG"), max_tokens=20, response_format=answer_format)
    constrained = await complete(service, CHAT, request)
    assert constrained.choices[0].text.startswith("{")


async def test_image_is_left_out_without_a_projector(
    engine_factory: EngineFactory, model_path: Path
) -> None:
    service = service_of(engine_factory, model_path)
    answer = await complete(service, CHAT, body(picture("PNG")))
    assert answer.warnings is not None
    [warning] = answer.warnings
    assert "images were left out" in warning
    assert "MMPROJ_PATH" in warning
