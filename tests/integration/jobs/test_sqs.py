"""What SQS has and other queues have not: bodies in buckets, handles, FIFO, error codes."""

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
class Memory:
    """A bucket in memory."""

    kept: dict[str, bytes] = field(default_factory=dict)
    bucket: str = "bodies"

    def keep(self, name: str, body: bytes) -> str:
        self.kept[f"in/{name}"] = body
        return f"in/{name}"

    def read(self, bucket: str, key: str) -> bytes:
        if f"{bucket}/{key}" == "others/key":
            return b'"of another sender"'
        if key not in self.kept:
            raise QueueRefused(f"s3://{bucket}/{key} is not there")
        return self.kept[key]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    with ministack(tmp_path_factory.mktemp("ministack")) as found:
        yield found


@pytest.fixture
def url(server: MiniStack, request: pytest.FixtureRequest) -> str:
    return make_queue(server.client(), f"q{abs(hash(request.node.name))}")


@pytest.fixture
def bodies() -> Memory:
    return Memory()


@pytest.fixture
async def queue(server: MiniStack, bodies: Memory) -> AsyncIterator[SqsQueue]:
    found = SqsQueue(server.client(), None, bodies)
    yield found
    found.close()


async def take(queue: SqsQueue, url: str, lease_s: float = 60, wait_s: float = 5) -> list[Job]:
    return await queue.receive(url, "w", lease_s=lease_s, wait_s=wait_s, limit=10)


# ---- long bodies ----


