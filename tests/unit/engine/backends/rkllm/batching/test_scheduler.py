"""Who runs with whom: batches over a runtime that is written here, one step at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import RunResult
from engine.backends.rkllm.batching import scheduler as module
from engine.backends.rkllm.batching.batch import Batch, BatchedRequest
from engine.backends.rkllm.batching.scheduler import BatchScheduler
from engine.backends.rkllm.structs import RKLLMResult
from engine.errors import BackendFailed
from engine.output import FinishReason
from engine.request import SamplingParams
from tests.waiting import PATIENCE, wait_until_blocking

NORMAL, WAITING, FINISH, ERROR = range(4)
PLACES = 3
CONTEXT = 64
BOUND_S = 10 * PATIENCE


class Answer(list[bytes]):
    """One request's pieces; `enough` is how many it wants."""

    def __init__(self, enough: int | None = None) -> None:
        super().__init__()
        self.enough = enough

    def __call__(self, piece: bytes, token_id: int, logprob: object) -> bool:
        self.append(piece)
        return len(self) == self.enough


class Library:
    """Runs batches as a runtime does; a run begins when it is let, and each token comes after."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.held = False
        self.aborted: set[Batch] = set()
        self.lengths: dict[int, int] = {}
        self.fails: Exception | None = None
        self.running = False

    def run(self, batch: Batch) -> None:
        prompts = batch.start()
        self.runs.append([prompt[0] for prompt in prompts])
        self.running = True
        self.begun.release()
        if self.held:
            assert self.go.acquire(timeout=BOUND_S)
        if self.fails is not None:
            self.running = False
            raise self.fails
        step = 0
        while step < CONTEXT and batch not in self.aborted:
            left = [self.lengths.get(prompt[0], CONTEXT) - step for prompt in prompts]
            left += [CONTEXT] * (PLACES - len(left))
            results = (RKLLMResult * PLACES)()
            for place, more in enumerate(left):
                results[place].token_id = step if more > 0 else -1
                if more > 0 and place < len(prompts):
                    results[place].text = b"%d/%d " % (step, prompts[place][0])
            if batch.on_result(results, NORMAL):
                break
            step += 1
        batch.on_result(None, FINISH)
        self.running = False

    def abort(self, batch: Batch) -> None:
        self.aborted.add(batch)


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def batches(library: Library) -> Iterator[BatchScheduler]:
    made = BatchScheduler(PLACES, library.run, library.abort)
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves nobody out who comes a moment later on a busy machine."""
    monkeypatch.setattr(module, "GATHER_WINDOW_S", 0.05 * PATIENCE)


def member(
    name: int, answer: Answer, *, batch_key: object = None, **sampling: Any
) -> BatchedRequest:
    return BatchedRequest(
        [name, 1], SamplingParams(**sampling), CONTEXT, answer, batch_key=batch_key
    )


class Crowd:
    """Lets requests come one after the other while the first run is held."""

    def __init__(self, batches: BatchScheduler, library: Library, pool: ThreadPoolExecutor) -> None:
        self.batches = batches
        self.library = library
        self.pool = pool
        self.members: dict[int, BatchedRequest] = {}
        self.answers: dict[int, Answer] = {}

    def come(
        self, name: int, tokens: int, *, batch_key: object = None, **options: Any
    ) -> Future[RunResult]:
        self.library.lengths[name] = tokens
        answer = self.answers[name] = Answer(options.pop("enough", None))
        one = self.members[name] = member(name, answer, batch_key=batch_key, **options)
        future = self.pool.submit(self.batches.run, one)
        wait_until(lambda: one.batch is not None or one in self.batches._waiting or future.done())
        return future


def wait_until(true: Callable[[], bool]) -> None:
    # A property comes here thousands of times.
    wait_until_blocking(true, BOUND_S, gap_s=0.001)


@pytest.fixture
def crowd(
    patient: None, batches: BatchScheduler, library: Library, pool: ThreadPoolExecutor
) -> Crowd:
    return Crowd(batches, library, pool)


def text(name: int, tokens: int) -> list[bytes]:
    return [b"%d/%d " % (i, name) for i in range(tokens)]


def test_each_request_gets_its_own_answer(crowd: Crowd) -> None:
    ends = {name: crowd.come(name, name) for name in (1, 5, 9)}
    for name, future in ends.items():
        end = future.result(BOUND_S)
        assert crowd.answers[name] == text(name, name)
        assert (end.prompt_tokens, end.completion_tokens) == (2, name)
        assert end.reason is FinishReason.STOP


