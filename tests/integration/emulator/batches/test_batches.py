"""`/v1/batches` on the scripted engine: from creation to each final status."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import jsonschema_rs
import openai
import pytest

from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call, chat, text
from tests.integration.emulator.batches.support import (
    ENDPOINT,
    GOOD,
    HANG,
    Clients,
    calls,
    counts,
    ids,
    jsonl,
)
from tests.integration.emulator.conftest import Serve


async def test_batch_completes_and_its_bad_lines_are_in_the_error_file(
    serve: Serve, clients: Clients
) -> None:  # R53
    client = clients(await serve())
    lines = calls(20)
    lines[7]["body"]["temperature"] = 9
    lines[11]["body"]["stream"] = True
    file = await client.openai.files.create(file=("mine.jsonl", jsonl(lines)), purpose="batch")
    assert (file.object, file.purpose, file.filename) == ("file", "batch", "mine.jsonl")
    assert file.bytes == len(jsonl(lines))
    assert (await client.openai.files.content(file.id)).content == jsonl(lines)
    batch = await client.batch(file.id, metadata={"who": "me"})
    assert batch.status in ("validating", "in_progress")
    ended = await client.ended(batch)
    assert ended.status == "completed"
    assert counts(ended) == (20, 18, 2)
    assert (ended.metadata, ended.endpoint, ended.model) == ({"who": "me"}, ENDPOINT, "scripted")
    timestamps = [ended.created_at, ended.in_progress_at, ended.finalizing_at, ended.completed_at]
    assert timestamps == sorted(each for each in timestamps if each is not None)
    answered = await client.lines(ended.output_file_id)
    assert {line["custom_id"]: text(line) for line in answered} == {
        f"id {number}": f"p {number}" for number in range(20) if number not in (7, 11)
    }
    assert {line["response"]["status_code"] for line in answered} == {200}
    failed = {line["custom_id"]: line for line in await client.lines(ended.error_file_id)}
    assert {name: line["response"]["body"]["error"]["param"] for name, line in failed.items()} == {
        "id 7": "temperature",
        "id 11": "stream",
    }
    usage = [line["response"]["body"]["usage"] for line in answered]
    assert ended.usage is not None
    assert ended.usage.input_tokens == sum(each["prompt_tokens"] for each in usage)
    assert ended.usage.output_tokens == sum(each["completion_tokens"] for each in usage)
    output = await client.openai.files.retrieve(ended.output_file_id or "")
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")


async def test_batch_responses_match_the_description(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {})))
    ended = await client.ended(await client.create([call("a"), call("b", temperature=9)]))
    refused = await client.ended(await client.create(calls(1), "/v1/chat/completions"))
    cancelled_batch = await client.create(calls(2, "hang"))
    await client.wait_until(cancelled_batch, lambda batch: batch.status == "in_progress")
    await client.openai.batches.cancel(cancelled_batch.id)
    await client.ended(cancelled_batch)
    async with client.server.client() as http:
        description = (await http.get("/openapi.json")).json()

        async def check(schema: str, path: str, method: str = "GET") -> None:
            response = await http.request(method, f"/v1/{path}")
            schema_document = {
                "$ref": f"#/components/schemas/{schema}",
                "components": description["components"],
            }
            jsonschema_rs.validate(schema_document, response.json())

        for batch in (ended, refused, cancelled_batch):
            await check("Batch", f"batches/{batch.id}")
        await check("Batches", "batches")
        await check("Batches", f"batches?after={ended.id}")
        await check("Files", "files")
        await check("File", f"files/{ended.output_file_id}")
        await check("DeletedFile", f"files/{ended.output_file_id}", "DELETE")
        await check("Error", f"files/{ended.output_file_id}")


async def test_lines_without_generation_are_answered_too(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    bodies: dict[str, dict[str, Any]] = {
        "/v1/embeddings": {"input": "x"},
        "/v1/rerank": {"query": "x", "documents": ["x", "y"]},
        "/v1/score": {"text_1": "x", "text_2": "y"},
    }
    lines = {"/v1/chat/completions": chat("c")}
    for url, body in bodies.items():
        lines[url] = {"custom_id": "v", "method": "POST", "url": url, "body": body}
    for endpoint, line in lines.items():
        ended = await client.ended(await client.create([line], endpoint))
        assert counts(ended) == (1, 1, 0)
        assert ended.error_file_id is None


async def test_response_and_message_lines_are_answered_and_counted(
    serve: Serve, clients: Clients
) -> None:
    client = clients(await serve())
    message = {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    for endpoint, good in (("/v1/responses", {"input": "x"}), ("/v1/messages", message)):
        lines: list[dict[str, Any]] = [
            {"custom_id": name, "method": "POST", "url": endpoint, "body": body}
            for name, body in (("good", good), ("bad", good | {"temperature": "hot"}))
        ]
        ended = await client.ended(await client.create(lines, endpoint))
        assert counts(ended) == (2, 1, 1)
        (answered,) = await client.lines(ended.output_file_id)
        usage = answered["response"]["body"]["usage"]
        assert ended.usage is not None
        assert ended.usage.output_tokens == usage["output_tokens"] > 0
        (failed,) = await client.lines(ended.error_file_id)
        assert "temperature" in failed["response"]["body"]["error"]["message"]


async def test_line_with_a_too_long_prompt_has_the_error_code_of_openai(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    # R64, R73
    client = clients(await serve(script({}, context_length=64)))
    long = " ".join(["word"] * 200)
    completion = await client.ended(await client.create([call("a", long)]))
    (failed,) = await client.lines(completion.error_file_id)
    error = failed["response"]["body"]["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")

    messages = [{"role": "user", "content": long}]
    line = chat("c") | {"body": chat("c")["body"] | {"messages": messages}}
    answered = await client.ended(await client.create([line], "/v1/chat/completions"))
    (failed,) = await client.lines(answered.error_file_id)
    error = failed["response"]["body"]["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


async def test_lines_for_another_endpoint_fail_the_batch_by_their_numbers(
    serve: Serve, clients: Clients
) -> None:
    client = clients(await serve())
    ended = await client.ended(await client.create(calls(2), "/v1/chat/completions"))
    assert ended.status == "failed"
    assert ended.failed_at is not None
    assert ended.errors is not None
    assert [each.line for each in ended.errors.data or ()] == [1, 2]
    for each in ended.errors.data or ():
        assert each.message == (
            "url must be the batch's endpoint, /v1/chat/completions, got /v1/completions"
        )
    assert (ended.output_file_id, ended.error_file_id) == (None, None)


BAD_BATCHES: list[tuple[dict[str, Any], str]] = [
    ({"input_file_id": None}, "input_file_id"),
    ({"endpoint": "/v1/images"}, "endpoint"),
    ({"endpoint": ["/v1/completions"]}, "endpoint"),
    ({"completion_window": "1h"}, "completion_window"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {"a" * 65: "1"}}, "metadata"),
    ({"metadata": {"a": "1" * 513}}, "metadata"),
    ({"metadata": {str(each): "1" for each in range(17)}}, "metadata"),
    ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor"),
    ({"output_expires_after": 5}, "output_expires_after"),
]


async def test_bad_batches_are_refused_by_their_parameters(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    body = {
        "input_file_id": await client.upload(GOOD),
        "endpoint": ENDPOINT,
        "completion_window": "24h",
    }
    async with client.server.client() as http:
        for changes, param in BAD_BATCHES:
            response = await http.post("/v1/batches", json=body | changes)
            assert response.status_code == 400, changes
            assert response.json()["error"]["param"] == param
    assert [each async for each in client.openai.batches.list()] == []


async def test_output_file_is_refused_as_an_input(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    ended = await client.ended(await client.create(calls(1)))
    with pytest.raises(openai.BadRequestError, match="with the purpose batch, got batch_output"):
        await client.batch(ended.output_file_id or "")


async def test_cancel_keeps_answered_lines_and_frees_the_engine(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {}, slots=4)))
    batch = await client.create([*calls(3), *calls(10, "hang")[3:]])
    await client.wait_until(batch, lambda batch: counts(batch) == (10, 3, 0))
    with pytest.raises(openai.BadRequestError, match=f"{batch.id} needs the file"):
        await client.openai.files.delete(batch.input_file_id)
    cancelled = await client.openai.batches.cancel(batch.id)
    assert cancelled.status in ("cancelling", "cancelled")
    ended = await client.ended(batch)
    assert ended.status == "cancelled"
    assert ended.cancelling_at is not None
    assert counts(ended) == (10, 3, 0)
    assert ids(await client.lines(ended.output_file_id)) == [f"id {each}" for each in range(3)]
    undone = await client.lines(ended.error_file_id)
    assert ids(undone) == [f"id {each}" for each in range(3, 10)]
    assert {(line["response"], line["error"]["code"]) for line in undone} == {
        (None, "batch_cancelled")
    }
    await client.server.wait_until_idle()
    # A second cancel changes nothing; a completed batch cannot be cancelled.
    assert (await client.openai.batches.cancel(batch.id)).status == "cancelled"
    other = await client.ended(await client.create(calls(1)))
    with pytest.raises(openai.BadRequestError, match="is completed and cannot be cancelled"):
        await client.openai.batches.cancel(other.id)
    await client.openai.files.delete(batch.input_file_id)


async def test_queued_batch_can_be_cancelled(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {}), max_batches=2))
    first = await client.create(calls(1, "hang"))
    second = await client.create(calls(2))
    with pytest.raises(openai.RateLimitError, match="MAX_BATCHES"):
        await client.batch(second.input_file_id)
    await client.wait_until(second, lambda batch: batch.status == "in_progress")
    await client.openai.batches.cancel(second.id)
    ended = await client.ended(second)
    assert (ended.status, counts(ended)) == ("cancelled", (2, 0, 0))
    assert ended.output_file_id is None
    assert len(await client.lines(ended.error_file_id)) == 2
    assert (await client.openai.batches.retrieve(first.id)).status == "in_progress"


async def test_batch_cancelled_at_any_moment_reaches_an_end(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    file_id = await client.upload(jsonl(calls(20)))

    async def run_and_cancel(number: int) -> str:
        batch = await client.batch(file_id)
        for _ in range(number):
            await client.openai.batches.retrieve(batch.id)
        with suppress(openai.BadRequestError):
            await client.openai.batches.cancel(batch.id)
        ended = await client.ended(batch)
        total, completed, failed = counts(ended)
        undone = await client.lines(ended.error_file_id) if ended.error_file_id else []
        assert (completed + len(undone), failed) == (total, 0)
        return ended.status

    ends = await asyncio.gather(*(run_and_cancel(number) for number in range(12)))
    assert set(ends) <= {"cancelled", "completed"}
    assert "cancelled" in ends


async def test_batch_expires_and_keeps_its_answered_lines(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {}, slots=4), batch_window_s=0.7))
    ended = await client.ended(await client.create([*calls(2), *calls(5, "hang")[2:]]))
    assert ended.status == "expired"
    assert ended.expired_at is not None
    assert counts(ended) == (5, 2, 0)
    assert ids(await client.lines(ended.output_file_id)) == ["id 0", "id 1"]
    undone = await client.lines(ended.error_file_id)
    assert {line["error"]["code"] for line in undone} == {"batch_expired"}
    assert ids(undone) == ["id 2", "id 3", "id 4"]
    await client.server.wait_until_idle()
