"""`/v1/batches` on the scripted engine: from its creation to each of its ends."""

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


async def test_the_whole_cycle_with_a_bad_line_in_the_error_file(
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
    made = await client.batch(file.id, metadata={"who": "me"})
    assert made.status in ("validating", "in_progress")
    done = await client.ended(made)
    assert done.status == "completed"
    assert counts(done) == (20, 18, 2)
    assert (done.metadata, done.endpoint, done.model) == ({"who": "me"}, ENDPOINT, "scripted")
    moments = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert moments == sorted(each for each in moments if each is not None)
    answered = await client.lines(done.output_file_id)
    assert {line["custom_id"]: text(line) for line in answered} == {
        f"id {number}": f"p {number}" for number in range(20) if number not in (7, 11)
    }
    assert {line["response"]["status_code"] for line in answered} == {200}
    failed = {line["custom_id"]: line for line in await client.lines(done.error_file_id)}
    assert {name: line["response"]["body"]["error"]["param"] for name, line in failed.items()} == {
        "id 7": "temperature",
        "id 11": "stream",
    }
    usage = [line["response"]["body"]["usage"] for line in answered]
    assert done.usage is not None
    assert done.usage.input_tokens == sum(each["prompt_tokens"] for each in usage)
    assert done.usage.output_tokens == sum(each["completion_tokens"] for each in usage)
    output = await client.openai.files.retrieve(done.output_file_id or "")
    assert (output.purpose, output.filename) == ("batch_output", f"{made.id}_output.jsonl")


async def test_answers_are_as_described(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {})))
    done = await client.ended(await client.create([call("a"), call("b", temperature=9)]))
    refused = await client.ended(await client.create(calls(1), "/v1/chat/completions"))
    runs = await client.create(calls(2, "hang"))
    await client.until(runs, lambda batch: batch.status == "in_progress")
    await client.openai.batches.cancel(runs.id)
    await client.ended(runs)
    async with client.server.client() as http:
        described = (await http.get("/openapi.json")).json()

        async def check(schema: str, path: str, method: str = "GET") -> None:
            response = await http.request(method, f"/v1/{path}")
            found = {
                "$ref": f"#/components/schemas/{schema}",
                "components": described["components"],
            }
            jsonschema_rs.validate(found, response.json())

        for batch in (done, refused, runs):
            await check("Batch", f"batches/{batch.id}")
        await check("Batches", "batches")
        await check("Batches", f"batches?after={done.id}")
        await check("Files", "files")
        await check("File", f"files/{done.output_file_id}")
        await check("DeletedFile", f"files/{done.output_file_id}", "DELETE")
        await check("Error", f"files/{done.output_file_id}")


async def test_chats_and_vectors(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    vector = {"custom_id": "v", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}}
    for endpoint, line in (("/v1/chat/completions", chat("c")), ("/v1/embeddings", vector)):
        done = await client.ended(await client.create([line], endpoint))
        assert counts(done) == (1, 1, 0)
        assert done.error_file_id is None


