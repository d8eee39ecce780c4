"""Workers answer a batch through SQS and S3, and kills of workers lose no line.

The servers are real, and the bucket keeps every version of an object: a result that was written
twice has two versions.
"""

from __future__ import annotations

import json
import random
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch.cli import submit, worker
from tests.acceptance.cloud import BUCKET, LIMIT_S, Cloud
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call, read, text, write
from tests.ministack import MiniStack, make_queue, ministack
from tests.seaweed import READER, Seaweed, seaweed

WORKERS = 2


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MiniStack, Seaweed]]:
    with (
        ministack(tmp_path_factory.mktemp("ministack")) as queues,
        seaweed(tmp_path_factory.mktemp("seaweed")) as buckets,
    ):
        client = buckets.client()
        client.create_bucket(Bucket=BUCKET)
        versioned = {"Status": "Enabled"}
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=versioned)
        yield queues, buckets


@pytest.fixture
def model(script: ScriptFactory) -> Path:
    return script({"when": "fails", "pieces": [{"error": "it was asked to"}]}, {}, slots=4)


@pytest.fixture
def cloud(servers: tuple[MiniStack, Seaweed], model: Path, request: pytest.FixtureRequest) -> Cloud:
    name = f"t{abs(hash(request.node.name))}"
    return Cloud(*servers, model, name)


def lines(count: int) -> Iterator[dict[str, Any]]:
    return (call(f"id {n}", f"p {n}") for n in range(count))


def test_batch_is_submitted_answered_and_collected(cloud: Cloud, tmp_path: Path) -> None:
    input_file = write(tmp_path / "in.jsonl", [*lines(6), call("bad", "it fails")])
    url, out = cloud.queue(max_receives=3), tmp_path / "out.jsonl"
    options = ["--results", cloud.results]
    sent = cloud.run("submit", "-i", input_file, "--queue-url", url, *options, "--batch", "b")
    assert (sent.returncode, sent.stderr.splitlines()[-1]) == (0, "7 of 7 lines sent")
    unfinished = cloud.collect("b", out)
    assert unfinished.returncode == 3
    assert unfinished.stderr.startswith("7 of 7 lines have no answer yet: id 0, id 1, id 2, ")
    assert not out.exists()
    cloud.answer_all(url)
    result = cloud.run("collect", *options, "--batch", "b", "-o", out, "--wait")
    assert result.returncode == 1, result.stderr
    assert [line["custom_id"] for line in read(out)] == [f"id {n}" for n in range(6)]
    assert [text(line) for line in read(out)] == [f"p {n}" for n in range(6)]
    (failed,) = read(tmp_path / "out.errors.jsonl")
    assert failed["custom_id"] == "bad"
    assert cloud.count_messages(url) == (0, 0)
    repeated = cloud.collect("b", out)
    assert repeated.returncode == 2
    assert repeated.stderr == f"{out} exists already; --force replaces it\n"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_lines_have_one_answer_each_when_workers_are_killed(
    script: ScriptFactory, cloud: Cloud, tmp_path: Path, scale: int
) -> None:
    count, kills = (40, 1) if scale == 1 else (2_000, 60)
    slow = replace(cloud, model=script({"delay_ms": 30}, slots=4))
    input_file = write(tmp_path / "in.jsonl", lines(count))
    url = slow.queue()
    batch = slow.submit(input_file, url)
    rng = random.Random(count)
    killed = 0
    with ExitStack() as stack:
        workers = [stack.enter_context(slow.worker(url)) for _ in range(WORKERS)]
        while killed < kills:
            answered = slow.count_answered(batch)
            slow.wait_for(batch, answered + (count - answered) // (2 * (kills - killed) + 1))
            position = rng.randrange(WORKERS)
            workers[position].send_signal(signal.SIGKILL)
            workers[position].wait(LIMIT_S)
            killed += 1
            workers[position] = stack.enter_context(slow.worker(url))
        result = slow.collect(batch, tmp_path / "out.jsonl", "--wait")
        # Answered messages of killed workers that were not deleted return when their lease expires.
        slow.wait_until_empty(url)
        for process in workers:
            process.send_signal(signal.SIGTERM)
        stderrs = [process.communicate(timeout=LIMIT_S)[1] for process in workers]
    assert result.returncode == 0, result.stderr
    # The last worker may still be starting, and then has no handler for the signal.
    assert {process.returncode for process in workers} <= {0, -signal.SIGTERM}, stderrs
    output = read(tmp_path / "out.jsonl")
    assert [line["custom_id"] for line in output] == [f"id {n}" for n in range(count)]
    assert [text(line) for line in output] == [f"p {n}" for n in range(count)]
    versions = slow.keys(f"{batch}/results/")
    assert len(versions) == len(set(versions)) == count


@pytest.mark.long
def test_signal_lets_running_messages_finish_and_releases_the_rest(
    script: ScriptFactory, cloud: Cloud, tmp_path: Path
) -> None:
    slow = replace(cloud, model=script({"delay_ms": 100}, slots=2))
    url = slow.queue()
    batch = slow.submit(write(tmp_path / "in.jsonl", lines(60)), url)
    # A lease so long that a message which is not released would stay leased.
    with slow.worker(url, BATCH_LEASE_S="600", BATCH_AT_ONCE="10") as process:
        slow.wait_for(batch, 6)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, stderr
    answered = slow.count_answered(batch)
    assert re.search(r"stopping: waiting for \d+ messages under way, up to 600 s; Ctrl-C", stderr)
    assert f"stopped by SIGTERM\n{answered} messages answered" in stderr
    assert 6 <= answered < 60
    # All other messages are visible to the next worker immediately.
    assert slow.count_messages(url) == (60 - answered, 0)


@pytest.mark.long
def test_signal_while_the_model_loads_stops_the_worker(script: ScriptFactory, cloud: Cloud) -> None:
    loading = replace(cloud, model=script({"text": "no"}, load_ms=60_000))
    with loading.worker(loading.queue()) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("loading ")
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr.splitlines()[0]) == (0, "stopped by SIGTERM")


