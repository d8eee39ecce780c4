"""The worker as AWS Lambda calls it, with events as the queue's messages come in them."""

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
from handler.blobs.s3 import s3_client
from jobs.sqs.bodies import build_entry
from jobs.sqs.calls import sqs_client
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call, text
from tests.ministack import make_queue

ACCOUNT = "https://sqs.us-east-1.amazonaws.com/123456789012"
RESULTS = "s3://results/here"


class Context:
    """Lambda's, of a function that has so long left."""

    def __init__(self, left_s: float = 60.0) -> None:
        self.left_s = left_s

    def get_remaining_time_in_millis(self) -> int:
        return int(self.left_s * 1000)


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
    found = LambdaWorker(
        BatchSettings(model_path=model, batch_queue_url=url, batch_results=RESULTS)
    )
    yield found
    found.close()


def record(name: str, line: object, receives: int = 1, **more: Any) -> dict[str, Any]:
    """A record as Lambda hands it on."""
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
    found = ResultBucket.from_url(RESULTS).find(result_key("b", custom_id))
    assert found is not None
    line: dict[str, Any] = json.loads(found)
    return line


def in_batch(custom_id: str, prompt: str) -> dict[str, Any]:
    return {"batch": "b", **call(custom_id, prompt)}


def failed(said: dict[str, Any]) -> list[str]:
    return [each["itemIdentifier"] for each in said["batchItemFailures"]]


def test_what_has_no_answer_comes_again_and_nothing_else(worker: LambdaWorker) -> None:
    records = [record("1", in_batch("a", "one")), record("2", "no json")]
    said = worker.answer({"Records": [*records, record("3", in_batch("b", "two"))]}, Context())
    assert said == {"batchItemFailures": []}
    assert text(answer("a")) == "one"
    said = worker.answer({"Records": [record("4", in_batch("c", "crash"))]}, Context())
    assert failed(said) == ["4"]
    assert ResultBucket.from_url(RESULTS).find(result_key("b", "c")) is None
    # Received for the last time: its error is kept, and SQS moves it.
    said = worker.answer({"Records": [record("4", in_batch("c", "crash"), 3)]}, Context())
    assert failed(said) == ["4"]
    assert answer("c")["error"]["code"] == "not_answered"
    # The same message again, and one that is answered already.
    said = worker.answer({"Records": [record("1", in_batch("a", "other"), 2)]}, Context())
    assert failed(said) == []
    assert text(answer("a")) == "one"


def test_a_call_that_has_no_time_left_tells_what_has_ended(worker: LambdaWorker) -> None:
    records = [record("1", in_batch("a", "one")), record("2", in_batch("b", "slow"))]
    said = worker.answer({"Records": records}, Context(left_s=7.0))
    assert failed(said) == ["2"]
    assert text(answer("a")) == "one"


def test_a_body_in_a_bucket(worker: LambdaWorker) -> None:
    long = json.dumps(in_batch("long", "w" * 300_000)).encode()
    message, _ = build_entry(long, 1_000, ResultBucket.from_url(RESULTS))
    attributes = {
        name: {"dataType": each["DataType"], "stringValue": each["StringValue"]}
        for name, each in message["MessageAttributes"].items()
    }
    found = record("1", message["MessageBody"], messageAttributes=attributes)
    gone = json.loads(message["MessageBody"])
    gone[1]["s3Key"] = "gone"
    lost = record("2", gone, messageAttributes=attributes)
    said = worker.answer({"Records": [found, lost]}, Context())
    assert failed(said) == ["2"]
    assert len(text(answer("long"))) == 300_000


def test_the_entry_point(
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
        assert aws_lambda.handler(event, Context()) == {"batchItemFailures": []}
    assert aws_lambda._worker is not None
    aws_lambda._worker.close()
