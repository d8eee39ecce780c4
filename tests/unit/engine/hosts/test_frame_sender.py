"""The host process's outgoing mail, against a real socket."""

from __future__ import annotations

import math
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest

import engine.hosts.frame_sender
from engine.channel import DeltaChannel
from engine.errors import BackendFailed
from engine.hosts.frame_sender import FrameSender
from engine.hosts.frames import FrameDecoder
from engine.output import Delta, Finish, FinishReason, TokenLogprob, Usage
from tests.waiting import WAIT_S

FINISH = Finish(reason=FinishReason.STOP, usage=Usage(1, 2))


class SenderHarness:
    """An outbox and the reader of its socket."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(WAIT_S)
        self.sender = FrameSender(self.ours)
        self._decoder = FrameDecoder()

    def frames(self, size: int = 65536) -> Iterator[dict[str, Any]]:
        while True:
            yield from self._decoder.feed(self.theirs.recv(size))

    def say_whole(self, run_id: int, count: int) -> list[str]:
        """Say so many tokens of an answer that nobody reads along, and its end; return them."""
        said = [str(number) for number in range(count)]
        self.sender.buffer_run(run_id)
        for text in said:
            self.sender.on_delta(run_id, Delta(text))
        self.sender.on_finished(run_id, FINISH)
        return said

    def parts(self) -> list[list[str]]:
        """Return the tokens of the only run, frame by frame, to its end."""
        found: list[list[str]] = []
        for frame in self.frames():
            found.append([text for _, of_run, _ in frame.get("deltas", ()) for text in of_run])
            if "finished" in frame:
                break
        return found

    def close(self) -> None:
        self.theirs.close()


class Played:
    """The sender's part and the runs', played on one thread by a clock that nobody waits for.

    It stands for the module `time` and for the event that wakes the sender.
    """

    def __init__(self, harness: SenderHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self._office = harness
        self._told: list[tuple[float, int, str]] = []
        self._frames: list[dict[str, Any]] = []
        self._came: dict[str, float] = {}
        self._awake = False
        monkeypatch.setattr(engine.hosts.frame_sender, "time", self)
        monkeypatch.setattr(harness.sender, "_wakeup", self)
        monkeypatch.setattr(harness.sender, "_channel", DeltaChannel(self.set))
        harness.theirs.setblocking(False)

    def came(self) -> dict[str, float]:
        """Return when each token that was said was here, by its text."""
        self.frames()
        return self._came

    def says(self, run_id: int, gap_s: float, texts: list[str]) -> None:
        """Have a run say so, from now on, a token every `gap_s`."""
        self._told += [(self.now_s + at * gap_s, run_id, text) for at, text in enumerate(texts)]
        self._told.sort(key=lambda told: told[0])

    def frames(self) -> list[dict[str, Any]]:
        """Return what is sent until nothing more will be."""
        sender = self._office.sender
        while self._told or sender._channel.pending or sender._poll_s < threading.TIMEOUT_MAX:
            sender._wait()
            sender._send_all()
            self._read()
        return self._frames

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for frame in self._office.frames():
                self._frames.append(frame)
                for _, texts, _ in frame["deltas"]:
                    self._came |= dict.fromkeys(texts, self.now_s)

    def monotonic(self) -> float:
        return self.now_s

    def set(self) -> None:
        self._awake = True

    def clear(self) -> None:
        self._awake = False

    def wait(self, timeout: float) -> bool:
        until_s = self.now_s + timeout
        while self._told and not self._awake and self._told[0][0] <= until_s:
            self.now_s, run_id, text = self._told.pop(0)
            self._office.sender.on_delta(run_id, Delta(text))
            self._read()
        if timeout == threading.TIMEOUT_MAX and not self._told:
            # There is nothing left to wait for.
            return True
        if not self._awake:
            self.now_s = until_s
        return self._awake


@pytest.fixture
def old_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run send at most once per MIN_SEND_INTERVAL_S, as an old run does."""
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_DELAY_AGE_RATIO", 1e12)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[SenderHarness]:
    """An outbox without a sender: what arrives was sent by the thread that brought it."""
    monkeypatch.setattr(FrameSender, "_send_forever", lambda sender: None)
    harness = SenderHarness()
    yield harness
    harness.close()
    harness.ours.close()


