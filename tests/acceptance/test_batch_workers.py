"""A batch that workers answer through SQS and S3, and that loses nothing when they are killed.

The servers are real ones, and the bucket keeps every version of an object: whatever was written
twice has two.
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

WORKERS = 3


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


def test_a_batch_goes_through_a_queue(cloud: Cloud, tmp_path: Path) -> None:
    given = write(tmp_path / "in.jsonl", [*lines(25), call("bad", "it fails")])
    url, out = cloud.queue(max_receives=3), tmp_path / "out.jsonl"
    place = ["--results", cloud.results]
    sent = cloud.run("submit", "-i", given, "--queue-url", url, *place, "--batch", "b")
    assert (sent.returncode, sent.stderr.splitlines()[-1]) == (0, "26 of 26 lines sent")
    early = cloud.collect("b", out)
    assert early.returncode == 3
    assert early.stderr.startswith("26 of 26 lines have no answer yet: id 0, id 1, id 2, ")
    assert not out.exists()
    cloud.work(url)
    ran = cloud.run("collect", *place, "--batch", "b", "-o", out, "--wait")
    assert ran.returncode == 1, ran.stderr
    assert [line["custom_id"] for line in read(out)] == [f"id {n}" for n in range(25)]
    assert [text(line) for line in read(out)] == [f"p {n}" for n in range(25)]
    (failed,) = read(tmp_path / "out.errors.jsonl")
    assert failed["custom_id"] == "bad"
    assert cloud.left(url) == (0, 0)
    again = cloud.collect("b", out)
    assert again.returncode == 2
    assert again.stderr == f"{out} exists already; --force replaces it\n"


@pytest.mark.timeout(900)
def test_workers_are_killed_and_nothing_is_lost_or_written_twice(
    script: ScriptFactory, cloud: Cloud, tmp_path: Path, scale: int
) -> None:
    count, kills = (100, 3) if scale == 1 else (2_000, 60)
    slow = replace(cloud, model=script({"delay_ms": 30}, slots=4))
    given = write(tmp_path / "in.jsonl", lines(count))
    url = slow.queue()
    batch = slow.submit(given, url)
    chance = random.Random(count)
    killed = 0
    with ExitStack() as stack:
        workers = [stack.enter_context(slow.worker(url)) for _ in range(WORKERS)]
        while killed < kills:
            answered = slow.answered(batch)
            slow.wait_for(batch, answered + (count - answered) // (2 * (kills - killed) + 1))
            place = chance.randrange(WORKERS)
            workers[place].send_signal(signal.SIGKILL)
            workers[place].wait(LIMIT_S)
            killed += 1
            workers[place] = stack.enter_context(slow.worker(url))
        ran = slow.collect(batch, tmp_path / "out.jsonl", "--wait")
        # What was answered and not deleted comes again when the lease of the dead is over.
        slow.wait_until_empty(url)
        for each in workers:
            each.send_signal(signal.SIGTERM)
        said = [each.communicate(timeout=LIMIT_S)[1] for each in workers]
    assert ran.returncode == 0, ran.stderr
    # The last of them may not have come so far as to hear it.
    assert {each.returncode for each in workers} <= {0, -signal.SIGTERM}, said
    found = read(tmp_path / "out.jsonl")
    assert [line["custom_id"] for line in found] == [f"id {n}" for n in range(count)]
    assert [text(line) for line in found] == [f"p {n}" for n in range(count)]
    versions = slow.keys(f"{batch}/results/")
    assert len(versions) == len(set(versions)) == count


def test_a_signal_lets_what_is_generated_finish_and_gives_back_the_rest(
    script: ScriptFactory, cloud: Cloud, tmp_path: Path
) -> None:
    slow = replace(cloud, model=script({"delay_ms": 100}, slots=2))
    url = slow.queue()
    batch = slow.submit(write(tmp_path / "in.jsonl", lines(60)), url)
    # A lease that would be seen to be held.
    with slow.worker(url, BATCH_LEASE_S="600", BATCH_AT_ONCE="10") as process:
        slow.wait_for(batch, 6)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    answered = slow.answered(batch)
    assert re.search(r"stopping: waiting for \d+ messages under way, up to 600 s; Ctrl-C", said)
    assert f"stopped by SIGTERM\n{answered} messages answered" in said
    assert 6 <= answered < 60
    # All that was not answered waits for the next worker, at once.
    assert slow.left(url) == (60 - answered, 0)


def test_a_signal_during_the_load_is_a_stop_like_any_other(
    script: ScriptFactory, cloud: Cloud
) -> None:
    loading = replace(cloud, model=script({"text": "no"}, load_ms=60_000))
    with loading.worker(loading.queue()) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("loading ")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said.splitlines()[0]) == (0, "stopped by SIGTERM")


def test_a_message_that_kills_the_engine_ends_as_an_error_and_in_the_dead_letter_queue(
    script: ScriptFactory, cloud: Cloud, tmp_path: Path
) -> None:
    poison = {"when": "poison", "pieces": [{"signal": "SIGSEGV"}]}
    deadly = replace(cloud, model=script(poison, {}, slots=4))
    url, out = deadly.queue(max_receives=3), tmp_path / "out.jsonl"
    batch = deadly.submit(write(tmp_path / "in.jsonl", [call("a", "poison")]), url)
    with deadly.worker(url) as process:
        ran = deadly.collect(batch, out, "--wait")
        deadly.wait_until_dead(url, 1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert ran.returncode == 1, ran.stderr
    (failed,) = read(tmp_path / "out.errors.jsonl")
    assert failed["custom_id"] == "a"
    assert failed["response"]["status_code"] == 500
    assert deadly.left(url) == (0, 0)


@pytest.mark.long
def test_messages_beside_one_that_kills_the_engine_are_answered(
    script: ScriptFactory, cloud: Cloud, tmp_path: Path
) -> None:
    poison = {"when": "poison", "pieces": [{"signal": "SIGSEGV"}]}
    # Answers that take a while are still running when the engine crashes.
    deadly = replace(cloud, model=script(poison, {"delay_ms": 200}, slots=4))
    url, out = deadly.queue(max_receives=4), tmp_path / "out.jsonl"
    batch = deadly.submit(write(tmp_path / "in.jsonl", [call("a", "poison"), *lines(7)]), url)
    with deadly.worker(url) as process:
        collected = deadly.collect(batch, out, "--wait")
        deadly.wait_until_dead(url, 1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert collected.returncode == 1, collected.stderr
    assert [text(line) for line in read(out)] == [f"p {n}" for n in range(7)]
    (failed,) = read(tmp_path / "out.errors.jsonl")
    assert failed["custom_id"] == "a"


def test_a_message_that_killed_all_its_workers_still_gets_its_error(
    cloud: Cloud, tmp_path: Path
) -> None:
    url, out = cloud.queue(max_receives=3), tmp_path / "out.jsonl"
    batch = cloud.submit(write(tmp_path / "in.jsonl", [call("a")]), url)
    client = cloud.queues.client()
    for _ in range(2):
        client.receive_message(QueueUrl=url, VisibilityTimeout=0)
    cloud.work(url)
    cloud.wait_until_dead(url, 1)
    assert cloud.collect(batch, out).returncode == 1
    (failed,) = read(tmp_path / "out.errors.jsonl")
    problem = "the message was received 2 times and never answered"
    assert failed["error"] == {"code": "not_answered", "message": problem}


def test_what_is_sent_twice_is_answered_once(cloud: Cloud, tmp_path: Path) -> None:
    given, out = write(tmp_path / "in.jsonl", lines(12)), tmp_path / "out.jsonl"
    url = cloud.queue()
    batch = cloud.submit(given, url)
    # All is known to be sent.
    assert cloud.submit(given, url) == batch
    assert cloud.left(url) == (12, 0)
    assert cloud.submit(given, url, "--again") == batch
    assert cloud.left(url) == (24, 0)
    cloud.work(url)
    versions = cloud.keys(f"{batch}/results/")
    assert len(versions) == len(set(versions)) == 12
    assert cloud.left(url) == (0, 0)
    # What has its answer is not sent again.
    cloud.submit(given, url, "--again")
    assert cloud.left(url) == (0, 0)
    assert cloud.collect(batch, out).returncode == 0
    other = write(tmp_path / "other.jsonl", lines(3))
    words = ["--queue-url", url, "--results", cloud.results, "--batch", batch]
    ran = cloud.here(submit, "-i", other, *words)
    assert ran.returncode == 2
    assert ran.stderr.endswith("belongs to another input; choose another --batch\n")


def test_a_submit_that_is_killed_goes_on_where_it_was(cloud: Cloud, tmp_path: Path) -> None:
    given, url = write(tmp_path / "in.jsonl", lines(1_200)), cloud.queue()
    words = ["--queue-url", url, "--results", cloud.results]
    killed = cloud.run("submit", "-i", given, *words, FAILPOINT="sent-noted:2")
    assert killed.returncode == -signal.SIGKILL
    assert cloud.left(url) == (1_000, 0)
    again = cloud.here(submit, "-i", given, *words)
    assert again.returncode == 0
    assert "1,200 lines, 1,000 sent already" in again.stderr
    assert cloud.left(url) == (1_200, 0)


@pytest.mark.long
def test_a_fifo_queue_and_long_lines(cloud: Cloud, tmp_path: Path) -> None:
    """A body above the limit travels through the bucket, as Amazon's extended clients do it."""
    given = write(tmp_path / "in.jsonl", [call("long", "w" * 300_000), call("b", "two")])
    url, out = cloud.queue(kind=".fifo"), tmp_path / "out.jsonl"
    batch = cloud.submit(given, url)
    # In five minutes SQS takes no message twice.
    cloud.submit(given, url, "--again")
    assert cloud.left(url) == (2, 0)
    (body,) = cloud.keys("bodies/")
    cloud.work(url)
    assert cloud.collect(batch, out).returncode == 0
    assert [line["custom_id"] for line in read(out)] == ["long", "b"]
    assert cloud.keys("bodies/") == [body]


