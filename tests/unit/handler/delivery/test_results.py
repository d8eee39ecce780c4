"""Upload results to buckets: which results, under which key, and the pointer in the output.

The buckets are folders here; the integration tests use a server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from handler.delivery import limits, results
from handler.delivery.blobs import BlobDenied, BlobUnavailable, BlobUnsupported
from handler.delivery.bucket import Bucket
from handler.delivery.results import (
    LINK_EXPIRY_S,
    POINTER_BYTES,
    ResultUploader,
    find_result_pointer,
)
from handler.errors import InvalidRequest
from handler.job.job_handler import JobHandler
from tests.file_blobs import FileBlobs
from tests.unit.handler.conftest import PipelineFactory

SECRET = "Zm9v/s3cr3t"
S3_CONFIG = {
    "accessId": "AKIDEXAMPLE",
    "accessSecret": SECRET,
    "bucketName": "theirs",
    "endpointUrl": "http://127.0.0.1:9",
}
OURS = Bucket(name="ours")
TEXT = {"pieces": ["one ", "two"]}
LONG = {"pieces": ["x" * 2_000] * 3}
CALL = {"openai_route": "/v1/completions", "openai_input": {"prompt": "p", "stream": True}}


class FolderBuckets:
    """Buckets as folders, which record the buckets that were opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[Bucket] = []

    def __call__(self, bucket: Bucket) -> FileBlobs:
        self.opened.append(bucket)
        return FileBlobs(self.folder / bucket.name)

    def read(self, name: str = "theirs") -> dict[str, Any]:
        """Return the decoded objects of a bucket by key."""
        blobs = FileBlobs(self.folder / name)
        return {each.key: orjson.loads(b"".join(blobs.read(each.key))) for each in blobs.list()}


class JobRunner:
    """A job handler, called as the SDK does and as the worker without it."""

    def __init__(self, jobs: JobHandler) -> None:
        self.jobs = jobs
        self.streamed: list[Any] = []

    async def output(self, payload: dict[str, Any], mode: str = "sdk") -> Any:
        if mode == "sdk":
            return await self.jobs.run(payload)
        result = await self.jobs.run_encoded(payload)
        return orjson.loads(result.output) if result.output is not None else {"error": result.error}

    async def listed(self, payload: dict[str, Any], mode: str = "sdk") -> Any:
        """Return a streamed job's result, and keep all that was sent in `streamed`."""
        self.streamed = []
        if mode == "sdk":
            included: list[bool] = []
            kept: list[Any] = []
            async for output in self.jobs.stream(payload, include_in_result=included.append):
                self.streamed.append(output)
                if included.pop():
                    kept.append(output)
                assert not included
            return kept

        async def send_chunk(chunk: bytes) -> None:
            self.streamed.append(orjson.loads(chunk))

        result = await self.jobs.run_encoded(payload, send_chunk=send_chunk, as_list=True)
        if result.output is None:
            return [{"error": result.error}]
        return orjson.loads(result.output)


@pytest.fixture
def folders(tmp_path: Path) -> FolderBuckets:
    return FolderBuckets(tmp_path / "buckets")


@pytest.fixture(params=["sdk", "local"])
def mode(request: pytest.FixtureRequest) -> str:
    """Each of the two kinds of worker."""
    kind: str = request.param
    return kind


def job(prompt: str = "x", *, job_id: str = "abc-u1", **fields: Any) -> dict[str, Any]:
    return {"id": job_id, "input": {"prompt": prompt, "stream": True}, **fields}


# ---- which ----


async def test_job_with_a_bucket_gets_a_pointer(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str
) -> None:
    run = JobRunner(JobHandler(pipeline_of(TEXT), results=ResultUploader(open_bucket=folders)))
    output = await run.output(job(s3Config=S3_CONFIG | {"objectPath": "a/b"}), mode)
    (stored,) = folders.read().values()
    assert stored["choices"][0]["text"] == "one two"
    assert output == {
        "result": {
            "url": (folders.folder / "theirs/a/b/abc-u1.json").as_uri(),
            "bucket": "theirs",
            "key": "a/b/abc-u1.json",
            "bytes": len(orjson.dumps(stored)),
            "expires_s": LINK_EXPIRY_S,
        },
        "id": "abc-u1",
        "model": "scripted",
        "usage": stored["usage"],
        "choices": [{"index": 0, "finish_reason": "stop"}],
    }
    assert stored.keys() >= output.keys() - {"result"}
    assert find_result_pointer(output) == output["result"]
    assert find_result_pointer(stored) is None


