"""The frame sender of the host process, with a real socket."""

from __future__ import annotations

import math
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

import engine.hosts.frame_sender
from engine.errors import BackendFailed
from engine.hosts.frame_sender import FrameSender
from engine.hosts.frames import build_decoder
from engine.output import Delta, Finish, FinishReason, TokenLogprob, Usage
from engine.runs.channel import DeltaChannel
from tests.waiting import WAIT_S

# As `max_delay_age_ratio`: every run sends at most once per `min_send_interval_s`, as an old run.
OLD = 1e12
FINISH = Finish(reason=FinishReason.STOP, usage=Usage(1, 2))


class SenderHarness:
    """A frame sender and the reader of its socket."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(WAIT_S)
        self.sender = FrameSender(self.ours)
        self._decoder = build_decoder()

    def set_pacing(self, **changes: Any) -> None:
        """Change how long deltas wait to be sent."""
        self.sender.pacing = replace(self.sender.pacing, **changes)

    def frames(self, size: int = 65536) -> Iterator[dict[str, Any]]:
        while True:
            yield from self._decoder.feed(self.theirs.recv(size))

    def send_buffered(self, run_id: int, count: int) -> list[str]:
        """Send this many tokens and the end of a buffered run; return the tokens."""
        texts = [str(number) for number in range(count)]
        self.sender.buffer_run(run_id)
        for text in texts:
            self.sender.on_delta(run_id, Delta(text))
        self.sender.on_finished(run_id, FINISH)
        return texts

    def parts(self) -> list[list[str]]:
        """Return the tokens of the only run, frame by frame, to its end."""
        parts: list[list[str]] = []
        for frame in self.frames():
            parts.append([text for _, of_run, _ in frame.get("deltas", ()) for text in of_run])
            if "finished" in frame:
                break
        return parts

    def close(self) -> None:
        self.theirs.close()


class SimulatedSender:
    """The sender thread and the runs, simulated on one thread with a clock that never waits.

    It stands for the module `time` and for the event that wakes the sender.
    """

    def __init__(self, harness: SenderHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self._harness = harness
        self._scheduled: list[tuple[float, int, str]] = []
        self._frames: list[dict[str, Any]] = []
        self._came: dict[str, float] = {}
        self._awake = False
        monkeypatch.setattr(engine.hosts.frame_sender, "time", self)
        monkeypatch.setattr(harness.sender, "_wakeup", self)
        monkeypatch.setattr(harness.sender, "_channel", DeltaChannel(self.set))
        harness.theirs.setblocking(False)

    def arrival_times(self) -> dict[str, float]:
        """Return when each token arrived, by its text."""
        self.frames()
        return self._came

    def schedule(self, run_id: int, gap_s: float, texts: list[str]) -> None:
        """Schedule the tokens of a run from now on, one every `gap_s`."""
        self._scheduled += [
            (self.now_s + at * gap_s, run_id, text) for at, text in enumerate(texts)
        ]
        self._scheduled.sort(key=lambda item: item[0])

    def frames(self) -> list[dict[str, Any]]:
        """Run until everything is sent, and return the frames."""
        sender = self._harness.sender
        while self._scheduled or sender._channel.pending or sender._poll_s < threading.TIMEOUT_MAX:
            sender._wait()
            sender._send_all()
            self._read()
        return self._frames

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for frame in self._harness.frames():
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
        while self._scheduled and not self._awake and self._scheduled[0][0] <= until_s:
            self.now_s, run_id, text = self._scheduled.pop(0)
            self._harness.sender.on_delta(run_id, Delta(text))
            self._read()
        if timeout == threading.TIMEOUT_MAX and not self._scheduled:
            # Nothing is scheduled any more.
            return True
        if not self._awake:
            self.now_s = until_s
        return self._awake


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> Iterator[SenderHarness]:
    """A frame sender without a sender thread: all frames are sent by the runs' threads."""
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
    # The sender thread finds the socket closed and ends.
    harness.sender.send_message({"to": "parent"})
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