@pytest.fixture
def harness() -> Iterator[SenderHarness]:
    harness = SenderHarness()
    yield harness
    harness.close()
    # The sender finds the socket gone and ends.
    harness.sender.send_message({"to": "nobody"})
    for thread in threading.enumerate():
        if thread.name == "frame-sender":
            thread.join(10)
    harness.ours.close()


def test_end_of_a_run_comes_after_its_text(harness: SenderHarness) -> None:
    for number in range(3000):
        harness.sender.on_delta(number % 3, Delta(str(number)))
    for run_id in range(3):
        harness.sender.on_finished(run_id, FINISH)
    harness.sender.on_failed(3, BackendFailed("x"))
    texts: dict[int, list[str]] = {0: [], 1: [], 2: []}
    ended: list[int] = []
    for frame in harness.frames():
        for run_id, of_run, logprobs in frame.get("deltas", ()):
            assert run_id not in ended
            assert logprobs is None
            texts[run_id] += of_run
        ended += [run_id for run_id, _ in frame.get("finished", ())]
        ended += [run_id for run_id, _ in frame.get("failed", ())]
        if 3 in ended:
            break
    assert ended == [0, 1, 2, 3]
    assert texts == {
        run_id: [str(number) for number in range(run_id, 3000, 3)] for run_id in range(3)
    }


def test_logprobs_travel_with_the_index_of_their_delta(harness: SenderHarness) -> None:
    logprob = TokenLogprob("b", -0.5, (("b", -0.5), ("c", -1.5)), b"\xff", 1)
    batch = [(4, Delta("a")), (4, Delta("b", logprob)), (5, Delta("x"))]
    assert engine.hosts.frame_sender._build_frame(batch) == {
        "deltas": [
            [4, ["a", "b"], [[1, "b", -0.5, (("b", -0.5), ("c", -1.5)), "ÿ", 1]]],
            [5, ["x"], None],
        ]
    }


@pytest.mark.parametrize("pace_s", [0.0, 1000.0])
@pytest.mark.parametrize("quiet_s", [-1.0, 0.0, 1000.0])
def test_producers_wait_for_a_slow_reader_and_nothing_is_lost(
    harness: SenderHarness,
    monkeypatch: pytest.MonkeyPatch,
    scale: int,
    quiet_s: float,
    pace_s: float,
) -> None:
    # Below zero every token is sent by its own thread if that can be done without waiting, unless
    # all but the first are left to another frame.
    monkeypatch.setattr(engine.hosts.frame_sender, "QUIET_S", quiet_s)
    monkeypatch.setattr(engine.hosts.frame_sender, "MIN_SEND_INTERVAL_S", pace_s)
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_PENDING_DELTAS", 3)
    harness.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    count = 5000 * scale
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def produce(run_id: int) -> None:
        for number in range(count):
            harness.sender.on_delta(run_id, Delta(str(number)))
        harness.sender.on_finished(run_id, FINISH)

    producers = [threading.Thread(target=produce, args=(run_id,), daemon=True) for run_id in (1, 2)]
    try:
        for producer in producers:
            producer.start()
        texts: dict[int, list[str]] = {1: [], 2: []}
        ended = 0
        for frame in harness.frames(997):
            for run_id, of_run, _ in frame.get("deltas", ()):
                texts[run_id] += of_run
            ended += len(frame.get("finished", ()))
            if ended == 2:
                break
    finally:
        sys.setswitchinterval(interval)
    assert texts == {run_id: [str(number) for number in range(count)] for run_id in (1, 2)}