async def test_output_is_unchanged_without_a_bucket(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str
) -> None:
    run = JobRunner(
        JobHandler(pipeline_of(TEXT), results=ResultUploader(OURS, 10_000, open_bucket=folders))
    )
    assert (await run.output(job(), mode))["choices"][0]["text"] == "one two"
    assert (await run.output(job(s3Config=None), mode))["choices"][0]["text"] == "one two"
    listed = await run.listed(job(), mode)
    assert listed == run.streamed
    assert listed[-1]["choices"][0]["text"] == "one two"
    assert folders.opened == []


async def test_large_result_goes_to_the_workers_own_bucket(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str
) -> None:
    run = JobRunner(
        JobHandler(pipeline_of(LONG), results=ResultUploader(OURS, 10_000, open_bucket=folders))
    )
    output = await run.output(job(), mode)
    assert output["result"]["bucket"] == "ours"
    assert folders.read("ours")["abc-u1.json"]["choices"][0]["text"] == "x" * 6_000
    # A job's own bucket comes first.
    output = await run.output(job(s3Config=S3_CONFIG), mode)
    assert output["result"]["bucket"] == "theirs"


async def test_results_above_the_platforms_limit_are_uploaded_by_default(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str
) -> None:
    sizes = limits.PayloadLimits(
        run_bytes=POINTER_BYTES + 15_000, runsync_bytes=POINTER_BYTES + 30_000
    )
    results = ResultUploader(OURS, open_bucket=folders, limits=sizes)
    run = JobRunner(JobHandler(pipeline_of(LONG), results=results))
    assert "result" in await run.output(job(), mode)
    assert "choices" in await run.output(job(job_id="sync-abc-u1"), mode)
    assert folders.read("ours").keys() == {"abc-u1.json"}