def test_oldest_request_forms_a_batch_with_compatible_ones(crowd: Crowd, library: Library) -> None:
    library.held = True
    futures = [crowd.come(1, 2)]
    assert library.begun.acquire(timeout=BOUND_S)
    comers = [(2, "a"), (3, "b"), (4, "a"), (5, "b"), (6, "a"), (7, "a")]
    futures += [crowd.come(name, 2, batch_key=batch_key) for name, batch_key in comers]
    for _ in range(4):
        library.go.release()
    for future in futures:
        future.result(BOUND_S)
    # Three at most; the youngest waits for its turn, behind the older ones of another kind.
    assert library.runs == [[1], [2, 4, 6], [3, 5], [7]]


def test_exclusive_task_runs_in_order_of_age(
    crowd: Crowd, library: Library, batches: BatchScheduler, pool: ThreadPoolExecutor
) -> None:
    library.held = True
    futures = [crowd.come(1, 2)]
    assert library.begun.acquire(timeout=BOUND_S)
    seen: list[int] = []

    def work() -> str:
        assert not library.running
        seen.append(len(library.runs))
        return "done"

    futures.append(crowd.come(2, 2))
    alone = pool.submit(batches.run_exclusively, work)
    wait_until(lambda: len(batches._waiting) == 2)
    futures.append(crowd.come(3, 2, batch_key="other"))
    for _ in range(3):
        library.go.release()
    assert alone.result(BOUND_S) == "done"
    for future in futures:
        future.result(BOUND_S)
    assert (library.runs, seen) == ([[1], [2], [3]], [2])


def test_exclusive_task_raises_its_own_exception(batches: BatchScheduler) -> None:
    def work() -> None:
        raise BackendFailed("no vector")

    with pytest.raises(BackendFailed, match="no vector"):
        batches.run_exclusively(work)
    assert batches.run_exclusively(lambda: 3) == 3


def test_request_aborted_before_the_run_is_not_in_it(crowd: Crowd, library: Library) -> None:
    library.held = True
    first = crowd.come(1, 2)
    assert library.begun.acquire(timeout=BOUND_S)
    second, third = crowd.come(2, 2), crowd.come(3, 2)
    crowd.members[2].wakeup.set()
    assert second.result(BOUND_S).completion_tokens == 0
    library.go.release()
    library.go.release()
    first.result(BOUND_S)
    third.result(BOUND_S)
    assert library.runs == [[1], [3]]


def test_aborted_request_is_skipped_even_if_its_thread_is_slow(
    batches: BatchScheduler, library: Library
) -> None:
    gone = member(1, Answer())
    gone.wakeup.set()
    batches._enqueue(gone)
    batches.run(member(2, Answer(), max_tokens=5))
    assert library.runs == [[2]]


def test_aborted_request_returns_while_the_run_continues(crowd: Crowd, library: Library) -> None:
    library.held = True
    futures = {name: crowd.come(name, 40) for name in (1, 2, 3)}
    assert library.begun.acquire(timeout=BOUND_S)
    crowd.members[2].wakeup.set()
    futures[2].result(BOUND_S)
    assert not futures[1].done()
    assert not library.aborted
    library.go.release()
    assert futures[1].result(BOUND_S).completion_tokens == 40
    assert crowd.answers[2] == []


def test_last_request_aborts_the_run_and_waits_for_its_end(crowd: Crowd, library: Library) -> None:
    library.held = True
    futures = {name: crowd.come(name, 40) for name in (1, 2)}
    assert library.begun.acquire(timeout=BOUND_S)
    for name in futures:
        crowd.members[name].wakeup.set()
    wait_until(lambda: bool(library.aborted))
    # One of the two sees to the run's end, or nobody would find out that there is none.
    wait_until(lambda: any(future.done() for future in futures.values()))
    assert not all(future.done() for future in futures.values())
    library.go.release()
    for future in futures.values():
        future.result(BOUND_S)


def test_limit_and_stop_end_a_request(crowd: Crowd) -> None:
    limited = crowd.come(1, 40, max_tokens=7)
    enough = crowd.come(2, 40, enough=3)
    assert limited.result(BOUND_S).completion_tokens == 7
    assert enough.result(BOUND_S).completion_tokens == 3
    assert (crowd.answers[1], crowd.answers[2]) == (text(1, 7), text(2, 3))


def test_answer_fits_its_context(crowd: Crowd) -> None:
    end = crowd.come(1, 1000).result(BOUND_S)
    assert (end.completion_tokens, end.reason) == (CONTEXT - 2, FinishReason.LENGTH)