async def test_a_long_body_is_a_pointer_as_amazon_s_clients_write_it(
    server: MiniStack, queue: SqsQueue, bodies: Memory, url: str
) -> None:
    inline, long = b'"' + b"x" * 262_142 + b'"', b'"' + b"x" * 262_143 + b'"'
    await queue.enqueue(NewJob(endpoint=url, input=inline))
    assert bodies.kept == {}
    await queue.enqueue(NewJob(endpoint=url, input=long))
    key = f"in/{hashlib.sha256(long).hexdigest()}"
    assert bodies.kept == {key: long}
    said = server.client().receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0, MessageAttributeNames=["All"]
    )
    (message,) = (each for each in said["Messages"] if "MessageAttributes" in each)
    assert json.loads(message["Body"]) == [POINTER, {"s3BucketName": "bodies", "s3Key": key}]
    size = message["MessageAttributes"]["ExtendedPayloadSize"]
    assert (size["DataType"], size["StringValue"]) == ("Number", "262145")
    taken: list[Job] = []
    while len(taken) < 2:
        taken += await take(queue, url)
    assert {job.input for job in taken} == {inline, long}
    for job in taken:
        assert await queue.ack(job.id, job.attempt)
    # Whoever has the message a second time still finds it.
    assert bodies.kept == {key: long}


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [
        (POINTER, "ExtendedPayloadSize"),
        ("com.amazon.sqs.javamessaging.MessageS3Pointer", "SQSLargePayloadSize"),
    ],
)
async def test_pointers_of_other_senders_are_followed(
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
async def test_a_pointer_that_leads_nowhere_holds_up_nobody(
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


async def test_a_long_body_needs_a_bucket(server: MiniStack, url: str) -> None:
    queue = SqsQueue(server.client())
    with pytest.raises(QueueRefused, match="262,144 bytes without a bucket, this one has 300,000"):
        await queue.enqueue(NewJob(endpoint=url, input=b"1" * 300_000))
    queue.close()


async def test_ten_long_bodies_do_not_share_a_request(queue: SqsQueue, url: str) -> None:
    """A request may have as many bytes as one message."""
    sent = await asyncio.gather(
        *(queue.enqueue(NewJob(endpoint=url, input=b"%d" % n * 250_000)) for n in range(1, 10))
    )
    assert len({job.id for job in sent}) == 9


# ---- leases ----


async def test_a_message_that_comes_twice_is_one_job(server: MiniStack, url: str) -> None:
    """As on a standard queue, whose servers may not all know yet that it is given out."""
    client = server.client()
    queue = SqsQueue(client)
    await queue.enqueue(NewJob(endpoint=url, input=b"1"))
    (job,) = await take(queue, url)
    given = queue._leases.get(job.id, job.attempt)
    assert given is not None
    first = given.receipt_handle
    # Shown again behind the driver's back: it is given out while the driver has it.
    client.change_message_visibility(QueueUrl=url, ReceiptHandle=first, VisibilityTimeout=0)
    assert await take(queue, url, wait_s=0) == []
    assert given.receipt_handle != first
    # The handle of the second delivery is the one that deletes.
    assert await queue.ack(job.id, job.attempt)
    assert await take(queue, url, wait_s=0) == []
    queue.close()


async def test_a_handle_of_an_earlier_receive_deletes_nothing(server: MiniStack, url: str) -> None:
    """Two processes: the first one's clock has stood still, so only its handle can tell."""
    slow = SqsQueue(server.client(), monotonic=lambda: 0.0)
    other = SqsQueue(server.client())
    await slow.enqueue(NewJob(endpoint=url, input=b"1"))
    (job,) = await take(slow, url, lease_s=1)
    (again,) = await take(other, url)
    assert again.id == job.id
    assert not await slow.extend(job.id, job.attempt, 100)
    assert not await slow.ack(job.id, job.attempt)
    assert not await slow.nack(job.id, job.attempt)
    assert await take(other, url, wait_s=0) == []
    assert await other.ack(again.id, again.attempt)
    slow.close()
    other.close()


async def test_what_was_lost_waits_longer_each_time(server: MiniStack, url: str) -> None:
    queue = SqsQueue(server.client(), retry_delay_s=1)
    await queue.enqueue(NewJob(endpoint=url, input=b"1"))
    (job,) = await take(queue, url)
    assert await queue.nack(job.id, job.attempt, "the engine died")
    assert await take(queue, url, wait_s=0) == []
    assert [each.attempt for each in await take(queue, url)] == [2]
    queue.close()


# ---- FIFO ----


async def test_in_a_fifo_queue_none_waits_for_another_and_none_is_sent_twice(
    server: MiniStack, queue: SqsQueue, url: str
) -> None:
    fifo = make_queue(server.client(), f"{url.rpartition('/')[2]}.fifo")
    sent = [await queue.enqueue(NewJob(endpoint=fifo, input=b"%d" % n)) for n in (1, 2, 3, 2)]
    assert sent[3].id == sent[1].id
    assert [job.input for job in await take(queue, fifo)] == [b"1", b"2", b"3"]


# ---- errors ----


async def test_requests_of_ten(server: MiniStack, queue: SqsQueue, url: str) -> None:
    asked: list[int] = []
    client = server.client()
    client.meta.events.register(
        "provide-client-params.sqs.SendMessageBatch",
        lambda params, **_: asked.append(len(params["Entries"])),
    )
    gathering = SqsQueue(client)
    await gathering.enqueue(NewJob(endpoint=url, input=b"1"))
    asked.clear()
    await asyncio.gather(
        *(gathering.enqueue(NewJob(endpoint=url, input=b"%d" % n)) for n in range(100))
    )
    assert sum(asked) == 100
    assert len(asked) == 10
    gathering.close()


async def test_a_message_carries_an_input_and_nothing_else(queue: SqsQueue, url: str) -> None:
    with pytest.raises(ValueError, match="a job's input and nothing else"):
        await queue.enqueue(NewJob(endpoint=url, input=b"1", webhook="http://127.0.0.1/"))
    await queue.enqueue(NewJob(endpoint=url, input=b"1"))
    (job,) = await take(queue, url)
    with pytest.raises(ValueError, match="no place for the ends of jobs"):
        await queue.ack(job.id, job.attempt, output=b"1")


async def test_whose_fault_it_is(
    server: MiniStack, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    given = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    cases: list[tuple[Any, str, type[Exception], str]] = [
        (server.client(), f"{url}x", QueueRefused, "NonExistentQueue"),
        (server.client(key="nobody"), url, QueueRefused, "InvalidClientTokenId"),
        (sqs_client("http://127.0.0.1:9/q", **given), url, StoreUnavailable, "Could not connect"),
    ]
    for client, asked, kind, said in cases:
        queue = SqsQueue(client)
        for act in (
            queue.enqueue(NewJob(endpoint=asked, input=b"1")),
            queue.receive(asked, "w", lease_s=1),
            queue.stats(asked),
            queue.list_dead_letters(asked),
        ):
            with pytest.raises(kind, match=said):
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
def test_a_queue_s_region_is_in_its_url(url: str, region: str) -> None:
    with mock_aws():
        assert sqs_client(url).meta.region_name == region


@pytest.mark.parametrize(
    "url", ["", "queue", "s3://bucket/x", "https://sqs.amazonaws.com", "http:///q"]
)
def test_what_is_no_queue_s_url(url: str) -> None:
    with pytest.raises(QueueRefused, match="is not the URL of a queue"):
        sqs_client(url)
