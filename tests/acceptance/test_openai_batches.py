"""A batch on the embedded model from its upload to its end, with OpenAI's sync and async client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Batch

from tests.integration.emulator.processes import EmulatorProcess, run_emulator
from tests.waiting import poll_until, wait_until_blocking

PROMPT = "The capital of France is"
FINAL = ("completed", "failed", "expired", "cancelled")
DEADLINE_S = 60


def line(custom_id: str, **body: Any) -> str:
    request_body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0} | body
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": request_body}
    )


LINES = [line("one"), line("bad", temperature=9), line("two", max_tokens=4), line("three")]
# No line of this file finishes within the test.
LONG = [line(f"long {each}", max_tokens=4000, ignore_eos=True) for each in range(20)]


def write(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def check(output: str, errors: str) -> None:
    """Check that each line has an answer, and the invalid one an error."""
    answers = {each["custom_id"]: each for each in map(json.loads, output.splitlines())}
    assert sorted(answers) == ["one", "three", "two"]
    texts = {}
    for name, each in answers.items():
        assert (each["error"], each["response"]["status_code"]) == (None, 200)
        texts[name] = each["response"]["body"]["choices"][0]["text"]
    assert "Paris" in texts["one"]
    # The number of concurrent lines may change a word of the text, but not its length limit.
    assert 0 < len(texts["two"]) < len(texts["one"])
    [bad] = map(json.loads, errors.splitlines())
    assert bad["custom_id"] == "bad"
    assert bad["response"]["status_code"] == 400
    assert bad["response"]["body"]["error"]["message"] == (
        "temperature must be a number from 0 to 2, got 9"
    )


def wait_for_status(client: OpenAI, batch_id: str, statuses: tuple[str, ...]) -> Batch:
    """Poll until a batch has one of these statuses."""

    def has_status() -> Batch | None:
        batch = client.batches.retrieve(batch_id)
        return batch if batch.status in statuses else None

    return wait_until_blocking(has_status, DEADLINE_S)


def run_batches(server: EmulatorProcess, folder: Path) -> None:
    """Upload, create, poll, download, cancel."""
    base_url = f"http://127.0.0.1:{server.port}/v1"
    with OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        with write(folder, "short.jsonl", LINES).open("rb") as opened:
            file = client.files.create(file=opened, purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        batch = wait_for_status(client, batch.id, FINAL)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 1)
        assert batch.output_file_id is not None
        assert batch.error_file_id is not None
        check(
            client.files.content(batch.output_file_id).text,
            client.files.content(batch.error_file_id).text,
        )
        with write(folder, "long.jsonl", LONG).open("rb") as opened:
            file = client.files.create(file=opened, purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        wait_for_status(client, batch.id, ("in_progress",))
        client.batches.cancel(batch.id)
        batch = wait_for_status(client, batch.id, FINAL)
        assert batch.status == "cancelled"
        undone = client.files.content(batch.error_file_id or "").text.splitlines()
        assert {json.loads(each)["error"]["code"] for each in undone} == {"batch_cancelled"}
        assert len(undone) == 20


async def run_batches_async(server: EmulatorProcess, folder: Path) -> None:
    """Do the same; other requests are answered meanwhile, because batches leave slots free."""
    base_url = f"http://127.0.0.1:{server.port}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0) as client:

        async def create(name: str, lines: list[str]) -> str:
            path = write(folder, name, lines)
            file = await client.files.create(file=path, purpose="batch")
            batch = await client.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            )
            return batch.id

        async def wait_for_end(batch_id: str) -> Any:
            async def read_final() -> Any:
                batch = await client.batches.retrieve(batch_id)
                return batch if batch.status in FINAL else None

            return await poll_until(read_final, DEADLINE_S)

        batch = await wait_for_end(await create("short-async.jsonl", LINES))
        assert batch.status == "completed"
        output = (await client.files.content(batch.output_file_id)).text
        check(output, (await client.files.content(batch.error_file_id)).text)
        batch_id = await create("long-async.jsonl", LONG)

        async def running() -> bool:
            async with server.client() as http:
                health = (await http.get("/health")).json()
            return bool(health["engine"]["running"] == 2)

        # BATCH_SHARE of four slots.
        await poll_until(running, DEADLINE_S)
        [model] = [each.id async for each in client.models.list()]
        answer = await client.completions.create(
            model=model, prompt=PROMPT, max_tokens=8, temperature=0
        )
        assert "Paris" in answer.choices[0].text
        await client.batches.cancel(batch_id)
        assert (await wait_for_end(batch_id)).status == "cancelled"
        listed = [each.id async for each in client.batches.list(limit=1)]
        assert batch_id == listed[0]
        for file in [each async for each in client.files.list(limit=2)]:
            await client.files.delete(file.id)
        assert [each async for each in client.files.list()] == []


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_batches_run_to_their_end_on_the_real_model(model_path: Path, tmp_path: Path) -> None:
    environment = {"MODEL_PATH": str(model_path), "BATCH_SHARE": "0.5"}
    async with run_emulator(environment, "--port", "0") as server:
        await server.wait_until_listening()
        await asyncio.to_thread(run_batches, server, tmp_path)
        await run_batches_async(server, tmp_path)
        assert "Traceback" not in server.stderr
