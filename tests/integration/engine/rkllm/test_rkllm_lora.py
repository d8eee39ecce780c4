"""LoRA adapters by name, with both ABIs: each run uses exactly the adapter that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import Engine
from engine.backends.rkllm.abi.abi import Abi
from engine.errors import ModelLoadFailed, UnsupportedParameter
from handler.apis.openai.service import OpenAIService
from handler.errors import ModelNotFound, error_info
from handler.pipeline import Pipeline
from tests.fake_rkllm import read_log
from tests.integration.engine.rkllm.conftest import RkllmMaker
from tests.integration.engine.support import ask, first_text, request
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("examined_once")
only_processes = pytest.mark.parametrize("isolation", ["process"], indirect=True)
only_threads = pytest.mark.parametrize("isolation", ["thread"], indirect=True)

REPORT_INPUT = 'answer\n  say "\\{seen}"\n'
NAMES = ("french", "legal")


@pytest.fixture
def lora(tmp_path: Path) -> str:
    """Write two adapter files; return their RKLLM_LORA setting."""
    for name in NAMES:
        (tmp_path / f"{name}.lora").write_text("weights")
    return ",".join(f"{name}={tmp_path / name}.lora" for name in NAMES)


async def read_adapter(engine: Engine, **sampling: Any) -> str | None:
    """Return the adapter of a run."""
    adapter: str | None = json.loads((await ask(engine, **sampling))[0])["lora"]
    return adapter


@only_processes
async def test_each_run_has_the_adapter_it_names(
    rkllm_of: RkllmMaker, lora: str, call_log: Path
) -> None:
    engine = rkllm_of(REPORT_INPUT, lora=f"{lora}:0.5")
    assert list((await engine.ready()).adapters) == [*NAMES]
    for name in ("french", None, "legal", "french", None):
        assert await read_adapter(engine, lora=name) == name
    loaded = [call.values for call in read_log(call_log) if call.name == "rkllm_load_lora"]
    scales = zip(NAMES, ("1", "0.5"), strict=True)
    assert loaded == [{"name": name, "scale": scale} for name, scale in scales]


@only_threads
async def test_adapter_of_an_aborted_run_does_not_affect_the_next(
    rkllm_of: RkllmMaker, lora: str
) -> None:
    engine = rkllm_of(
        'answer when="long"\n  say "x" us=1000 times=100000\n' + REPORT_INPUT,
        lora=lora,
    )
    async with await engine.generate(request("long", lora="legal")) as stream:
        await first_text(stream)
    await wait_until(lambda: not engine.running)
    assert await read_adapter(engine) is None


@only_threads
async def test_unknown_adapter_error_lists_the_known_ones(
    rkllm_of: RkllmMaker, lora: str, call_log: Path
) -> None:
    engine = rkllm_of(REPORT_INPUT, lora=lora)
    with pytest.raises(UnsupportedParameter) as caught:
        await ask(engine, lora="german")
    assert caught.value.message == (
        "lora: the rkllm engine has no adapter 'german', there are: french, legal"
    )
    assert (error_info(caught.value).mapping.status, error_info(caught.value).param) == (
        400,
        "lora",
    )
    assert not any(call.name == "rkllm_run" for call in read_log(call_log))
    with pytest.raises(UnsupportedParameter, match="there are none"):
        await ask(rkllm_of(REPORT_INPUT), lora="german")


@only_threads
async def test_adapters_are_reloaded_with_the_model(
    rkllm_of: RkllmMaker, lora: str, abi: Abi, call_log: Path
) -> None:
    engine = rkllm_of(REPORT_INPUT, lora=lora, sampling="reload")
    other_sampling: dict[str, Any] = {"ignore_eos": True} if abi.sampling_per_run else {"top_k": 3}
    assert await read_adapter(engine, lora="legal", **other_sampling) == "legal"
    names = [call.name for call in read_log(call_log)]
    assert names.count("rkllm_init") == 2
    assert names.count("rkllm_load_lora") == 2 * len(NAMES)


@only_threads
async def test_adapter_that_does_not_load_is_named(
    rkllm_of: RkllmMaker, tmp_path: Path, call_log: Path
) -> None:
    # One more than the fake library supports.
    path = tmp_path / "one.lora"
    path.write_text("weights")
    engine = rkllm_of(REPORT_INPUT, lora=",".join(f"n{number}={path}" for number in range(17)))
    with pytest.raises(ModelLoadFailed) as caught:
        await engine.ready()
    assert caught.value.message.startswith(
        "RKLLM_LORA: n16 was not loaded: rkllm_load_lora failed with -1"
    )
    # And the base model does not answer instead.
    assert read_log(call_log)[-1].name == "rkllm_destroy"
    with pytest.raises(ModelLoadFailed, match="RKLLM_LORA: there is no file"):
        await rkllm_of(REPORT_INPUT, lora="one=/nowhere/one.lora").ready()


@only_threads
@pytest.mark.parametrize(
    ("route", "prompt"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_openai_calls_name_an_adapter_as_their_model(
    rkllm_of: RkllmMaker, lora: str, route: str, prompt: dict[str, Any]
) -> None:
    service = OpenAIService(Pipeline(rkllm_of(REPORT_INPUT, lora=lora), "fake", adapters=NAMES))
    for model, adapter in (("legal", "legal"), ("fake", None), (None, None), ("french", "french")):
        body = await service.complete(service.parse_call(route, {**prompt, "model": model}))
        choice = body["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert json.loads(text)["lora"] == adapter
        assert body["model"] == (model or "fake")
    with pytest.raises(ModelNotFound, match='"german" does not exist, there is: fake, french, le'):
        service.parse_call(route, {**prompt, "model": "german"})