def test_failure_is_raised_for_all_requests_of_the_batch_only(
    crowd: Crowd, library: Library
) -> None:
    library.fails = BackendFailed("no luck")
    library.held = True
    futures = [crowd.come(name, 5) for name in (1, 2)]
    library.go.release()
    for future in futures:
        with pytest.raises(BackendFailed, match="no luck"):
            future.result(BOUND_S)
    library.fails, library.held = None, False
    assert crowd.come(3, 5).result(BOUND_S).completion_tokens == 5


def results_of(*places: tuple[bytes | None, int]) -> Any:
    made = (RKLLMResult * len(places))()
    for result, (piece, token_id) in zip(made, places, strict=True):
        result.text, result.token_id = piece, token_id
    return made


def test_text_may_be_missing_or_an_incomplete_character() -> None:
    one, other = Answer(), Answer()
    batch = Batch([member(1, one), member(2, other)], 2)
    batch.start()
    for state, first in ((WAITING, b"\xe2"), (NORMAL, None), (NORMAL, b"\xe2\x82\xac")):
        assert not batch.on_result(results_of((first, 7), (b"a", 8)), state)
    assert b"".join(one).decode() == "€"
    assert b"".join(other) == b"aaa"
    assert not batch.on_result(None, WAITING)
    batch.on_result(None, FINISH)
    assert batch.finished


def test_request_gets_no_tokens_after_it_has_left() -> None:
    one, other = Answer(), Answer()
    members = [member(1, one), member(2, other)]
    batch = Batch(members, 2)
    batch.start()
    batch.on_result(results_of((b"a", 1), (b"b", 1)), NORMAL)
    assert not batch.leave(members[0])
    batch.on_result(results_of((b"c", 1), (b"d", 1)), NORMAL)
    # The last one stays until the run has returned.
    assert batch.leave(members[1])
    batch.on_result(results_of((b"e", 1), (b"f", 1)), NORMAL)
    assert (one, other) == ([b"a"], [b"b", b"d"])


def test_prompt_of_a_request_that_has_left_is_not_computed() -> None:
    members = [member(1, Answer()), member(2, Answer())]
    batch = Batch(members, 2)
    batch.leave(members[0])
    assert batch.start() == [[1], [2, 1]]


@pytest.mark.parametrize(("filler", "aborts"), [(7, True), (-1, False)])
def test_run_is_aborted_if_only_abandoned_sequences_continue(filler: int, aborts: bool) -> None:
    batch = Batch([member(1, Answer())], 2)
    batch.start()
    assert batch.on_result(results_of((None, -1), (b"x", filler)), NORMAL) is aborts


COMERS = st.lists(
    st.tuples(
        st.integers(0, 30),  # tokens
        st.integers(1, 12) | st.none(),  # max_tokens
        st.integers(1, 12) | st.none(),  # enough
        st.sampled_from("ab"),  # batch_key
        st.integers(0, 8) | st.none(),  # leaves after so many pieces
    ),
    min_size=1,
    max_size=12,
)


@given(COMERS)
def test_any_schedule_gives_each_request_its_answer(
    comers: list[tuple[int, int | None, int | None, str, int | None]],
) -> None:
    library = Library()
    made = BatchScheduler(PLACES, library.run, library.abort)
    answers: list[Answer] = []
    members: list[BatchedRequest] = []
    for name, (tokens, limit, enough, batch_key, leaves) in enumerate(comers):
        library.lengths[name] = tokens
        answer = Answer(enough)
        one = member(name, answer, batch_key=batch_key, max_tokens=limit)
        if leaves == 0:
            one.wakeup.set()
        elif leaves is not None:
            one.on_piece = leaving(answer, one, leaves)
        answers.append(answer)
        members.append(one)
    with ThreadPoolExecutor(PLACES) as threads:
        ends = list(threads.map(made.run, members, timeout=BOUND_S))
    made.close()
    for name, (tokens, limit, enough, _, leaves) in enumerate(comers):
        most = min(tokens, limit or CONTEXT, enough or CONTEXT, CONTEXT - 2)
        got = answers[name]
        assert got == text(name, len(got))
        assert ends[name].completion_tokens == len(got) <= most
        if leaves is None:
            assert len(got) == most
    assert all(len(run) <= PLACES for run in library.runs)
    ran = [name for run in library.runs for name in run]
    assert len(ran) == len(set(ran))


def leaving(
    answer: Answer, one: BatchedRequest, after: int
) -> Callable[[bytes, int, object], bool]:
    def on_piece(piece: bytes, token_id: int, logprob: object) -> bool:
        enough = answer(piece, token_id, logprob)
        if len(answer) == after:
            one.wakeup.set()
        return enough

    return on_piece
