"""Features of SQS only: bodies in buckets, receipt handles, FIFO queues, error codes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from moto import mock_aws

from jobs import Job, NewJob, StoreUnavailable
from jobs.sqs.calls import sqs_client
from jobs.sqs.errors import QueueRefused
from jobs.sqs.queue import SqsQueue
from tests.ministack import MiniStack, make_queue, ministack

POINTER = "software.amazon.payloadoffloading.PayloadS3Pointer"


@dataclass
class MemoryBodyStore:
    """A bucket in memory."""

    objects: dict[str, bytes] = field(default_factory=dict)
    bucket: str = "bodies"

    def keep(self, name: str, body: bytes) -> str:
        self.objects[f"in/{name}"] = body
        return f"in/{name}"

    def read(self, bucket: str, key: str) -> bytes:
        if f"{bucket}/{key}" == "others/key":
            return b'"of another sender"'
        if key not in self.objects:
            raise QueueRefused(f"s3://{bucket}/{key} is not there")
        return self.objects[key]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    with ministack(tmp_path_factory.mktemp("ministack")) as stack:
        yield stack


@pytest.fixture
def url(server: MiniStack, request: pytest.FixtureRequest) -> str:
    return make_queue(server.client(), f"q{abs(hash(request.node.name))}")


@pytest.fixture
def bodies() -> MemoryBodyStore:
    return MemoryBodyStore()


@pytest.fixture
async def queue(server: MiniStack, bodies: MemoryBodyStore) -> AsyncIterator[SqsQueue]:
    queue = SqsQueue(server.client(), None, bodies)
    yield queue
    queue.close()


async def take(queue: SqsQueue, url: str, lease_s: float = 60, wait_s: float = 5) -> list[Job]:
    return await queue.receive(url, "w", lease_s=lease_s, wait_s=wait_s, limit=10)


# ---- long bodies ----


async def test_long_body_is_sent_as_a_pointer_in_the_format_of_amazon(
    server: MiniStack, queue: SqsQueue, bodies: MemoryBodyStore, url: str
) -> None:
    inline, long = b'"' + b"x" * 262_142 + b'"', b'"' + b"x" * 262_143 + b'"'
    await queue.enqueue(NewJob(endpoint=url, input=inline))
    assert bodies.objects == {}
    await queue.enqueue(NewJob(endpoint=url, input=long))
    key = f"in/{hashlib.sha256(long).hexdigest()}"
    assert bodies.objects == {key: long}
    answer = server.client().receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0, MessageAttributeNames=["All"]
    )
    (message,) = (each for each in answer["Messages"] if "MessageAttributes" in each)
    assert json.loads(message["Body"]) == [POINTER, {"s3BucketName": "bodies", "s3Key": key}]
    size = message["MessageAttributes"]["ExtendedPayloadSize"]
    assert (size["DataType"], size["StringValue"]) == ("Number", "262145")
    received_jobs: list[Job] = []
    while len(received_jobs) < 2:
        received_jobs += await take(queue, url)
    assert {job.input for job in received_jobs} == {inline, long}
    for job in received_jobs:
        assert await queue.ack(job.id, job.attempt)
    # The body stays, for a message that is delivered again.
    assert bodies.objects == {key: long}


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [
        (POINTER, "ExtendedPayloadSize"),
        ("com.amazon.sqs.javamessaging.MessageS3Pointer", "SQSLargePayloadSize"),
    ],
)
async def test_pointers_of_other_senders_are_resolved(
    server: MiniStack, queue: SqsQueue, url: str, kind: str, attribute: str
) -> None:
    server.client().send_message(
        QueueUrl=url,
        MessageBody=json.dumps([kind, {"s3BucketName": "others", "s3Key": "key"}]),
        MessageAttributes={attribute: {"DataType": "Number", "StringValue": "300000"}},
    )
    (job,) = await take(queue, url)
    assert job.input == b'"of another sender"'


@pytest.mark.parametrize("body", ["[]", "no json", json.dumps([POINTER, {"s3Key": "gone"}])])
async def test_invalid_pointer_does_not_block_other_messages(
    server: MiniStack,
    queue: SqsQueue,
    url: str,
    body: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = server.client()
    attribute = {"ExtendedPayloadSize": {"DataType": "Number", "StringValue": "1"}}
    client.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attribute)
    client.send_message(QueueUrl=url, MessageBody="1")
    (job,) = await take(queue, url)
    assert job.input == b"1"
    assert "cannot be read" in caplog.text


async def test_long_body_is_refused_without_a_bucket(server: MiniStack, url: str) -> None:
    queue = SqsQueue(server.client())
    with pytest.raises(QueueRefused, match="262,144 bytes without a bucket, this one has 300,000"):
        await queue.enqueue(NewJob(endpoint=url, input=b"1" * 300_000))
    queue.close()


async def test_batch_of_long_bodies_respects_the_size_limit(queue: SqsQueue, url: str) -> None:
    """All messages of a request together have the size limit of one message."""
    queued_jobs = await asyncio.gather(
        *(queue.enqueue(NewJob(endpoint=url, input=b"%d" % n * 250_000)) for n in range(1, 10))
    )
    assert len({job.id for job in queued_jobs}) == 9


# ---- leases ----


async def test_message_delivered_twice_is_one_job(server: MiniStack, url: str) -> None:
    """A standard queue may deliver a message that is already leased."""
    client = server.client()
    queue = SqsQueue(client)
    await queue.enqueue(NewJob(endpoint=url, input=b"1"))
    (job,) = await take(queue, url)
    lease = queue._leases.get(job.id, job.attempt)
    assert lease is not None
    first_handle = lease.receipt_handle
    # Make the message visible without the driver, so that SQS delivers it while it is leased.
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=first_handle, VisibilityTimeout=0)
    assert await take(queue, url, wait_s=0) == []
    assert lease.receipt_handle != first_handle
    # Only the handle of the second delivery deletes the message.
    assert await queue.ack(job.id, job.attempt)
    assert await take(queue, url, wait_s=0) == []
    queue.close()


async def test_receipt_handle_of_an_earlier_receive_is_invalid(server: MiniStack, url: str) -> None:
    """The clock of the first process stands still: only its handle is evidence of the expiry."""
    slow = SqsQueue(server.client(), monotonic=lambda: 0.0)
    other = SqsQueue(server.client())
    await slow.enqueue(NewJob(endpoint=url, input=b"1"))
    (job,) = await take(slow, url, lease_s=1)
    (second,) = await take(other, url)
    assert second.id == job.id
    assert not await slow.extend(job.id, job.attempt, 100)
    assert not await slow.ack(job.id, job.attempt)
    assert not await slow.nack(job.id, job.attempt)
    assert await take(other, url, wait_s=0) == []
    assert await other.ack(second.id, second.attempt)
    slow.close()
    other.close()


async def test_lost_job_is_delivered_after_a_growing_delay(server: MiniStack, url: str) -> None:
    queue = SqsQueue(server.client(), retry_delay_s=1)
    await queue.enqueue(NewJob(endpoint=url, input=b"1"))
    (job,) = await take(queue, url)
    assert await queue.nack(job.id, job.attempt, "the engine died")
    assert await take(queue, url, wait_s=0) == []
    assert [each.attempt for each in await take(queue, url)] == [2]
    queue.close()


# ---- FIFO ----


async def test_fifo_queue_deduplicates_and_does_not_block(
    server: MiniStack, queue: SqsQueue, url: str
) -> None:
    fifo = make_queue(server.client(), f"{url.rpartition('/')[2]}.fifo")
    queued_jobs = [
        await queue.enqueue(NewJob(endpoint=fifo, input=b"%d" % n)) for n in (1, 2, 3, 2)
    ]
    assert queued_jobs[3].id == queued_jobs[1].id
    assert [job.input for job in await take(queue, fifo)] == [b"1", b"2", b"3"]


# ---- errors ----


async def test_entries_are_sent_in_requests_of_ten(
    server: MiniStack, queue: SqsQueue, url: str
) -> None:
    entry_counts: list[int] = []
    client = server.client()
    client.meta.events.register(
        "provide-client-params.sqs.SendMessageBatch",
        lambda params, **_: entry_counts.append(len(params["Entries"])),
    )
    batching_queue = SqsQueue(client)
    await batching_queue.enqueue(NewJob(endpoint=url, input=b"1"))
    entry_counts.clear()
    await asyncio.gather(
        *(batching_queue.enqueue(NewJob(endpoint=url, input=b"%d" % n)) for n in range(100))
    )
    assert sum(entry_counts) == 100
    assert len(entry_counts) == 10
    batching_queue.close()


async def test_job_with_other_fields_than_its_input_is_refused(queue: SqsQueue, url: str) -> None:
    with pytest.raises(ValueError, match="a job's input and nothing else"):
        await queue.enqueue(NewJob(endpoint=url, input=b"1", webhook="http://127.0.0.1/"))
    await queue.enqueue(NewJob(endpoint=url, input=b"1"))
    (job,) = await take(queue, url)
    with pytest.raises(ValueError, match="SQS does not store results"):
        await queue.ack(job.id, job.attempt, output=b"1")


async def test_errors_are_classified_as_permanent_or_temporary(
    server: MiniStack, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    credentials = {
        "aws_access_key_id": "x",
        "aws_secret_access_key": "x",
        "region_name": "us-east-1",
    }
    cases: list[tuple[Any, str, type[Exception], str]] = [
        (server.client(), f"{url}x", QueueRefused, "NonExistentQueue"),
        (server.client(key="nobody"), url, QueueRefused, "InvalidClientTokenId"),
        (
            sqs_client("http://127.0.0.1:9/q", **credentials),
            url,
            StoreUnavailable,
            "Could not connect",
        ),
    ]
    for client, queue_url, kind, text in cases:
        queue = SqsQueue(client)
        for act in (
            queue.enqueue(NewJob(endpoint=queue_url, input=b"1")),
            queue.receive(queue_url, "w", lease_s=1),
            queue.stats(queue_url),
        ):
            with pytest.raises(kind, match=text):
                await act
        queue.close()


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/q", "eu-central-1"),
        ("https://us-gov-west-1.queue.amazonaws.com/123456789012/q", "us-gov-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/q", "cn-north-1"),
    ],
)
def test_client_uses_the_region_of_the_queue_url(url: str, region: str) -> None:
    with mock_aws():
        assert sqs_client(url).meta.region_name == region


@pytest.mark.parametrize(
    "url", ["", "queue", "s3://bucket/x", "https://sqs.amazonaws.com", "http:///q"]
)
def test_url_that_is_not_of_a_queue_is_refused(url: str) -> None:
    with pytest.raises(QueueRefused, match="is not the URL of a queue"):
        sqs_client(url)