async def test_prompt_of_a_line_that_is_too_long_has_the_code_of_openai(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    # R64, R73
    client = clients(await serve(script({}, context_length=64)))
    long = " ".join(["word"] * 200)
    completion = await client.ended(await client.create([call("a", long)]))
    (failed,) = await client.lines(completion.error_file_id)
    error = failed["response"]["body"]["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")

    turns = [{"role": "user", "content": long}]
    line = chat("c") | {"body": chat("c")["body"] | {"messages": turns}}
    answered = await client.ended(await client.create([line], "/v1/chat/completions"))
    (failed,) = await client.lines(answered.error_file_id)
    error = failed["response"]["body"]["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


async def test_lines_for_another_endpoint_fail_the_batch_by_their_numbers(
    serve: Serve, clients: Clients
) -> None:
    client = clients(await serve())
    done = await client.ended(await client.create(calls(2), "/v1/chat/completions"))
    assert done.status == "failed"
    assert done.failed_at is not None
    assert done.errors is not None
    assert [each.line for each in done.errors.data or ()] == [1, 2]
    for each in done.errors.data or ():
        assert each.message == (
            "url must be the batch's endpoint, /v1/chat/completions, got /v1/completions"
        )
    assert (done.output_file_id, done.error_file_id) == (None, None)


BAD_BATCHES: list[tuple[dict[str, Any], str]] = [
    ({"input_file_id": None}, "input_file_id"),
    ({"endpoint": "/v1/responses"}, "endpoint"),
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


async def test_an_output_is_no_input(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    done = await client.ended(await client.create(calls(1)))
    with pytest.raises(openai.BadRequestError, match="with the purpose batch, got batch_output"):
        await client.batch(done.output_file_id or "")


async def test_cancel_keeps_what_is_answered_and_frees_the_engine(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {}, slots=4)))
    made = await client.create([*calls(3), *calls(10, "hang")[3:]])
    await client.until(made, lambda batch: counts(batch) == (10, 3, 0))
    with pytest.raises(openai.BadRequestError, match=f"{made.id} needs the file"):
        await client.openai.files.delete(made.input_file_id)
    cancelled = await client.openai.batches.cancel(made.id)
    assert cancelled.status in ("cancelling", "cancelled")
    done = await client.ended(made)
    assert done.status == "cancelled"
    assert done.cancelling_at is not None
    assert counts(done) == (10, 3, 0)
    assert ids(await client.lines(done.output_file_id)) == [f"id {each}" for each in range(3)]
    undone = await client.lines(done.error_file_id)
    assert ids(undone) == [f"id {each}" for each in range(3, 10)]
    assert {(line["response"], line["error"]["code"]) for line in undone} == {
        (None, "batch_cancelled")
    }
    await client.server.wait_until_idle()
    # Twice is once; what has ended otherwise cannot be cancelled.
    assert (await client.openai.batches.cancel(made.id)).status == "cancelled"
    other = await client.ended(await client.create(calls(1)))
    with pytest.raises(openai.BadRequestError, match="is completed and cannot be cancelled"):
        await client.openai.batches.cancel(other.id)
    await client.openai.files.delete(made.input_file_id)


async def test_a_batch_that_waits_for_its_turn_is_cancelled_before_it(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {}), max_batches=2))
    first = await client.create(calls(1, "hang"))
    second = await client.create(calls(2))
    with pytest.raises(openai.RateLimitError, match="MAX_BATCHES"):
        await client.batch(second.input_file_id)
    await client.until(second, lambda batch: batch.status == "in_progress")
    await client.openai.batches.cancel(second.id)
    done = await client.ended(second)
    assert (done.status, counts(done)) == ("cancelled", (2, 0, 0))
    assert done.output_file_id is None
    assert len(await client.lines(done.error_file_id)) == 2
    assert (await client.openai.batches.retrieve(first.id)).status == "in_progress"


async def test_cancels_at_any_moment_come_to_their_end(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    file_id = await client.upload(jsonl(calls(20)))

    async def live(number: int) -> str:
        made = await client.batch(file_id)
        for _ in range(number):
            await client.openai.batches.retrieve(made.id)
        with suppress(openai.BadRequestError):
            await client.openai.batches.cancel(made.id)
        done = await client.ended(made)
        total, completed, failed = counts(done)
        undone = await client.lines(done.error_file_id) if done.error_file_id else []
        assert (completed + len(undone), failed) == (total, 0)
        return done.status

    ends = await asyncio.gather(*(live(number) for number in range(12)))
    assert set(ends) <= {"cancelled", "completed"}
    assert "cancelled" in ends


async def test_what_is_not_done_in_time_expires_and_the_rest_is_kept(
    serve: Serve, clients: Clients, script: ScriptFactory
) -> None:
    client = clients(await serve(script(HANG, {}, slots=4), batch_window_s=0.7))
    done = await client.ended(await client.create([*calls(2), *calls(5, "hang")[2:]]))
    assert done.status == "expired"
    assert done.expired_at is not None
    assert counts(done) == (5, 2, 0)
    assert ids(await client.lines(done.output_file_id)) == ["id 0", "id 1"]
    undone = await client.lines(done.error_file_id)
    assert {line["error"]["code"] for line in undone} == {"batch_expired"}
    assert ids(undone) == ["id 2", "id 3", "id 4"]
    await client.server.wait_until_idle()
