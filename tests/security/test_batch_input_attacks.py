"""Batches whose input, messages or stored answers are not what they should be."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import orjson
import pytest

from batch.input.source import InputError, LineSource, fetch_input
from batch.queue.batch_manifest import BatchHeader, BatchManifest
from batch.queue.message import result_key
from batch.queue.result_bucket import ResultBucket
from jobs.sqs.errors import QueueRefused
from jobs.sqs.message import to_job
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call, command, environment, read, run, write
from tests.security.collecting import collected
from tests.waiting import wait_until_blocking

LINES = 6
MB = 1_000_000


# -- the input is changed during the run -----------------------------------------------------------


@pytest.fixture
def slow(script: ScriptFactory) -> Path:
    """A model of one slot: three lines are answered at once and the fourth takes a while."""
    return script({"when": "later", "pieces": [{"text": "late", "delay_ms": 3_000}]}, {}, slots=1)


def lines_of_input() -> list[dict[str, Any]]:
    return [call(f"line-{n}", "later" if n == 3 else f"prompt {n}") for n in range(LINES)]


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps(call("extra", "one more")) + "\n")


def truncate(path: Path) -> None:
    kept = path.read_text().splitlines(keepends=True)[:4]
    path.write_text("".join(kept))


def replace(path: Path) -> None:
    other = path.with_name("other.jsonl")
    write(other, [call(f"line-{n}", "another prompt") for n in range(LINES)])
    other.replace(path)


def remove(path: Path) -> None:
    path.unlink()


def change_one(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[4] = json.dumps(call("line-4", "injected")) + "\n"
    path.write_text("".join(lines))


def overwrite_with_garbage(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + "\x1b[2J not JSON\n")


@pytest.mark.long_except("append")
@pytest.mark.parametrize("change", [append, truncate, change_one, overwrite_with_garbage])
def test_input_changed_during_a_run_is_one_sentence_and_loses_no_answered_line(
    slow: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    input_path, output = write(tmp_path / "in.jsonl", lines_of_input()), tmp_path / "out.jsonl"
    original = input_path.read_bytes()
    # Larger than the read-ahead buffer, so that the next lines come from the changed file.
    padding = json.dumps(call("padding", "x" * 1_500_000)).encode() + b"\n"
    input_path.write_bytes(
        original[: original.index(b'{"custom_id": "line-4"')]
        + padding
        + original[original.index(b'{"custom_id": "line-4"') :]
    )
    original = input_path.read_bytes()
    process = subprocess.Popen(
        command("-i", input_path, "-o", output),
        env=environment(slow),
        stderr=subprocess.PIPE,
        text=True,
    )
    journal = output.with_name("out.jsonl.partial")

    def has_three_answers() -> bool:
        return journal.exists() and journal.read_bytes().count(b"\n") >= 4

    wait_until_blocking(lambda: process.poll() is not None or has_three_answers(), 40)
    change(input_path)
    _, output_text = process.communicate(timeout=40)
    assert process.returncode == 3, output_text
    (sentence,) = [each for each in output_text.splitlines() if "changed during the run" in each]
    assert "restore it as it was" in sentence
    assert "Traceback" not in output_text
    assert not output.exists()
    line_count = journal.read_bytes().count(b"\n") - 1
    assert line_count >= 3
    # With the restored input, the run resumes and answers the other lines.
    input_path.write_bytes(original)
    resumed = run(slow, "-i", input_path, "-o", output)
    assert resumed.returncode == 0, resumed.stderr
    ids = [each["custom_id"] for each in read(output)]
    assert [each for each in ids if each != "padding"] == [f"line-{n}" for n in range(LINES)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (append, "it has more than 6 lines now"),
        (truncate, "it has 4 of 6 lines"),
        (replace, "line 1 is another one"),
        (change_one, "line 5 is another one"),
        (remove, "cannot be read"),
    ],
)
def test_second_reading_of_a_changed_file_is_refused(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    source = LineSource(write(tmp_path / "in.jsonl", lines_of_input()), MB)
    first = list(source.lines())
    assert list(source.lines()) == first
    change(source.path)
    with pytest.raises(InputError, match=words):
        list(source.lines())


@pytest.mark.long
def test_line_of_a_gigabyte_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        # A sparse file takes no space on the disk.
        file.truncate(1_000 * MB)
    (line,) = LineSource(path, MB).lines()
    assert len(line) == MB + 1


# -- downloads ------------------------------------------------------------------------------------


class Bomb(BaseHTTPRequestHandler):
    """Answers with what its server has packed, in the encoding that the path names."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-encoding", self.path[1:])
        self.end_headers()
        self.wfile.write(self.server.packed)  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def bombs() -> Iterator[Callable[[bytes], str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(packed: bytes) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Bomb)
        server.packed = packed  # type: ignore[attr-defined]
        servers.append(server)
        Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_gzip_bomb_is_refused_before_it_is_unpacked(
    bombs: Callable[[bytes], str], tmp_path: Path
) -> None:
    url = bombs(gzip.compress(b" " * (80 * MB), 1))
    with pytest.raises(InputError, match="larger than 5 MB"):
        fetch_input(f"{url}/gzip", tmp_path / "spool", 5 * MB)
    assert (tmp_path / "spool").stat().st_size <= 5 * MB


def test_gzip_of_the_right_size_is_unpacked(bombs: Callable[[bytes], str], tmp_path: Path) -> None:
    body = b"".join(orjson.dumps(call(f"line-{n}")) + b"\n" for n in range(20_000))
    url = bombs(gzip.compress(body))
    assert fetch_input(f"{url}/gzip", tmp_path / "spool", 20 * MB).read_bytes() == body


@pytest.mark.long_except("gzip, gzip", "br")
@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip"])
def test_encoding_that_was_not_requested_is_refused(
    bombs: Callable[[bytes], str], tmp_path: Path, encoding: str
) -> None:
    url = bombs(b"anything")
    with pytest.raises(InputError):
        fetch_input(f"{url}/{encoding}".replace(" ", ""), tmp_path / "spool", MB)


@pytest.mark.parametrize("packed", [b"no gzip", gzip.compress(b"x" * 1_000, mtime=0)[:-9]])
def test_damaged_gzip_is_one_sentence(
    bombs: Callable[[bytes], str], tmp_path: Path, packed: bytes
) -> None:
    with pytest.raises(InputError, match="gzip"):
        fetch_input(f"{bombs(packed)}/gzip", tmp_path / "spool", MB)


# -- messages and answers in buckets --------------------------------------------------------------


def pointer(key: str) -> dict[str, Any]:
    body = [
        "software.amazon.payloadoffloading.PayloadS3Pointer",
        {"s3BucketName": "bucket", "s3Key": key},
    ]
    return {
        "MessageId": "m",
        "Body": json.dumps(body),
        "Attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "0"},
        "MessageAttributes": {"ExtendedPayloadSize": {"StringValue": "10"}},
    }


class Endless:
    """S3's answer to a request for an object without an end and without a content length."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self.closed = False

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        while self.read_bytes < 500 * MB:
            self.read_bytes += size
            yield b" " * size

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def endless(place: ResultBucket, monkeypatch: pytest.MonkeyPatch) -> Endless:
    endless_body = Endless()
    monkeypatch.setattr(place._client, "get_object", lambda **_: {"Body": endless_body})
    return endless_body


def test_pointer_to_an_endless_object_is_not_read_into_memory(
    place: ResultBucket, endless: Endless
) -> None:
    with pytest.raises(QueueRefused, match="s3://bucket/huge is longer than 10,000,000 bytes"):
        to_job("queue", None, pointer("huge"), place)
    assert endless.read_bytes < 12 * MB
    assert endless.closed


def test_pointer_within_the_limit_is_read(place: ResultBucket) -> None:
    place.put("small", b'{"input": {}}')
    assert to_job("queue", None, pointer("here/small"), place).input == b'{"input": {}}'


def test_endless_answer_is_not_read_into_memory(place: ResultBucket, endless: Endless) -> None:
    with pytest.raises(QueueRefused, match="is longer than 64,000,000 bytes"):
        place.find("batch/results/x.json")
    assert endless.read_bytes < 66 * MB
    assert endless.closed


def submitted(place: ResultBucket, *ids: str) -> None:
    manifest = BatchManifest(place, "evening")
    assert manifest.create(BatchHeader("digest", len(ids), "https://queue"), iter(ids))


def answered(place: ResultBucket, *ids: str) -> None:
    for custom_id in ids:
        line = {"custom_id": custom_id, "response": {"status_code": 200, "body": {}}}
        place.put(result_key("evening", custom_id), orjson.dumps(line))


def test_surplus_answers_do_not_end_collect_before_the_last_line(
    place: ResultBucket, tmp_path: Path
) -> None:
    submitted(place, "a", "b", "c")
    answered(place, "a", "b", "not-one-of-them")
    code, output_text = collected(place, "evening", tmp_path / "out.jsonl")
    assert (code, output_text) == (3, ["1 of 3 lines have no answer yet: c"])


@pytest.mark.long_except(
    "here-{key}.json", "-old/{key}", "-{key}/copy", "here-evening/results/{key}"
)
@pytest.mark.parametrize(
    "name", ["old/{key}", "{key}.bak", "{key}/copy", "{key}.json", "evening/results/{key}"]
)
@pytest.mark.parametrize("prefix", ["here", ""])
def test_copy_of_an_answer_does_not_count_as_another_lines(
    place: ResultBucket, tmp_path: Path, name: str, prefix: str
) -> None:
    at = ResultBucket.from_url(f"s3://bucket/{prefix}", place._client)
    submitted(at, "a", "b")
    answered(at, "a")
    folder, _, key = result_key("evening", "a").rpartition("/")
    at.put(f"{folder}/{name.format(key=key)}", b"a copy")
    code, output_text = collected(at, "evening", tmp_path / "out.jsonl")
    assert (code, output_text) == (3, ["1 of 2 lines have no answer yet: b"])


def test_answers_with_a_common_prefix_count_as_one(place: ResultBucket, tmp_path: Path) -> None:
    submitted(place, "a", "b")
    answered(place, "a")
    key = result_key("evening", "a")
    place.put(f"{key[:-20]}{'0' * 15}.json", b"another one with the same beginning")
    code, output_text = collected(place, "evening", tmp_path / "out.jsonl")
    assert (code, output_text) == (3, ["1 of 2 lines have no answer yet: b"])


@pytest.mark.parametrize("wait", [False, True])
def test_collect_with_surplus_answers_writes_its_own_lines_only(
    place: ResultBucket, tmp_path: Path, wait: bool
) -> None:
    submitted(place, "a", "b")
    answered(place, "a", "b", "x", "y", "z")
    place.put("evening/results/no-hash.json", b"x")
    output = tmp_path / "out.jsonl"
    code, output_text = collected(place, "evening", output, wait=wait)
    assert (code, output_text[-1]) == (0, "2 of 2 lines answered")
    assert [each["custom_id"] for each in read(output)] == ["a", "b"]


@pytest.mark.parametrize(
    "stored",
    [
        b"no JSON",
        b"[]",
        b'{"custom_id": "another", "response": {"status_code": 200}}',
        b'{"custom_id": "b",\n "response": {"status_code": 200, "body": {}}}',
        b'{"custom_id": "b", "response": 5}',
    ],
)
def test_stored_text_that_is_no_answer_becomes_a_failed_line(
    place: ResultBucket, tmp_path: Path, stored: bytes
) -> None:
    submitted(place, "a", "b")
    answered(place, "a")
    place.put(result_key("evening", "b"), stored)
    output = tmp_path / "out.jsonl"
    code, output_text = collected(place, "evening", output)
    assert (code, output_text[0]) == (1, "1 of 2 lines answered")
    assert [each["custom_id"] for each in read(output)] == ["a"]
    (failed,) = read(tmp_path / "out.errors.jsonl")
    assert failed["custom_id"] == "b"


@pytest.mark.long_except("no JSON\\n", "{}\\n")
@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{}\n",
        b"no JSON\n",
        b'{"digest": "d", "lines": 1, "queue_url": "q"}\n[]\n',
        b'{"digest": "d", "lines": 1, "queue_url": "q"}\n' + b"x" * 20_000,
    ],
)
def test_damaged_manifest_is_one_sentence(
    place: ResultBucket, tmp_path: Path, manifest: bytes
) -> None:
    place.put("evening/manifest.jsonl", manifest)
    code, output_text = collected(place, "evening", tmp_path / "out.jsonl")
    (sentence,) = output_text
    assert code in (2, 3)
    assert "is not the manifest of a batch" in sentence
