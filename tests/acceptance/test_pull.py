"""A model that Ollama's client pulls from a Hub, and that then answers, in place of the other."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hub_server import hub_server
from tests.integration.emulator.processes import run_emulator

NAME, SECOND_NAME = "hf.co/org/tiny-GGUF:Q4_1", "hf:org/tiny-GGUF"


async def test_pulled_model_answers(tmp_path: Path, model_path: Path) -> None:
    with hub_server() as hub:
        hub.add("org/tiny-GGUF", {"tiny-Q4_1.gguf": model_path})
        settings = {
            "MODEL_PATH": str(model_path),
            "MODEL_NAME": "first",
            "MODEL_PULL": "on",
            "CONTEXT_LENGTH": "256",
            "MAX_CONCURRENCY": "1",
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path),
        }
        async with run_emulator(settings, "--port", "0") as server, server.client() as client:
            await server.wait_until_listening()
            url = f"http://127.0.0.1:{server.port}"
            body = {
                "messages": [{"role": "user", "content": "Say hello."}],
                "stream": False,
                "options": {"temperature": 0, "num_predict": 4},
            }
            first = (await client.post(f"{url}/api/chat", json=body, timeout=60)).json()
            unknown = await client.post(f"{url}/api/chat", json=body | {"model": NAME})
            pulled = await client.post(f"{url}/api/pull", json={"model": NAME}, timeout=60)
            answer = await client.post(f"{url}/api/chat", json=body | {"model": NAME}, timeout=60)
            # The same file by another name is the same model.
            again = await client.post(f"{url}/api/pull", json={"model": SECOND_NAME}, timeout=60)
            same = await client.post(
                f"{url}/api/chat", json=body | {"model": SECOND_NAME}, timeout=60
            )
            listed = (await client.get(f"{url}/v1/models")).json()["data"]
            health = (await client.get(f"{url}/health")).json()
            metrics = await client.get(f"{url}/metrics")
    assert unknown.status_code == 404
    lines = [json.loads(line) for line in pulled.text.splitlines()]
    assert lines[-1] == {"status": "success"}
    assert any(line.get("completed") for line in lines)
    assert answer.json()["message"] == first["message"]
    assert json.loads(again.text.splitlines()[-1]) == {"status": "success"}
    assert same.json()["message"] == first["message"]
    assert hub.downloads == ["tiny-Q4_1.gguf"]
    assert [each["id"] for each in listed] == ["first", "tiny-Q4_1", NAME, SECOND_NAME]
    assert {each["root"] for each in listed} == {"first", "tiny-Q4_1"}
    assert {each["state"] for each in listed} == {"ready"}
    assert [each["id"] for each in health["models"]] == ["first", "tiny-Q4_1"]
    assert 'worker_rkllm_model_copies{state="ready"} 2' in metrics.text
