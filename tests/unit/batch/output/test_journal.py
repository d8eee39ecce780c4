"""The journal of a batch: added answers survive kills, damage and full disks."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch.output.journal import BatchJournal, JournalError, JournalHeader

HEADER = JournalHeader("d" * 64, 5)


@contextmanager
def open_journal(path: Path, *, fresh: bool = False) -> Iterator[BatchJournal]:
    journal = BatchJournal(path, fresh=fresh)
    try:
        yield journal
    finally:
        journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl.partial"


def fill(path: Path) -> None:
    with open_journal(path) as journal:
        journal.begin(HEADER)
        journal.add(3, b'{"n":3}', ok=True)
        journal.add(1, b'{"n":1}', ok=False)
        journal.add(2, '{"n":"ü"}'.encode(), ok=True)


def test_answers_are_in_input_order_or_journal_order(path: Path) -> None:
    fill(path)
    with open_journal(path) as journal:
        assert (journal.lines, journal.done, journal.failed) == (5, 3, 1)
        assert [journal.is_missing(number) for number in range(1, 6)] == [False] * 3 + [True] * 2
        assert [*journal.answers(ok=True)] == ['{"n":"ü"}\n'.encode(), b'{"n":3}\n']
        assert [*journal.answers(ok=True, ordered=False)] == [b'{"n":3}\n', '{"n":"ü"}\n'.encode()]
        assert [*journal.answers(ok=False)] == [b'{"n":1}\n']


def test_new_journal_has_no_header(path: Path) -> None:
    with open_journal(path) as journal:
        assert journal.header is None
        assert journal.lines == 0


def test_fresh_discards_an_existing_journal(path: Path) -> None:
    fill(path)
    with open_journal(path, fresh=True) as journal:
        assert journal.header is None


def test_incomplete_last_record_is_cut_off(path: Path) -> None:
    """At every byte: a kill or a power failure may leave any prefix of the file."""
    fill(path)
    content = path.read_bytes()
    ends = [number + 1 for number, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        with open_journal(path) as journal:
            complete_records = sum(end <= cut for end in ends)
            assert (journal.header is not None) == (complete_records > 0)
            assert journal.done == max(complete_records - 1, 0)
            if journal.header is not None:
                journal.add(5, b'{"n":5}', ok=True)
        if complete_records:
            with open_journal(path) as journal:
                assert journal.done == complete_records
                assert [*journal.answers(ok=True)][-1] == b'{"n":5}\n'


@pytest.mark.parametrize(
    ("undamaged", "damaged"),
    [
        (b'{"n":1}', b'{"n":?}'),
        # The line number, and the success flag.
        (b"\n1 0 ", b"\n4 0 "),
        (b"\n1 0 ", b"\n1 1 "),
        (b"\n1 0 ", b"\n9 0 "),
        (b"\n1 0 ", b"\n\xff\x00 "),
        (b'{"n":1}', b'{"n"\n1}'),
    ],
)
def test_damaged_record_loses_only_its_line(path: Path, undamaged: bytes, damaged: bytes) -> None:
    fill(path)
    content = path.read_bytes()
    assert content.count(undamaged) == 1
    path.write_bytes(content.replace(undamaged, damaged))
    with open_journal(path) as journal:
        assert (journal.lines, journal.done, journal.failed) == (5, 2, 0)
        assert journal.damaged_records >= 1
        assert journal.lost_lines == journal.damaged_records
        assert [journal.is_missing(number) for number in range(1, 6)] == [
            True,
            False,
            False,
            True,
            True,
        ]
        assert [*journal.answers(ok=True)] == ['{"n":"ü"}\n'.encode(), b'{"n":3}\n']
        for number in (1, 4, 5):
            journal.add(number, b"again", ok=True)
        assert journal.lost_lines == 0
    with open_journal(path) as journal:
        assert (journal.done, journal.lost_lines) == (5, 0)
        assert [*journal.answers(ok=True)].count(b"again\n") == 3


def test_record_without_line_feed_loses_itself_and_the_next(path: Path) -> None:
    fill(path)
    path.write_bytes(path.read_bytes().replace(b'{"n":3}\n', b'{"n":3} '))
    with open_journal(path) as journal:
        assert (journal.done, journal.damaged_records) == (1, 1)
        assert not journal.is_missing(2)


def test_journal_of_another_format_is_refused(path: Path) -> None:
    path.write_bytes(orjson.dumps({"digest": "d" * 64, "lines": 5, "format": 3}) + b"\n")
    with pytest.raises(JournalError, match="is not the journal of a batch"):
        BatchJournal(path)


def test_damaged_first_line_is_replaced_where_the_input_is_known(path: Path) -> None:
    fill(path)
    path.write_bytes(path.read_bytes().replace(b'{"digest"', b'{"???est"', 1))
    with pytest.raises(JournalError, match="is not the journal of a batch"):
        BatchJournal(path)
    journal = BatchJournal(path, expected=HEADER)
    assert (journal.lines, journal.done) == (5, 3)
    journal.close()


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_journal_is_private_whatever_the_umask(path: Path, umask: int) -> None:
    previous_umask = os.umask(umask)
    try:
        fill(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        with open_journal(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(previous_umask)


def test_answer_without_room_is_not_written(path: Path) -> None:
    class Full(Exception):
        pass

    def reserve(size: int) -> None:
        reserved.append(size)
        if size > len(path.read_bytes()) + 40:
            raise Full

    reserved: list[int] = []
    journal = BatchJournal(path, reserve=reserve)
    journal.begin(HEADER)
    journal.add(1, b"short", ok=True)
    assert reserved == [path.stat().st_size] == [journal.size]
    with pytest.raises(Full):
        journal.add(2, b"x" * 40, ok=True)
    assert journal.is_missing(2)
    assert path.stat().st_size == journal.size
    journal.close()


@pytest.mark.parametrize("content", [b"hello\n", b"[]\n", b'{"custom_id": "a"}\n'])
def test_other_file_is_rejected_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(JournalError, match="is not the journal of a batch"):
        BatchJournal(path)
    assert path.read_bytes() == content


def test_journal_is_locked_against_a_second_run(path: Path) -> None:
    with open_journal(path), pytest.raises(JournalError, match="another run is using"):
        BatchJournal(path)


def test_missing_folder_raises_journal_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be written: No such file or directory"):
        BatchJournal(tmp_path / "none" / "out.partial")


def test_full_disk_leaves_no_partial_record(path: Path) -> None:
    """A limit of the file size simulates a full disk."""
    program = f"""