@pytest.mark.long
def test_message_that_kills_the_engine_gets_an_error_and_goes_to_the_dead_letter_queue(
    script: ScriptFactory, cloud: Cloud, tmp_path: Path
) -> None:
    poison = {"when": "poison", "pieces": [{"signal": "SIGSEGV"}]}
    deadly = replace(cloud, model=script(poison, {}, slots=4))
    url, out = deadly.queue(max_receives=3), tmp_path / "out.jsonl"
    batch = deadly.submit(write(tmp_path / "in.jsonl", [call("a", "poison")]), url)
    with deadly.worker(url) as process:
        result = deadly.collect(batch, out, "--wait")
        deadly.wait_for_dead_letters(url, 1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert result.returncode == 1, result.stderr
    (failed,) = read(tmp_path / "out.errors.jsonl")
    assert failed["custom_id"] == "a"
    assert failed["response"]["status_code"] == 500
    assert deadly.count_messages(url) == (0, 0)


@pytest.mark.long
def test_other_messages_are_answered_when_one_kills_the_engine(
    script: ScriptFactory, cloud: Cloud, tmp_path: Path
) -> None:
    poison = {"when": "poison", "pieces": [{"signal": "SIGSEGV"}]}
    # Answers that take a while are still running when the engine crashes.
    deadly = replace(cloud, model=script(poison, {"delay_ms": 200}, slots=4))
    url, out = deadly.queue(max_receives=4), tmp_path / "out.jsonl"
    batch = deadly.submit(write(tmp_path / "in.jsonl", [call("a", "poison"), *lines(7)]), url)
    with deadly.worker(url) as process:
        collected = deadly.collect(batch, out, "--wait")
        deadly.wait_for_dead_letters(url, 1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert collected.returncode == 1, collected.stderr
    assert [text(line) for line in read(out)] == [f"p {n}" for n in range(7)]
    (failed,) = read(tmp_path / "out.errors.jsonl")
    assert failed["custom_id"] == "a"


@pytest.mark.long
def test_message_that_killed_all_its_workers_gets_an_error(cloud: Cloud, tmp_path: Path) -> None:
    url, out = cloud.queue(max_receives=3), tmp_path / "out.jsonl"
    batch = cloud.submit(write(tmp_path / "in.jsonl", [call("a")]), url)
    client = cloud.queues.client()
    for _ in range(2):
        client.receive_message(QueueUrl=url, VisibilityTimeout=0)
    cloud.answer_all(url)
    cloud.wait_for_dead_letters(url, 1)
    assert cloud.collect(batch, out).returncode == 1
    (failed,) = read(tmp_path / "out.errors.jsonl")
    problem = "the message was received 2 times and never answered"
    assert failed["error"] == {"code": "not_answered", "message": problem}


@pytest.mark.long
def test_lines_sent_in_two_runs_have_one_answer_each(cloud: Cloud, tmp_path: Path) -> None:
    input_file, out = write(tmp_path / "in.jsonl", lines(12)), tmp_path / "out.jsonl"
    url = cloud.queue()
    batch = cloud.submit(input_file, url)
    # The second submit finds that all lines were sent.
    assert cloud.submit(input_file, url) == batch
    assert cloud.count_messages(url) == (12, 0)
    assert cloud.submit(input_file, url, "--again") == batch
    assert cloud.count_messages(url) == (24, 0)
    cloud.answer_all(url)
    versions = cloud.keys(f"{batch}/results/")
    assert len(versions) == len(set(versions)) == 12
    assert cloud.count_messages(url) == (0, 0)
    # Lines with an answer are not sent again.
    cloud.submit(input_file, url, "--again")
    assert cloud.count_messages(url) == (0, 0)
    assert cloud.collect(batch, out).returncode == 0
    other = write(tmp_path / "other.jsonl", lines(3))
    words = ["--queue-url", url, "--results", cloud.results, "--batch", batch]
    result = cloud.run_in_process(submit, "-i", other, *words)
    assert result.returncode == 2
    assert result.stderr.endswith("belongs to another input; choose another --batch\n")


@pytest.mark.long
def test_killed_submit_resumes(cloud: Cloud, tmp_path: Path) -> None:
    input_file, url = write(tmp_path / "in.jsonl", lines(600)), cloud.queue()
    words = ["--queue-url", url, "--results", cloud.results]
    killed = cloud.run("submit", "-i", input_file, *words, FAILPOINT="sent-noted:1")
    assert killed.returncode == -signal.SIGKILL
    assert cloud.count_messages(url) == (500, 0)
    resumed = cloud.run_in_process(submit, "-i", input_file, *words)
    assert resumed.returncode == 0
    assert "600 lines, 500 sent already" in resumed.stderr
    assert cloud.count_messages(url) == (600, 0)


@pytest.mark.long
def test_a_fifo_queue_and_long_lines(cloud: Cloud, tmp_path: Path) -> None:
    """A body above the limit travels through the bucket, as Amazon's extended clients do it."""
    input_file = write(tmp_path / "in.jsonl", [call("long", "w" * 300_000), call("b", "two")])
    url, out = cloud.queue(kind=".fifo"), tmp_path / "out.jsonl"
    batch = cloud.submit(input_file, url)
    # A FIFO queue drops duplicates for five minutes.
    cloud.submit(input_file, url, "--again")
    assert cloud.count_messages(url) == (2, 0)
    (body,) = cloud.keys("bodies/")
    cloud.answer_all(url)
    assert cloud.collect(batch, out).returncode == 0
    assert [line["custom_id"] for line in read(out)] == ["long", "b"]
    assert cloud.keys("bodies/") == [body]


@pytest.mark.long
def test_messages_without_a_batch_are_answered(cloud: Cloud) -> None:
    """A message of another sender has no batch; one that is no request gets an error."""
    url = cloud.queue()
    client = cloud.queues.client()
    for body in ({"input": {"prompt": "one"}}, {"input": {"prompt": "one"}}, {"url": "no"}):
        client.send_message(QueueUrl=url, MessageBody=json.dumps(body))
    cloud.answer_all(url)
    assert cloud.count_messages(url) == (0, 0)
    results = [json.loads(cloud.get(key)) for key in cloud.keys("loose/")]
    assert sorted(line.get("status", "bad") for line in results) == ["COMPLETED", "bad"]
    assert [line["error"] for line in results if "status" not in line] == [
        {"code": "bad_line", "message": "custom_id is missing"}
    ]


WRONG = {
    "no queue": ({"queue": "{queue}x"}, {}, "NonExistentQueue: "),
    "no url": ({"queue": "queue"}, {}, "'queue' is not the URL of a queue"),
    "no server": ({"queue": "http://127.0.0.1:9/q"}, {}, "Could not connect"),
    "no key": ({}, {"AWS_ACCESS_KEY_ID": "nobody"}, "InvalidClientTokenId: "),
    "no secret": ({}, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch: "),
    "may only read": ({}, {"AWS_ACCESS_KEY_ID": READER}, "AccessDenied: "),
    "no bucket": ({"results": "s3://"}, {}, "s3:// must be s3://BUCKET or s3://BUCKET/PREFIX"),
    "once": ({"queue": "{once}"}, {}, "must be 2 or more, got 1"),
}


@pytest.mark.long_except("no queue", "no secret", "may only read", "once")
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_setting_is_one_message_before_the_model_loads(
    cloud: Cloud, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, variables, message = WRONG[wrong]
    urls = {"queue": cloud.queue(), "once": ""}
    if wrong == "once":
        urls["once"] = make_queue(cloud.queues.client(), f"{cloud.name}-once", 1)
    url = words.get("queue", "{queue}").format(**urls)
    results = words.get("results", cloud.results)
    # Loading this model would fail, with another message.
    (tmp_path / "none.json").write_text("no script")
    unloadable = replace(cloud, model=tmp_path / "none.json", other_variables=variables)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    result = unloadable.run_in_process(worker, "--queue-url", url, "--results", results)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_invalid_input_file_is_refused_before_anything_is_sent(
    cloud: Cloud, tmp_path: Path
) -> None:
    url, input_file = cloud.queue(), write(tmp_path / "in.jsonl", [call("a"), call("a")])
    words = ["--queue-url", url, "--results", cloud.results]
    result = cloud.run_in_process(submit, "-i", input_file, *words)
    assert (result.returncode, result.stderr) == (2, "line 2: custom_id is the same as on line 1\n")
    assert cloud.count_messages(url) == (0, 0)
    assert cloud.keys() == []
    for name, message in (
        ("none", "no batch of this name was submitted"),
        ("../x", "batch must be a name"),
    ):
        result = cloud.collect(name, tmp_path / "out.jsonl")
        assert result.returncode == 2
        assert message in result.stderr


def test_queue_server_accepts_local_connections_only(cloud: Cloud) -> None:
    pids = [cloud.queues.pid]
    sockets = {
        str(link.readlink()).removeprefix("socket:[").rstrip("]")
        for pid in pids
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if str(link.readlink()).startswith("socket:")
    }
    listening = []
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pids[0]}/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and fields[9] in sockets:
                listening.append(fields[1].split(":")[0])
    assert listening == ["0100007F"]