async def test_bucket_without_a_name_is_the_months(
    pipeline_of: PipelineFactory, folders: FolderBuckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", {"%m-%y": "11-26"}.__getitem__)
    run = JobRunner(
        JobHandler(pipeline_of(TEXT), results=ResultUploader(Bucket(), 0, open_bucket=folders))
    )
    assert (await run.output(job()))["result"]["bucket"] == "11-26"


async def test_pointer_of_an_openai_call_has_openai_keys(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str
) -> None:
    run = JobRunner(JobHandler(pipeline_of(TEXT), results=ResultUploader(open_bucket=folders)))
    job_input: dict[str, Any] = {"openai_route": "/v1/completions", "openai_input": {"prompt": "p"}}
    output = await run.output({"id": "j", "input": job_input, "s3Config": S3_CONFIG}, mode)
    stored = folders.read()["j.json"]
    assert output["usage"] == stored["usage"]
    assert output["choices"] == [{"index": 0, "finish_reason": "stop"}]
    assert output["object"] == "text_completion"
    # A streamed answer is text, so the output has no summary of it.
    output = await run.output({"id": "k", "input": CALL, "s3Config": S3_CONFIG}, mode)
    assert output.keys() == {"result"}
    assert folders.read()["k.json"].endswith("data: [DONE]\n\n")


async def test_openai_client_gets_a_pointer_only_above_the_limit(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str
) -> None:
    results = ResultUploader(OURS, 0, open_bucket=folders)
    run = JobRunner(JobHandler(pipeline_of(LONG), results=results))
    job_input = {"openai_route": "/v1/completions", "openai_input": {"prompt": "p"}}
    call = {"id": "j", "input": job_input}
    assert (await run.output(call, mode))["choices"][0]["text"] == "x" * 6_000
    results.limits = limits.PayloadLimits(run_bytes=POINTER_BYTES + 1_000)
    assert "result" in await run.output(call, mode)


# ---- streamed ----


@pytest.mark.parametrize("job_input", [job()["input"], CALL], ids=["text", "openai"])
async def test_outputs_are_streamed_and_their_list_goes_to_the_bucket(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str, job_input: Any
) -> None:
    run = JobRunner(
        JobHandler(pipeline_of(TEXT), interval_s=0, results=ResultUploader(open_bucket=folders))
    )
    (output,) = await run.listed({"id": "abc-u1", "input": job_input, "s3Config": S3_CONFIG}, mode)
    stored = folders.read()["abc-u1.json"]
    assert run.streamed == [*stored, output]
    assert len(stored) >= 2
    if job_input is not CALL:
        assert output["usage"] == stored[-1]["usage"]
        assert output["choices"][0]["finish_reason"] == "stop"


async def test_list_above_the_limit_is_sent_as_far_as_it_fits(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str
) -> None:
    results = ResultUploader(OURS, 5_000, open_bucket=folders)
    slow = {"pieces": [{"text": "x" * 1_000, "delay_ms": 5}] * 3}
    run = JobRunner(JobHandler(pipeline_of(slow), interval_s=0, results=results))
    listed = await run.listed(job(), mode)
    stored = folders.read("ours")["abc-u1.json"]
    assert run.streamed == [*stored, listed[-1]]
    assert listed[:-1] == stored[: len(listed) - 1]
    assert 1 <= len(listed) - 1 < len(stored)
    assert len(orjson.dumps(listed[:-1])) <= 5_000
    assert find_result_pointer(listed[-1]) is not None


async def test_failure_is_kept_whatever_was_before_it(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str
) -> None:
    broken = {"pieces": ["a", {"error": "no more"}]}
    run = JobRunner(
        JobHandler(pipeline_of(broken), interval_s=0, results=ResultUploader(open_bucket=folders))
    )
    assert await run.listed(job(s3Config=S3_CONFIG), mode) == [{"error": "no more"}]
    assert folders.opened == []


# ---- once ----


async def test_first_result_of_a_job_stays_and_is_pointed_to(
    pipeline_of: PipelineFactory, folders: FolderBuckets, mode: str
) -> None:
    """A worker that was considered lost and its replacement upload the same result."""
    results = ResultUploader(open_bucket=folders)
    first = JobRunner(JobHandler(pipeline_of(TEXT), results=results))
    second = JobRunner(JobHandler(pipeline_of({"pieces": ["three"]}), results=results))
    included = await first.output(job(s3Config=S3_CONFIG), mode)
    assert await second.output(job(s3Config=S3_CONFIG), mode) == included
    assert folders.read()["abc-u1.json"]["choices"][0]["text"] == "one two"
    (listed,) = await second.listed(job(s3Config=S3_CONFIG), mode)
    assert listed == included


async def test_existing_object_that_is_not_a_result_is_an_error(
    pipeline_of: PipelineFactory, folders: FolderBuckets
) -> None:
    folders(Bucket(name="theirs")).write("abc-u1.json", b"something else")
    run = JobRunner(JobHandler(pipeline_of(TEXT), results=ResultUploader(open_bucket=folders)))
    assert (await run.output(job(s3Config=S3_CONFIG)))["error"] == (
        "the result could not be put into the bucket: s3://theirs/abc-u1.json is there already, "
        "and is no result"
    )


async def test_local_jobs_share_one_key_and_the_last_result_stays(
    pipeline_of: PipelineFactory, folders: FolderBuckets
) -> None:
    results = ResultUploader(open_bucket=folders)
    for text in ("first", "second"):
        run = JobRunner(JobHandler(pipeline_of({"pieces": [text]}), results=results))
        for job_id in ("local_test", ""):
            output = await run.output(job(job_id=job_id, s3Config=S3_CONFIG))
            stored = folders.read()[output["result"]["key"]]
            assert stored["choices"][0]["text"] == text


@pytest.mark.parametrize(
    ("job_id", "key"),
    [("a/b c", "a_b_c"), ("../x", ".._x"), ("", "local"), ("x" * 300, "x" * 200)],
)
async def test_key_is_the_jobs_id_as_far_as_a_key_can_be(
    pipeline_of: PipelineFactory, folders: FolderBuckets, job_id: str, key: str
) -> None:
    run = JobRunner(JobHandler(pipeline_of(TEXT), results=ResultUploader(open_bucket=folders)))
    output = await run.output(job(job_id=job_id, s3Config=S3_CONFIG))
    assert output["result"]["key"] == f"{key}.json"


async def test_open_buckets_are_cached_up_to_a_limit(
    pipeline_of: PipelineFactory, folders: FolderBuckets
) -> None:
    run = JobRunner(JobHandler(pipeline_of(TEXT), results=ResultUploader(open_bucket=folders)))
    for number in (0, 0, *range(12), 0, 11):
        job_input = S3_CONFIG | {"bucketName": f"b{number}"}
        await run.output(job(job_id=f"j{number}", s3Config=job_input))
    assert [bucket.name for bucket in folders.opened] == [*(f"b{n}" for n in range(12)), "b0"]


# ---- what goes wrong ----


@pytest.mark.parametrize("shape", ["output", "listed"])
async def test_bad_bucket_is_refused_before_anything_is_generated(
    pipeline_of: PipelineFactory, mode: str, shape: str
) -> None:
    pipeline = pipeline_of(TEXT, load_error="nothing may be asked of it")
    run = JobRunner(JobHandler(pipeline))
    bad = job(s3Config=S3_CONFIG | {"endpointUrl": "here"})
    output = await getattr(run, shape)(bad, mode)
    error = output["error"] if shape == "output" else output[0]["error"]
    assert error.startswith("s3Config.endpointUrl must be an http or https address")
    with pytest.raises(InvalidRequest, match="s3Config"):
        run.jobs.check(bad)


class FailingBlobs(FileBlobs):
    """A bucket that refuses every write, or every conditional write."""

    def __init__(self, folder: Path, error: Exception, *, always: bool = True) -> None:
        super().__init__(folder)
        self.error = error
        self.always = always

    def write(self, key: str, body: bytes, *, only_if_absent: bool = False) -> bool:
        if self.always or only_if_absent:
            raise self.error
        return super().write(key, body)


@pytest.mark.parametrize("shape", ["output", "listed"])
@pytest.mark.parametrize("kind", [BlobDenied, BlobUnavailable, ValueError])
async def test_bucket_that_takes_nothing_fails_the_job_in_one_sentence_without_keys(
    pipeline_of: PipelineFactory, tmp_path: Path, mode: str, shape: str, kind: type[Exception]
) -> None:
    error = kind(f"s3://b/k: AKIDEXAMPLE signed with {SECRET} is wrong")
    results = ResultUploader(open_bucket=lambda bucket: FailingBlobs(tmp_path, error))
    run = JobRunner(JobHandler(pipeline_of(TEXT), results=results))
    output = await getattr(run, shape)(job(s3Config=S3_CONFIG), mode)
    assert (output if shape == "output" else output[-1]) == {
        "error": "the result could not be put into the bucket: s3://b/k: *** signed with *** is "
        "wrong"
    }
    # Of an OpenAI call it is OpenAI's error.
    job_input = {"openai_route": "/v1/completions", "openai_input": {"prompt": "p"}}
    output = await run.output({"id": "j", "input": job_input, "s3Config": S3_CONFIG}, mode)
    assert orjson.loads(output["error"])["error"]["type"] == "result_not_kept_error"


async def test_server_that_knows_no_conditions_is_written_to_without(
    pipeline_of: PipelineFactory, tmp_path: Path
) -> None:
    error = BlobUnsupported("a header you provided implies functionality that is not implemented")
    results = ResultUploader(open_bucket=lambda bucket: FailingBlobs(tmp_path, error, always=False))
    run = JobRunner(JobHandler(pipeline_of(TEXT), results=results))
    output = await run.output(job(s3Config=S3_CONFIG))
    assert orjson.loads((tmp_path / output["result"]["key"]).read_bytes())["usage"]


class HangingBlobs(FileBlobs):
    """A bucket that does not answer until `go` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.called = threading.Event()
        self.go = threading.Event()

    def write(self, key: str, body: bytes, *, only_if_absent: bool = False) -> bool:
        self.called.set()
        self.go.wait(30)
        return super().write(key, body, only_if_absent=only_if_absent)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[HangingBlobs]:
    blobs = HangingBlobs(tmp_path)
    yield blobs
    blobs.go.set()


async def test_upload_blocks_neither_the_loop_nor_a_slot(
    pipeline_of: PipelineFactory, hanging: HangingBlobs, mode: str
) -> None:
    pipeline = pipeline_of(TEXT, slots=1)
    run = JobRunner(
        JobHandler(pipeline, results=ResultUploader(open_bucket=lambda bucket: hanging))
    )
    upload = asyncio.create_task(run.output(job(s3Config=S3_CONFIG), mode))
    await asyncio.to_thread(hanging.called.wait, 10)
    # The only slot is free for the next job, and the loop can process its tokens.
    assert (await run.output(job(), mode))["choices"][0]["text"] == "one two"
    assert not upload.done()
    hanging.go.set()
    assert "result" in await upload


async def test_upload_has_its_time(
    pipeline_of: PipelineFactory, hanging: HangingBlobs, mode: str
) -> None:
    results = ResultUploader(open_bucket=lambda bucket: hanging, upload_timeout_s=0.1)
    run = JobRunner(JobHandler(pipeline_of(TEXT), results=results))
    output = await run.output(job(s3Config=S3_CONFIG), mode)
    assert output["error"] == (
        "the result could not be put into the bucket: s3://theirs/abc-u1.json: it took longer than "
        "0.1 s"
    )


async def test_cancelled_job_does_not_wait_for_its_upload(
    pipeline_of: PipelineFactory, hanging: HangingBlobs
) -> None:
    results = ResultUploader(open_bucket=lambda bucket: hanging)
    upload = asyncio.create_task(
        JobHandler(pipeline_of(TEXT), results=results).run(job(s3Config=S3_CONFIG))
    )
    await asyncio.to_thread(hanging.called.wait, 10)
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload


@pytest.mark.parametrize("choices", [5, "x", {"a": 1}, [1, None], [[]], []])
def test_summary_of_a_foreign_object_in_the_bucket_has_no_wrong_choices(choices: Any) -> None:
    summary = results._summarize({"choices": choices, "usage": {"a": 1}})
    assert summary["usage"] == {"a": 1}
    assert summary.get("choices", []) == []
