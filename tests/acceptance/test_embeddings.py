"""Embeddings of the embedded model, with the openai package (R32)."""

from __future__ import annotations

from pathlib import Path

import pytest
from openai import AsyncOpenAI, BadRequestError

from tests.integration.emulator.processes import run_emulator

NEAR = [
    ("The cat sat on the mat.", "A kitten was sitting on the rug."),
    ("The stock market fell sharply today.", "Shares lost value on Wall Street."),
    ("How do I bake bread?", "Bread baking recipe"),
]


@pytest.mark.timeout(180)
async def test_same_text_same_vector_and_like_texts_are_near(default_model_path: Path) -> None:
    environment = {"MODEL_PATH": str(default_model_path), "THREADS": "1", "MODEL_NAME": "tiny"}
    async with run_emulator(environment, "--port", "0") as server:
        await server.wait_until_listening()
        url = f"http://127.0.0.1:{server.port}"
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            texts = [text for pair in NEAR for text in pair]
            # The package requests base64 and decodes it.
            response = await client.embeddings.create(model="tiny", input=texts)
            vectors = [each.embedding for each in response.data]
            assert {len(vector) for vector in vectors} == {576}
            assert response.usage.prompt_tokens == response.usage.total_tokens > 30

            def similarity(one: int, other: int) -> float:
                return sum(a * b for a, b in zip(vectors[one], vectors[other], strict=True))

            for one in range(0, len(texts), 2):
                assert similarity(one, one) == pytest.approx(1, abs=1e-4)
                others = [at for at in range(len(texts)) if at not in (one, one + 1)]
                assert similarity(one, one + 1) > max(similarity(one, at) for at in others) + 0.02

            repeated = await client.embeddings.create(
                model="tiny", input=texts[0], encoding_format="float", dimensions=576
            )
            assert repeated.data[0].embedding == pytest.approx(vectors[0], abs=1e-6)
            async with server.client() as http:
                tokens = (await http.post("/tokenize", json={"prompt": texts[0]})).json()["tokens"]
            by_ids = await client.embeddings.create(model="tiny", input=[tokens, tokens])
            assert [each.embedding for each in by_ids.data] == [vectors[0]] * 2
            assert by_ids.usage.prompt_tokens == 2 * len(tokens)

            with pytest.raises(BadRequestError, match="dimensions must be 576") as raised:
                await client.embeddings.create(model="tiny", input="a", dimensions=64)
            assert raised.value.param == "dimensions"
            with pytest.raises(BadRequestError, match="maximum context length is 2048 tokens"):
                await client.embeddings.create(model="tiny", input="word " * 3000)
            # Answers are generated as before.
            completion = await client.completions.create(model="tiny", prompt="Once", max_tokens=2)
            assert completion.usage is not None
            assert completion.usage.completion_tokens == 2
        for prefix in ("/v3", ""):
            async with AsyncOpenAI(base_url=url + prefix, api_key="any", max_retries=0) as client:
                response = await client.embeddings.create(model="tiny", input=texts[0])
                assert response.data[0].embedding == vectors[0]
