"""`/v1/files`: uploads, refusals, retention and paged lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.batch.runs import call, chat
from tests.integration.emulator.batches.support import GOOD, Clients, calls, counts, jsonl
from tests.integration.emulator.conftest import Serve
from tests.waiting import wait_until

BOM = b"\xef\xbb\xbf"
BAD_FILES = {
    "empty": (b"", "the file is empty"),
    "an empty line": (GOOD + b"\n\n" + GOOD, "line 2: the line is empty"),
    "no JSON": (b"hello\n", "line 1: the line is not JSON"),
    "invalid UTF-8": (GOOD + b'\n{"custom_id": "\xff"}\n', "line 2: the line is not JSON"),
    "an id twice": (GOOD + b"\n" + GOOD, "line 2: custom_id is the same as on line 1"),
    "two routes": (GOOD + b"\n" + json.dumps(chat("two")).encode(), "line 2: the line is for"),
    "a job": (b'{"input": {"prompt": "x"}}', "line 1: custom_id, method, url and body must"),
    "another url": (GOOD.replace(b"/v1/comp", b"/v1/imag"), "line 1: url must be one of"),
    "many lines": (jsonl(calls(101)), "line 101: the file has 101 lines, at most 100 are allowed"),
    "a long line": (
        jsonl([call("one", "x" * 50_000)]),
        "line 1: the line is longer than 50,000 bytes",
    ),
    "many problems": (b"no\n" * 50, "; and 40 problems more"),
}


async def test_bad_files_are_refused_at_their_upload(serve: Serve, clients: Clients) -> None:
    client = clients(await serve(batch_max_lines=100, max_body_mb=0.05))
    for name, (data, message) in BAD_FILES.items():
        with pytest.raises(openai.BadRequestError) as refused:
            await client.upload(data)
        assert message in str(refused.value), name
        assert refused.value.param == "file"
    assert [file async for file in client.openai.files.list()] == []


async def test_byte_order_mark_and_crlf_are_accepted(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    data = BOM + jsonl(calls(3)).replace(b"\n", b"\r\n").removesuffix(b"\r\n")
    done = await client.ended(await client.batch(await client.upload(data)))
    assert counts(done) == (3, 3, 0)


async def test_too_large_a_file_is_refused_with_413(
    serve: Serve, clients: Clients, tmp_path: Path
) -> None:
    client = clients(await serve(batch_max_mb=1, batch_dir=tmp_path / "kept"))
    for size in (1_000_001, 3_000_000):
        with pytest.raises(
            openai.APIStatusError, match=r"larger than 1 MB \(BATCH_MAX_MB\)"
        ) as refused:
            await client.upload(b"x" * size)
        assert refused.value.status_code == 413
    assert list((tmp_path / "kept" / "files").iterdir()) == []


async def test_upload_to_a_full_store_is_refused_with_507(serve: Serve, clients: Clients) -> None:
    client = clients(await serve(batch_store_mb=0.002))
    file_id = await client.upload(jsonl(calls(10)))
    with pytest.raises(openai.InternalServerError, match="BATCH_STORE_MB") as refused:
        await client.upload(jsonl(calls(10)))
    assert refused.value.status_code == 507
    await client.openai.files.delete(file_id)
    await client.upload(jsonl(calls(10)))


async def test_invalid_form_gets_an_error_that_names_the_problem(serve: Serve) -> None:  # R53
    server = await serve()
    async with server.client() as http:

        async def post_form(status: int, **options: Any) -> str:
            response = await http.post("/v1/files", **options)
            assert response.status_code == status, response.text
            return str(response.json()["error"]["message"])

        file = {"file": ("a", GOOD)}
        assert "must be multipart/form-data" in await post_form(415, json={})
        assert "purpose must be batch" in await post_form(
            400, files=file, data={"purpose": "vision"}
        )
        assert "purpose must be batch" in await post_form(400, files=file)
        form = {"content-type": "multipart/form-data; boundary=x"}
        incomplete_form = (
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x'
        )
        assert "file must be given" in await post_form(
            400, headers=form, content=incomplete_form + b"--"
        )
        assert "ends too early" in await post_form(400, headers=form, content=incomplete_form)
        assert "is not a form" in await post_form(400, headers=form, content=b"nonsense")
        without_boundary = {"content-type": "multipart/form-data"}
        assert "boundary" in await post_form(400, headers=without_boundary, content=b"x")
        for seconds in ("3599", "2592001", "soon"):
            data = {
                "purpose": "batch",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": seconds,
            }
            assert "expires_after.seconds must be" in await post_form(400, files=file, data=data)


async def test_unknown_ids_are_404(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    missing = f"file-{'0' * 28}"
    for request in (
        client.openai.files.retrieve(missing),
        client.openai.files.content("../../etc/passwd"),
        client.openai.files.delete(missing),
        client.openai.batches.retrieve("batch_no"),
        client.openai.batches.cancel("batch_no"),
        client.batch(missing),
    ):
        with pytest.raises(openai.NotFoundError):
            await request


async def test_lists_are_paged_in_either_order(serve: Serve, clients: Clients) -> None:
    client = clients(await serve())
    files = [await client.upload(GOOD) for _ in range(5)]
    list_files = client.openai.files.list
    assert [file.id async for file in list_files(limit=2)] == files[::-1]
    assert [file.id async for file in list_files(limit=2, order="asc")] == files
    assert [file.id async for file in list_files(after=files[3], order="desc")] == files[2::-1]
    page = await list_files(limit=2, order="asc")
    assert (page.has_more, [file.id for file in page.data]) == (True, files[:2])
    assert (await list_files(limit=5)).has_more is False
    batches = [(await client.ended(await client.batch(each))).id for each in files[:3]]
    assert [each.id async for each in client.openai.batches.list(limit=1)] == batches[::-1]
    assert [each.id async for each in list_files(purpose="batch")] == files[::-1]
    assert len([each async for each in list_files(purpose="batch_output")]) == 3
    for query in ({"limit": "0"}, {"limit": "x"}, {"after": "nothing"}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(query))):
            await client.openai.files.list(extra_query=query)
    # The files are deleted while the list is read.
    async for file in list_files(limit=2):
        await client.openai.files.delete(file.id)
    assert [file async for file in list_files()] == []


async def test_files_expire_after_the_requested_or_default_time(
    serve: Serve, clients: Clients
) -> None:
    client = clients(await serve(batch_retention_s=500))
    after: Any = {"anchor": "created_at", "seconds": 7200}
    file_id = await client.upload(GOOD, expires_after=after)
    done = await client.ended(await client.batch(file_id, output_expires_after=after))
    plain = await client.ended(await client.create(calls(1)))
    lifetimes_s = []
    for each in (file_id, done.output_file_id, plain.input_file_id, plain.output_file_id):
        file = await client.openai.files.retrieve(each or "")
        lifetimes_s.append((file.expires_at or 0) - file.created_at)
    assert lifetimes_s == [7200, 7200, 500, 500]


async def test_files_and_batches_need_a_key(serve: Serve, clients: Clients) -> None:  # R52
    server = await serve(api_keys="secret")
    client_with_wrong_key, client_with_key = (
        clients(server, key="wrong"),
        clients(server, key="secret"),
    )
    for request in (
        client_with_wrong_key.upload(GOOD),
        client_with_wrong_key.openai.batches.retrieve("x"),
    ):
        with pytest.raises(openai.AuthenticationError):
            await request
    await client_with_key.upload(GOOD)


async def test_upload_to_a_failing_disk_is_refused_with_507_and_leaves_no_file(
    serve: Serve, clients: Clients, tmp_path: Path
) -> None:
    client = clients(await serve(batch_dir=tmp_path / "kept"))
    # Not even root can create a file below a path that is a file.
    files, moved_files = tmp_path / "kept" / "files", tmp_path / "kept" / "aside"
    files.rename(moved_files)
    files.write_bytes(b"")
    with pytest.raises(openai.InternalServerError, match="BATCH_DIR does not take it") as refused:
        await client.upload(GOOD)
    assert refused.value.status_code == 507
    files.unlink()
    moved_files.rename(files)
    await client.upload(GOOD)
    await wait_until(lambda: not [path for path in files.iterdir() if path.name.startswith(".")])