import resource, signal
from pathlib import Path
from batch.output.journal import BatchJournal, JournalHeader
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
journal = BatchJournal(Path({str(path)!r}))
journal.begin(JournalHeader("d" * 64, 100))
number = 0
try:
    while True:
        number += 1
        journal.add(number, b"x" * 40, ok=True)
except OSError as error:
    assert error.errno == {errno.EFBIG}, error
    assert journal.is_missing(number) and journal.done == number - 1
journal.close()
print(number - 1)
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    with open_journal(path) as journal:
        assert journal.done == int(completed.stdout) > 0
        assert path.stat().st_size <= 300


def test_add_raises_the_error_of_a_failed_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = BatchJournal(path)
    journal.begin(HEADER)
    tried = threading.Event()

    def fail(_fd: int) -> None:
        tried.set()
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        journal.add(1, b"{}", ok=True)
        assert tried.wait(10)
        journal._syncer.join(10)
    with pytest.raises(OSError, match="Input/output error"):
        journal.add(2, b"{}", ok=True)
    journal.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.booleans(), st.binary().map(lambda raw: raw.replace(b"\n", b""))), max_size=20
    ),
    st.randoms(use_true_random=False),
)
def test_journal_returns_the_answers_of_all_lines(
    path: Path, answers: list[tuple[bool, bytes]], order: random.Random
) -> None:
    """Property: in any order of adding, each answer is returned once, at its line."""
    numbers = list(range(1, len(answers) + 1))
    order.shuffle(numbers)
    with open_journal(path, fresh=True) as journal:
        journal.begin(JournalHeader("d" * 64, len(answers)))
        for number in numbers:
            ok, text = answers[number - 1]
            journal.add(number, text, ok=ok)
    with open_journal(path) as journal:
        for kind in (True, False):
            expected = [text + b"\n" for ok, text in answers if ok is kind]
            assert [*journal.answers(ok=kind)] == expected
            assert sorted(journal.answers(ok=kind, ordered=False)) == sorted(expected)
