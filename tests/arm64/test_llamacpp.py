"""llama.cpp on arm64, as with `ENGINE=llamacpp` on a board: wheel, engine and server."""

from __future__ import annotations

from pathlib import Path

from engine import BackendConfig
from engine.backends.options import LlamaCppOptions
from tests.conftest import EngineFactory
from tests.integration.emulator.processes import run_emulator
from tests.integration.engine.support import ask


async def test_engine_process_answers_with_llama_cpp(
    engine_factory: EngineFactory, model_path: Path
) -> None:
    options = LlamaCppOptions(model_path=str(model_path), model_name="tiny", context_length=128)
    engine = engine_factory(BackendConfig(options), isolation="process")
    text, finish = await ask(engine, "Hello", max_tokens=4, ignore_eos=True)
    assert finish.usage.completion_tokens == 4
    assert text


async def test_server_answers_a_job_with_llama_cpp(model_path: Path) -> None:
    settings = {
        "ENGINE": "llamacpp",
        "MODEL_PATH": str(model_path),
        "CONTEXT_LENGTH": "128",
        "JOB_DB": ":memory:",
    }
    job = {"prompt": "Hello", "sampling_params": {"max_tokens": 4, "ignore_eos": True}}
    async with run_emulator(settings, "--port", "0") as server:
        await server.wait_until_listening()
        async with server.client() as client:
            response = await client.post("/runsync", json={"input": job}, timeout=120)
    output = response.json()["output"]
    assert output["usage"]["output"] == 4