def test_reader_that_went_away_holds_no_producer_up(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_PENDING_DELTAS", 3)

    def produce() -> None:
        for _ in range(100_000):
            harness.sender.on_delta(1, Delta("x"))

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    next(harness.frames())
    harness.close()
    producer.join(WAIT_S)
    assert not producer.is_alive()


def test_room_that_is_made_at_the_last_moment_is_noticed(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_PENDING_DELTAS", 0)
    # Otherwise the producer sends it itself, and there is no pile.
    monkeypatch.setattr(engine.hosts.frame_sender, "QUIET_S", math.inf)
    sender = harness.sender

    looked = threading.Event()

    class Room(threading.Event):
        def clear(self) -> None:
            looked.set()
            # The sender takes everything between the look at the pile and the decision to wait.
            for _ in harness.frames():
                if not sender._channel.pending:
                    break
            super().clear()

    sender._has_room = Room()
    producer = threading.Thread(target=sender.on_delta, args=(1, Delta("x")), daemon=True)
    with sender._send_lock:
        producer.start()
        assert looked.wait(WAIT_S)
    producer.join(WAIT_S)
    assert not producer.is_alive()
    # Other producers that wait are not left to the next frame.
    assert sender._has_room.is_set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_sender_that_cannot_go_on_ends_the_process(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Otherwise the host would go on deaf and its requests would wait for the clocks.
    ended = threading.Event()

    def fake_exit(code: int) -> None:
        ended.set()
        raise SystemExit(code)

    monkeypatch.setattr(engine.hosts.frame_sender, "exit_now", fake_exit)
    harness.sender.send_message({"what": object()})
    assert ended.wait(10)
    assert "TypeError" in capfd.readouterr().err


def test_a_lone_token_is_sent_by_the_thread_that_brings_it(alone: SenderHarness) -> None:
    alone.sender.on_delta(1, Delta("one"))
    assert next(alone.frames()) == {"deltas": [[1, ["one"], None]]}


def test_a_token_with_its_logprobs_is_left_to_the_sender(alone: SenderHarness) -> None:
    """A model waits for what its thread writes."""
    alone.theirs.setblocking(False)
    alone.sender.on_delta(1, Delta("one", TokenLogprob("one", -0.5, ())))
    with pytest.raises(BlockingIOError):
        next(alone.frames())
    assert len(alone.sender._channel.pending) == 1
    assert alone.sender._wakeup.is_set()


@pytest.mark.usefixtures("old_runs")
def test_tokens_of_a_fast_run_share_frames(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "QUIET_S", -1.0)
    monkeypatch.setattr(engine.hosts.frame_sender, "MIN_SEND_INTERVAL_S", 1000.0)
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_DELAY_S", 1000.0)
    frames = harness.frames()
    for text in ("first", "second"):
        # The second wakes the sender, which has to know after how long to look by itself.
        harness.sender.on_delta(1, Delta(text))
        assert next(frames) == {"deltas": [[1, [text], None]]}
    for text in ("third", "fourth"):
        harness.sender.on_delta(1, Delta(text))
    harness.sender.on_finished(1, FINISH)
    assert next(frames) == {
        "deltas": [[1, ["third", "fourth"], None]],
        "finished": [[1, FINISH.to_wire()]],
    }


@pytest.mark.parametrize(
    ("gap_s", "shared"), [(0.006, 6), (0.0085, 4), (0.0125, 3), (0.021, 2), (0.034, 1)]
)
def test_a_run_sends_no_more_frames_than_anybody_sees(
    alone: SenderHarness, monkeypatch: pytest.MonkeyPatch, gap_s: float, shared: int
) -> None:
    """At each rate the sender looks now and then, finds nothing overdue, and wakes for nothing."""
    played = Played(alone, monkeypatch)
    said = [str(number) for number in range(300)]
    played.says(1, gap_s, said)
    frames = [texts for frame in played.frames() for _, texts, _ in frame["deltas"]]
    assert [*chain.from_iterable(frames)] == said
    # A young run sends a few more.
    assert len(frames) <= len(said) / shared + 16
    [first, *_], late = frames, frames[len(frames) // 2 :]
    assert len(first) == 1
    assert sum(map(len, late)) / len(late) > shared - 1
    # Nor does anybody see fewer of them than there can be: a token is not late without need.
    assert max(map(len, frames)) <= shared


@pytest.mark.parametrize("tokens_per_second", [50, 200, 400, 1_000])
def test_young_run_sends_a_short_answer_in_many_frames(
    alone: SenderHarness, monkeypatch: pytest.MonkeyPatch, tokens_per_second: int
) -> None:  # R59
    played = Played(alone, monkeypatch)
    played.says(1, 1 / tokens_per_second, [str(number) for number in range(40)])
    frames = [texts for frame in played.frames() for _, texts, _ in frame["deltas"]]
    assert len(frames) >= 12
    # Over the whole answer, and not only at its beginning.
    assert max(map(len, frames)) <= 8


def test_a_token_waits_for_others_a_moment_at_the_most(
    alone: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a draft model come several together, with a pause after them."""
    played = Played(alone, monkeypatch)
    said: dict[str, float] = {}
    for clump in range(10):
        said |= {f"{clump}.{number}": played.now_s for number in range(4)}
        played.says(1, 0.0, [f"{clump}.{number}" for number in range(4)])
        played.now_s += 0.15
    played.now_s = min(said.values())
    came = played.came()
    assert came.keys() == said.keys()
    late = {text: round(came[text] - said[text], 6) for text in said}
    assert max(late.values()) <= 0.05
    # The first of each goes at once.
    assert {late[f"{clump}.0"] for clump in range(10)} == {0.0}


def test_an_answer_that_is_wanted_whole_comes_in_five_parts_a_second(
    alone: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(alone, monkeypatch)
    alone.sender.buffer_run(1)
    played.says(1, 0.02, [str(number) for number in range(200)])
    assert len(played.frames()) <= 4 / 0.2 + 3


def test_the_sender_sleeps_when_all_is_said(
    alone: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(alone, monkeypatch)
    alone.sender.buffer_run(2)
    played.says(1, 0.008, ["one", "two", "three"])
    played.says(2, 0.008, ["whole"] * 100)
    played.frames()
    # After all of it was sent, and soon.
    assert alone.sender._poll_s == threading.TIMEOUT_MAX
    assert played.now_s - 1000.8 < 1.0


@pytest.mark.usefixtures("old_runs")
def test_a_token_of_a_fast_run_waits_for_no_other_for_long(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "QUIET_S", -1.0)
    monkeypatch.setattr(engine.hosts.frame_sender, "MIN_SEND_INTERVAL_S", 1000.0)
    # What answers that nobody reads along wait for does not decide.
    monkeypatch.setattr(engine.hosts.frame_sender, "BUFFERED_DELAY_S", 1000.0)
    frames = harness.frames()
    harness.sender.buffer_run(2)
    harness.sender.on_delta(2, Delta("whole"))
    assert next(frames) == {"deltas": [[2, ["whole"], None]]}
    for text in ("first", "second", "third", "fourth"):
        harness.sender.on_delta(1, Delta(text))
        assert next(frames) == {"deltas": [[1, [text], None]]}


@pytest.mark.usefixtures("old_runs")
def test_a_fast_run_holds_no_other_up(
    alone: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "QUIET_S", -1.0)
    monkeypatch.setattr(engine.hosts.frame_sender, "MIN_SEND_INTERVAL_S", 1000.0)
    frames = alone.frames()
    alone.sender.on_delta(1, Delta("fast"))
    assert next(frames) == {"deltas": [[1, ["fast"], None]]}
    alone.sender.on_delta(1, Delta("faster"))
    alone.sender.on_delta(2, Delta("slow"))
    assert next(frames) == {"deltas": [[1, ["faster"], None], [2, ["slow"], None]]}


def test_a_run_that_has_ended_is_forgotten(
    alone: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "QUIET_S", -1.0)
    sender = alone.sender
    sender.buffer_run(1)
    sender.on_aborted(1, FINISH)
    for run_id, end in enumerate((sender.on_finished, sender.on_aborted), start=2):
        sender.on_delta(run_id, Delta("x"))
        assert run_id in sender._undelayed_token_s
        end(run_id, FINISH)
    assert not sender._undelayed_token_s
    assert not sender._first_token_s
    assert not sender._buffered_runs


def test_a_token_does_not_overtake_what_is_being_sent(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "QUIET_S", -1.0)
    monkeypatch.setattr(engine.hosts.frame_sender, "MIN_SEND_INTERVAL_S", 0.0)
    with harness.sender._send_lock:
        harness.sender.on_delta(1, Delta("one"))
        harness.sender.on_delta(1, Delta("two"))
    harness.sender.on_delta(1, Delta("three"))
    texts: list[str] = []
    for frame in harness.frames():
        texts += frame["deltas"][0][1]
        if len(texts) == 3:
            break
    assert texts == ["one", "two", "three"]


def test_an_end_is_sent_with_all_before_it_by_the_thread_that_brings_it(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sender is kept from doing it.
    monkeypatch.setattr(harness.sender._wakeup, "set", lambda: None)
    harness.sender.buffer_run(1)
    for text in ("one", "two"):
        harness.sender.on_delta(1, Delta(text))
    harness.sender.on_finished(1, FINISH)
    assert next(harness.frames()) == {
        "deltas": [[1, ["one", "two"], None]],
        "finished": [[1, FINISH.to_wire()]],
    }


def test_what_nobody_reads_along_comes_in_few_frames(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "BUFFERED_DELAY_S", 20.0)
    said = harness.say_whole(1, 500)
    parts = harness.parts()
    assert [*chain.from_iterable(parts)] == said
    # The first token, which wakes the sender, what had come by then, and the rest.
    assert len(parts) <= 3


def test_what_nobody_reads_along_is_told_of_before_its_end(harness: SenderHarness) -> None:
    # The clocks of the other side count from the last token.
    harness.sender.buffer_run(1)
    frames = harness.frames()
    for text in ("one", "two", "three"):
        harness.sender.on_delta(1, Delta(text))
        assert next(frames) == {"deltas": [[1, [text], None]]}


def test_more_than_should_gather_is_sent_at_once(
    alone: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_DELAYED_DELTAS", 10)
    sender = alone.sender
    sender.buffer_run(1)
    sender.on_delta(1, Delta("x"))
    # From here on the sender knows when to look.
    sender._wakeup.clear()
    for _ in range(9):
        sender.on_delta(1, Delta("x"))
    assert not sender._wakeup.is_set()
    sender.on_delta(1, Delta("x"))
    assert sender._wakeup.is_set()


def test_the_end_of_an_aborted_run_comes_before_what_others_said_before_it(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slot that was taken back does not wait behind the chatter of others.
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_FRAME_DELTAS", 100)
    sender = harness.sender
    count = 7_000
    with sender._send_lock:
        # Nobody can send meanwhile.
        for number in range(count):
            sender.on_delta(number % 2, Delta(str(number)))
        sender.on_aborted(1, FINISH)
        sender.on_finished(0, FINISH)
    texts: list[str] = []
    said_before = -1
    for frame in harness.frames():
        for run_id, of_run, _ in frame.get("deltas", ()):
            texts += of_run if run_id == 0 else []
        ended = [run_id for run_id, _ in frame.get("finished", ())]
        if 1 in ended:
            said_before = len(texts)
        if 0 in ended:
            break
    assert 0 <= said_before <= 100
    assert texts == [str(number) for number in range(0, count, 2)]


def test_a_frame_under_way_is_all_that_an_aborted_run_waits_for(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_FRAME_DELTAS", 10)
    harness.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    sender = harness.sender
    with sender._send_lock:
        for number in range(5_000):
            sender.on_delta(0, Delta(str(number)))
        sender._wakeup.set()
    # The sender has begun with them and is stuck for a reader.
    frames = harness.frames(64)
    texts = list(next(frames)["deltas"][0][1])
    sender.on_aborted(1, FINISH)
    sender.on_finished(0, FINISH)
    said_before = -1
    for frame in frames:
        for _, of_run, _ in frame.get("deltas", ()):
            texts += of_run
        ended = [run_id for run_id, _ in frame.get("finished", ())]
        if 1 in ended:
            said_before = len(texts)
        if 0 in ended:
            break
    # What the socket held, and no more.
    assert 0 <= said_before < 2_500
    assert texts == [str(number) for number in range(5_000)]


def test_an_aborted_run_that_finds_the_sender_busy_is_sent_by_it(harness: SenderHarness) -> None:
    """Nothing else waits that would have it look again."""
    with harness.sender._send_lock:
        harness.sender.on_aborted(1, FINISH)
    assert next(harness.frames()) == {"finished": [[1, FINISH.to_wire()]]}


def test_what_one_end_has_gathered_is_still_sent_in_several_frames(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end of an aborted run could come between them."""
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_FRAME_DELTAS", 10)
    said = harness.say_whole(0, 95)
    parts = harness.parts()
    assert [*chain.from_iterable(parts)] == said
    assert max(map(len, parts)) <= 10


def test_the_kernel_holds_little_of_what_nobody_has_read(harness: SenderHarness) -> None:
    """Linux keeps twice of what it is told, for its own book-keeping."""
    held = harness.ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert held == 2 * engine.hosts.frame_sender._SEND_BUFFER_BYTES


def test_a_producer_without_room_is_woken_by_an_abort(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_PENDING_DELTAS", 3)
    waiting = threading.Event()
    sender = harness.sender

    class Room(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.set()
            return super().wait(timeout)

    sender._has_room = Room()
    with sender._send_lock:

        def produce() -> None:
            for _ in range(5):
                sender.on_delta(1, Delta("x"))

        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        assert waiting.wait(WAIT_S)
        for _ in range(10):
            sender.wake_producers()
            producer.join(0.05)
            if not producer.is_alive():
                break
        else:
            producer.join(WAIT_S)
        assert not producer.is_alive()
