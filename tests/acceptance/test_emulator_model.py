"""The server on the real model, with the openai package."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.integration.emulator.processes import run_emulator


@pytest.mark.long
async def test_text_of_the_real_model_is_the_same_streamed(
    model_path: Path,
) -> None:
    # R4, R8, R9, R11, R22, R24, R32, R51
    environment = {"MODEL_PATH": str(model_path), "DETERMINISTIC": "on"}
    async with run_emulator(environment, "--port", "0") as server:
        await server.wait_until_listening()
        base_url = f"http://127.0.0.1:{server.port}/v1"
        async with (
            AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0) as client,
            server.client() as http,
        ):
            (model,) = [model.id async for model in client.models.list()]
            prompt = "The capital of France is"
            completion = await client.completions.create(
                model=model, prompt=prompt, temperature=0, max_tokens=24
            )
            chunks = [
                chunk
                async for chunk in await client.completions.create(
                    model=model, prompt=prompt, temperature=0, max_tokens=24, stream=True
                )
            ]
            text = completion.choices[0].text
            assert "Paris" in text
            assert "".join(chunk.choices[0].text for chunk in chunks) == text
            assert len(chunks) > 5
            assert chunks[-1].usage == completion.usage
            assert completion.usage is not None
            if completion.choices[0].finish_reason == "length":
                assert completion.usage.completion_tokens == 24

            stopped = await client.completions.create(
                model=model, prompt=prompt, temperature=0, max_tokens=24, stop=["Paris"]
            )
            assert stopped.choices[0].text == text.partition("Paris")[0]
            assert stopped.choices[0].finish_reason == "stop"

            chat = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "What is the capital of France?"}],
                temperature=0,
                max_tokens=24,
            )
            deltas = [
                chunk.choices[0].delta.content or ""
                async for chunk in await client.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": "What is the capital of France?"}],
                    temperature=0,
                    max_tokens=24,
                    stream=True,
                )
            ]
            assert "".join(deltas) == chat.choices[0].message.content
            assert len(deltas) > 5

            job = (
                await http.post(
                    "/runsync",
                    json={
                        "input": {
                            "prompt": prompt,
                            "apply_chat_template": False,
                            "sampling_params": {"temperature": 0, "max_tokens": 24, "top_p": 1},
                            "stream": True,
                            "enable_validation": False,
                        }
                    },
                )
            ).json()
            assert job["status"] == "COMPLETED"
            choice = job["output"]["choices"][0]
            assert "".join(choice["deltas"]) == choice["text"] == text