@pytest.mark.long
def test_lines_of_others_are_answered_by_their_content(cloud: Cloud) -> None:
    """Whoever sends a line without a batch; one that is no request has an error for an answer."""
    url = cloud.queue()
    client = cloud.queues.client()
    for body in ({"input": {"prompt": "one"}}, {"input": {"prompt": "one"}}, {"url": "no"}):
        client.send_message(QueueUrl=url, MessageBody=json.dumps(body))
    cloud.work(url)
    assert cloud.left(url) == (0, 0)
    found = [json.loads(cloud.get(key)) for key in cloud.keys("loose/")]
    assert sorted(line.get("status", "bad") for line in found) == ["COMPLETED", "bad"]
    assert [line["error"] for line in found if "status" not in line] == [
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


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_is_one_message_before_anything_is_loaded(
    cloud: Cloud, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, variables, message = WRONG[wrong]
    places = {"queue": cloud.queue(), "once": ""}
    if wrong == "once":
        places["once"] = make_queue(cloud.queues.client(), f"{cloud.name}-once", 1)
    url = words.get("queue", "{queue}").format(**places)
    results = words.get("results", cloud.results)
    # Loading this model would fail, with another message.
    (tmp_path / "none.json").write_text("no script")
    none = replace(cloud, model=tmp_path / "none.json", other=variables)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _s: None)
    ran = none.here(worker, "--queue-url", url, "--results", results)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_bad_file_is_told_of_before_anything_is_sent(cloud: Cloud, tmp_path: Path) -> None:
    url, given = cloud.queue(), write(tmp_path / "in.jsonl", [call("a"), call("a")])
    words = ["--queue-url", url, "--results", cloud.results]
    ran = cloud.here(submit, "-i", given, *words)
    assert (ran.returncode, ran.stderr) == (2, "line 2: custom_id is the same as on line 1\n")
    assert cloud.left(url) == (0, 0)
    assert cloud.keys() == []
    for name, said in (
        ("none", "no batch of this name was submitted"),
        ("../x", "batch must be a name"),
    ):
        ran = cloud.collect(name, tmp_path / "out.jsonl")
        assert ran.returncode == 2
        assert said in ran.stderr


def test_the_server_of_queues_listens_to_this_machine_alone(cloud: Cloud) -> None:
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
