"""The worker for AWS Lambda, called with SQS events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from batch.aws_lambda import LambdaWorker
from batch.queue.message import result_key
from batch.queue.result_bucket import ResultBucket
from batch.settings import BatchSettings
from handler.delivery.blobs.s3 import s3_client
from jobs.sqs.bodies import build_entry
from jobs.sqs.calls import sqs_client
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call, text
from tests.ministack import make_queue

ACCOUNT = "https://sqs.us-east-1.amazonaws.com/123456789012"
RESULTS = "s3://results/here"


class FakeContext:
    """A Lambda context with a fixed remaining time."""

    def __init__(self, remaining_s: float = 60.0) -> None:
        self.remaining_s = remaining_s

    def get_remaining_time_in_millis(self) -> int:
        return int(self.remaining_s * 1000)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        s3_client().create_bucket(Bucket="results")
        yield


@pytest.fixture
def worker(
    aws: None, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LambdaWorker]:
    crash: dict[str, Any] = {"when": "crash", "pieces": [{"signal": "SIGSEGV"}]}
    slow: dict[str, Any] = {"when": "slow", "delay_ms": 60_000}
    model = script(crash, slow, {}, slots=4)
    url = make_queue(sqs_client(f"{ACCOUNT}/queue"), "queue", max_receives=3)
    value = LambdaWorker(
        BatchSettings(model_path=model, batch_queue_url=url, batch_results=RESULTS)
    )
    yield value
    value.close()


def record(name: str, line: object, receives: int = 1, **more: Any) -> dict[str, Any]:
    """Return an SQS record of a Lambda event."""
    return {
        "messageId": name,
        "receiptHandle": "handle",
        "body": line if isinstance(line, str) else json.dumps(line),
        "attributes": {
            "ApproximateReceiveCount": str(receives),
            "SentTimestamp": "1700000000000",
            "SenderId": "x",
            "ApproximateFirstReceiveTimestamp": "1700000000001",
        },
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:queue",
        "awsRegion": "us-east-1",
        **more,
    }


def answer(custom_id: str) -> dict[str, Any]:
    value = ResultBucket.from_url(RESULTS).find(result_key("b", custom_id))
    assert value is not None
    line: dict[str, Any] = json.loads(value)
    return line


def in_batch(custom_id: str, prompt: str) -> dict[str, Any]:
    return {"batch": "b", **call(custom_id, prompt)}


def failed(response: dict[str, Any]) -> list[str]:
    return [each["itemIdentifier"] for each in response["batchItemFailures"]]


def test_only_messages_without_an_answer_are_redelivered(worker: LambdaWorker) -> None:
    records = [record("1", in_batch("a", "one")), record("2", "no json")]
    response = worker.answer(
        {"Records": [*records, record("3", in_batch("b", "two"))]}, FakeContext()
    )
    assert response == {"batchItemFailures": []}
    assert text(answer("a")) == "one"
    response = worker.answer({"Records": [record("4", in_batch("c", "crash"))]}, FakeContext())
    assert failed(response) == ["4"]
    assert ResultBucket.from_url(RESULTS).find(result_key("b", "c")) is None
    # At the last receive, its error is stored and SQS moves the message.
    response = worker.answer({"Records": [record("4", in_batch("c", "crash"), 3)]}, FakeContext())
    assert failed(response) == ["4"]
    assert answer("c")["error"]["code"] == "not_answered"
    # The same message again, which is already answered.
    response = worker.answer({"Records": [record("1", in_batch("a", "other"), 2)]}, FakeContext())
    assert failed(response) == []
    assert text(answer("a")) == "one"


def test_call_reports_finished_messages_when_its_time_is_up(worker: LambdaWorker) -> None:
    records = [record("1", in_batch("a", "one")), record("2", in_batch("b", "slow"))]
    response = worker.answer({"Records": records}, FakeContext(remaining_s=7.0))
    assert failed(response) == ["2"]
    assert text(answer("a")) == "one"


def test_body_is_read_from_a_bucket(worker: LambdaWorker) -> None:
    long = json.dumps(in_batch("long", "w" * 300_000)).encode()
    message, _ = build_entry(long, 1_000, ResultBucket.from_url(RESULTS))
    attributes = {
        name: {"dataType": each["DataType"], "stringValue": each["StringValue"]}
        for name, each in message["MessageAttributes"].items()
    }
    value = record("1", message["MessageBody"], messageAttributes=attributes)
    pointer = json.loads(message["MessageBody"])
    pointer[1]["s3Key"] = "gone"
    unreadable_record = record("2", pointer, messageAttributes=attributes)
    response = worker.answer({"Records": [value, unreadable_record]}, FakeContext())
    assert failed(response) == ["2"]
    assert len(text(answer("long"))) == 300_000


def test_handler_answers_an_event(
    aws: None, script: ScriptFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from batch import aws_lambda

    url = make_queue(sqs_client(f"{ACCOUNT}/other"), "other")
    for name, value in (
        ("MODEL_PATH", str(script({}, slots=4))),
        ("BATCH_QUEUE_URL", url),
        ("BATCH_RESULTS", RESULTS),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(aws_lambda, "configure_logging", lambda *_, **__: None)
    monkeypatch.setattr(aws_lambda, "_worker", None)
    for number in "12":
        event = {"Records": [record(number, in_batch(number, "one"))]}
        assert aws_lambda.handler(event, FakeContext()) == {"batchItemFailures": []}
    assert aws_lambda._worker is not None
    aws_lambda._worker.close()