@pytest.mark.long_except("0.0-1000.0", "1000.0-0.0", "-1.0-0.0")
@pytest.mark.parametrize("pace_s", [0.0, 1000.0])
@pytest.mark.parametrize("quiet_s", [-1.0, 0.0, 1000.0])
def test_producers_wait_for_a_slow_reader_and_nothing_is_lost(
    harness: SenderHarness,
    scale: int,
    quiet_s: float,
    pace_s: float,
) -> None:
    # Below zero every token is sent by its own thread if that needs no waiting, unless the minimum
    # interval delays all but the first.
    harness.set_pacing(quiet_s=quiet_s, min_send_interval_s=pace_s, max_pending_deltas=3)
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


def test_closed_reader_does_not_block_producers(harness: SenderHarness) -> None:
    harness.set_pacing(max_pending_deltas=3)

    def produce() -> None:
        for _ in range(100_000):
            harness.sender.on_delta(1, Delta("x"))

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    next(harness.frames())
    harness.close()
    producer.join(WAIT_S)
    assert not producer.is_alive()


def test_room_made_just_before_the_wait_is_noticed(harness: SenderHarness) -> None:
    # Otherwise the producer sends it itself, and nothing is pending.
    harness.set_pacing(max_pending_deltas=0, quiet_s=math.inf)
    sender = harness.sender

    looked = threading.Event()

    class Room(threading.Event):
        def clear(self) -> None:
            looked.set()
            # The sender drains everything between the producer's two checks.
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
    # Other producers that wait are woken too.
    assert sender._has_room.is_set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_failed_sender_ends_the_process(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Otherwise the host would go on without output, and its requests would wait for timeouts.
    ended = threading.Event()

    def fake_exit(code: int) -> None:
        ended.set()
        raise SystemExit(code)

    monkeypatch.setattr(engine.hosts.frame_sender, "exit_now", fake_exit)
    harness.sender.send_message({"what": object()})
    assert ended.wait(10)
    assert "TypeError" in capfd.readouterr().err


def test_lone_token_is_sent_by_its_own_thread(threadless: SenderHarness) -> None:
    threadless.sender.on_delta(1, Delta("one"))
    assert next(threadless.frames()) == {"deltas": [[1, ["one"], None]]}


def test_token_with_logprobs_is_sent_by_the_sender_thread(threadless: SenderHarness) -> None:
    """The model waits while its own thread encodes."""
    threadless.theirs.setblocking(False)
    threadless.sender.on_delta(1, Delta("one", TokenLogprob("one", -0.5, ())))
    with pytest.raises(BlockingIOError):
        next(threadless.frames())
    assert len(threadless.sender._channel.pending) == 1
    assert threadless.sender._wakeup.is_set()


def test_tokens_of_a_fast_run_share_frames(harness: SenderHarness) -> None:
    harness.set_pacing(
        max_delay_age_ratio=OLD, quiet_s=-1.0, min_send_interval_s=1000.0, max_delay_s=1000.0
    )
    frames = harness.frames()
    for text in ("first", "second"):
        # The second one wakes the sender thread, which must learn its polling interval.
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
def test_run_sends_at_most_one_frame_per_min_send_interval(
    threadless: SenderHarness, monkeypatch: pytest.MonkeyPatch, gap_s: float, shared: int
) -> None:
    """The sender thread also polls at times when nothing is due."""
    simulation = SimulatedSender(threadless, monkeypatch)
    texts = [str(number) for number in range(300)]
    simulation.schedule(1, gap_s, texts)
    frames = [run_texts for frame in simulation.frames() for _, run_texts, _ in frame["deltas"]]
    assert [*chain.from_iterable(frames)] == texts
    # A young run sends a few more frames.
    assert len(frames) <= len(texts) / shared + 16
    [first, *_], late = frames, frames[len(frames) // 2 :]
    assert len(first) == 1
    assert sum(map(len, late)) / len(late) > shared - 1
    # And not fewer frames than the interval allows: no token is delayed without need.
    assert max(map(len, frames)) <= shared


@pytest.mark.parametrize("tokens_per_second", [50, 200, 400, 1_000])
def test_young_run_sends_a_short_answer_in_many_frames(
    threadless: SenderHarness, monkeypatch: pytest.MonkeyPatch, tokens_per_second: int
) -> None:  # R59
    simulation = SimulatedSender(threadless, monkeypatch)
    simulation.schedule(1, 1 / tokens_per_second, [str(number) for number in range(40)])
    frames = [run_texts for frame in simulation.frames() for _, run_texts, _ in frame["deltas"]]
    assert len(frames) >= 12
    # In all of the answer, and not only at its beginning.
    assert max(map(len, frames)) <= 8


def test_token_waits_at_most_max_delay_for_others(
    threadless: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft model produces several tokens together, followed by a pause."""
    simulation = SimulatedSender(threadless, monkeypatch)
    texts: dict[str, float] = {}
    for clump in range(10):
        texts |= {f"{clump}.{number}": simulation.now_s for number in range(4)}
        simulation.schedule(1, 0.0, [f"{clump}.{number}" for number in range(4)])
        simulation.now_s += 0.15
    simulation.now_s = min(texts.values())
    arrival_times = simulation.arrival_times()
    assert arrival_times.keys() == texts.keys()
    late = {text: round(arrival_times[text] - texts[text], 6) for text in texts}
    assert max(late.values()) <= 0.05
    # The first token of each group is sent at once.
    assert {late[f"{clump}.0"] for clump in range(10)} == {0.0}


def test_buffered_answer_is_sent_five_times_a_second(
    threadless: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = SimulatedSender(threadless, monkeypatch)
    threadless.sender.buffer_run(1)
    simulation.schedule(1, 0.02, [str(number) for number in range(200)])
    assert len(simulation.frames()) <= 4 / 0.2 + 3


def test_sender_thread_sleeps_when_everything_is_sent(
    threadless: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = SimulatedSender(threadless, monkeypatch)
    threadless.sender.buffer_run(2)
    simulation.schedule(1, 0.008, ["one", "two", "three"])
    simulation.schedule(2, 0.008, ["buffered"] * 100)
    simulation.frames()
    # After everything was sent, and soon.
    assert threadless.sender._poll_s == threading.TIMEOUT_MAX
    assert simulation.now_s - 1000.8 < 1.0


def test_token_of_a_fast_run_is_sent_without_a_next_one(harness: SenderHarness) -> None:
    # The delay of buffered runs does not apply.
    harness.set_pacing(
        max_delay_age_ratio=OLD, quiet_s=-1.0, min_send_interval_s=1000.0, buffered_delay_s=1000.0
    )
    frames = harness.frames()
    harness.sender.buffer_run(2)
    harness.sender.on_delta(2, Delta("buffered"))
    assert next(frames) == {"deltas": [[2, ["buffered"], None]]}
    for text in ("first", "second", "third", "fourth"):
        harness.sender.on_delta(1, Delta(text))
        assert next(frames) == {"deltas": [[1, [text], None]]}


def test_fast_run_does_not_delay_other_runs(threadless: SenderHarness) -> None:
    threadless.set_pacing(max_delay_age_ratio=OLD, quiet_s=-1.0, min_send_interval_s=1000.0)
    frames = threadless.frames()
    threadless.sender.on_delta(1, Delta("fast"))
    assert next(frames) == {"deltas": [[1, ["fast"], None]]}
    threadless.sender.on_delta(1, Delta("faster"))
    threadless.sender.on_delta(2, Delta("slow"))
    assert next(frames) == {"deltas": [[1, ["faster"], None], [2, ["slow"], None]]}


def test_state_of_an_ended_run_is_removed(threadless: SenderHarness) -> None:
    threadless.set_pacing(quiet_s=-1.0)
    sender = threadless.sender
    sender.buffer_run(1)
    sender.on_aborted(1, FINISH)
    for run_id, end in enumerate((sender.on_finished, sender.on_aborted), start=2):
        sender.on_delta(run_id, Delta("x"))
        assert run_id in sender._undelayed_token_s
        end(run_id, FINISH)
    assert not sender._undelayed_token_s
    assert not sender._first_token_s
    assert not sender._buffered_runs


def test_token_does_not_overtake_items_being_sent(harness: SenderHarness) -> None:
    harness.set_pacing(quiet_s=-1.0, min_send_interval_s=0.0)
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


def test_end_of_a_run_is_sent_by_its_own_thread_after_pending_items(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Keep the sender thread from sending it.
    monkeypatch.setattr(harness.sender._wakeup, "set", lambda: None)
    harness.sender.buffer_run(1)
    for text in ("one", "two"):
        harness.sender.on_delta(1, Delta(text))
    harness.sender.on_finished(1, FINISH)
    assert next(harness.frames()) == {
        "deltas": [[1, ["one", "two"], None]],
        "finished": [[1, FINISH.to_wire()]],
    }


def test_buffered_run_is_sent_in_few_frames(harness: SenderHarness) -> None:
    harness.set_pacing(buffered_delay_s=20.0)
    texts = harness.send_buffered(1, 500)
    parts = harness.parts()
    assert [*chain.from_iterable(parts)] == texts
    # The first token, which wakes the sender thread, the tokens until then, and the rest.
    assert len(parts) <= 3


def test_buffered_run_is_sent_before_its_end(harness: SenderHarness) -> None:
    # The parent's timeouts count from the last token.
    harness.sender.buffer_run(1)
    frames = harness.frames()
    for text in ("one", "two", "three"):
        harness.sender.on_delta(1, Delta(text))
        assert next(frames) == {"deltas": [[1, [text], None]]}


def test_max_delayed_deltas_wake_the_sender(
    threadless: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_DELAYED_DELTAS", 10)
    sender = threadless.sender
    sender.buffer_run(1)
    sender.on_delta(1, Delta("x"))
    # From here on the sender thread knows its polling interval.
    sender._wakeup.clear()
    for _ in range(9):
        sender.on_delta(1, Delta("x"))
    assert not sender._wakeup.is_set()
    sender.on_delta(1, Delta("x"))
    assert sender._wakeup.is_set()


def test_end_of_an_aborted_run_overtakes_pending_deltas(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slot that was taken back does not wait behind the output of other runs.
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_FRAME_DELTAS", 100)
    sender = harness.sender
    count = 7_000
    with sender._send_lock:
        # No thread can send meanwhile.
        for number in range(count):
            sender.on_delta(number % 2, Delta(str(number)))
        sender.on_aborted(1, FINISH)
        sender.on_finished(0, FINISH)
    texts: list[str] = []
    texts_before = -1
    for frame in harness.frames():
        for run_id, of_run, _ in frame.get("deltas", ()):
            texts += of_run if run_id == 0 else []
        ended = [run_id for run_id, _ in frame.get("finished", ())]
        if 1 in ended:
            texts_before = len(texts)
        if 0 in ended:
            break
    assert 0 <= texts_before <= 100
    assert texts == [str(number) for number in range(0, count, 2)]


def test_end_of_an_aborted_run_waits_only_for_the_current_frame(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_FRAME_DELTAS", 10)
    harness.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    sender = harness.sender
    with sender._send_lock:
        for number in range(5_000):
            sender.on_delta(0, Delta(str(number)))
        sender._wakeup.set()
    # The sender thread has begun to send them, and waits for the reader.
    frames = harness.frames(64)
    texts = list(next(frames)["deltas"][0][1])
    sender.on_aborted(1, FINISH)
    sender.on_finished(0, FINISH)
    texts_before = -1
    for frame in frames:
        for _, of_run, _ in frame.get("deltas", ()):
            texts += of_run
        ended = [run_id for run_id, _ in frame.get("finished", ())]
        if 1 in ended:
            texts_before = len(texts)
        if 0 in ended:
            break
    # At most the bytes in the socket's buffer.
    assert 0 <= texts_before < 2_500
    assert texts == [str(number) for number in range(5_000)]


def test_end_of_an_aborted_run_is_sent_when_the_sender_is_busy(harness: SenderHarness) -> None:
    """Nothing else is pending that would wake the sender thread."""
    with harness.sender._send_lock:
        harness.sender.on_aborted(1, FINISH)
    assert next(harness.frames()) == {"finished": [[1, FINISH.to_wire()]]}


def test_buffered_answer_is_sent_in_several_frames_at_its_end(
    harness: SenderHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of an aborted run can be sent between them."""
    monkeypatch.setattr(engine.hosts.frame_sender, "MAX_FRAME_DELTAS", 10)
    texts = harness.send_buffered(0, 95)
    parts = harness.parts()
    assert [*chain.from_iterable(parts)] == texts
    assert max(map(len, parts)) <= 10


def test_send_buffer_of_the_kernel_is_small(harness: SenderHarness) -> None:
    """Linux doubles the value, for its own book-keeping."""
    held = harness.ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert held == 2 * engine.hosts.frame_sender._SEND_BUFFER_BYTES


def test_producer_without_room_is_woken_by_an_abort(harness: SenderHarness) -> None:
    harness.set_pacing(max_pending_deltas=3)
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
