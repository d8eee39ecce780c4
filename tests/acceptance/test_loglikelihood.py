"""Rank endings as evaluation harnesses do: by the log-probabilities of an echoed prompt.

lm-eval sends the token ids of a beginning and each ending with `echo`, `logprobs` and one token to
generate. It reads the log-probabilities by position: a missing entry would shift all others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.emulator.processes import run_emulator

BEGINNING = "The opposite of hot is"
ENDINGS = [" cold", " purple", " seventeen", " \N{SNOWFLAKE}"]


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_loglikelihood_ranks_the_endings_of_a_sentence(default_model_path: Path) -> None:
    # R65
    environment = {"MODEL_PATH": str(default_model_path), "CONTEXT_LENGTH": "512"}
    async with run_emulator(environment, "--port", "0") as server:
        await server.wait_until_listening()
        async with server.client() as client:

            async def tokenize(text: str) -> list[int]:
                response = await client.post("/tokenize", json={"prompt": text})
                return list(response.json()["tokens"])

            beginning = await tokenize(BEGINNING)
            prompts = [beginning + await tokenize(ending) for ending in ENDINGS]
            body = {
                "prompt": prompts,
                "temperature": 0,
                "max_tokens": 1,
                "logprobs": 1,
                "seed": 1234,
                "echo": True,
            }
            response = await client.post("/v1/completions", json=body)
    answer = response.json()
    assert "warnings" not in answer
    sums = []
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        values = choice["logprobs"]["token_logprobs"]
        tops = choice["logprobs"]["top_logprobs"]
        assert len(values) == len(tops) == len(prompt) + 1
        ending = slice(len(beginning), -1)
        pairs = zip(values[ending], tops[ending], strict=True)
        assert all(value <= max(top.values()) for value, top in pairs)
        sums.append(sum(values[ending]))
    assert sums == sorted(sums, reverse=True)
