"""Batching over a fake runtime that generates one step at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import RunResult
from engine.backends.rkllm.abi.structs import RKLLMResult
from engine.backends.rkllm.batching import scheduler as module
from engine.backends.rkllm.batching.batch import Batch, BatchedRequest
from engine.backends.rkllm.batching.scheduler import BatchScheduler
from engine.errors import BackendFailed
from engine.output import FinishReason
from engine.request import SamplingParams
from tests.waiting import PATIENCE, wait_until_blocking

NORMAL, WAITING, FINISH, ERROR = range(4)
N_BATCH = 3
CONTEXT = 64
TIMEOUT_S = 10 * PATIENCE


class RecordedAnswer(list[bytes]):
    """Records one request's pieces; stops the request after `stop_after` of them."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.stop_after = stop_after

    def __call__(self, piece: bytes, token_id: int, logprob: object) -> bool:
        self.append(piece)
        return len(self) == self.stop_after


class FakeRuntime:
    """Runs batches like the real runtime; with `holds_runs` each run waits for `may_run`."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.started = threading.Semaphore(0)
        self.may_run = threading.Semaphore(0)
        self.holds_runs = False
        self.aborted: set[Batch] = set()
        self.lengths: dict[int, int] = {}
        self.failure: Exception | None = None
        self.running = False

    def run(self, batch: Batch) -> None:
        prompts = batch.start()
        self.runs.append([prompt[0] for prompt in prompts])
        self.running = True
        self.started.release()
        if self.holds_runs:
            assert self.may_run.acquire(timeout=TIMEOUT_S)
        if self.failure is not None:
            self.running = False
            raise self.failure
        step = 0
        while step < CONTEXT and batch not in self.aborted:
            remaining = [self.lengths.get(prompt[0], CONTEXT) - step for prompt in prompts]
            remaining += [CONTEXT] * (N_BATCH - len(remaining))
            results = (RKLLMResult * N_BATCH)()
            for index, remaining_tokens in enumerate(remaining):
                results[index].token_id = step if remaining_tokens > 0 else -1
                if remaining_tokens > 0 and index < len(prompts):
                    results[index].text = b"%d/%d " % (step, prompts[index][0])
            if batch.on_result(results, NORMAL):
                break
            step += 1
        batch.on_result(None, FINISH)
        self.running = False

    def abort(self, batch: Batch) -> None:
        self.aborted.add(batch)


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def scheduler(runtime: FakeRuntime) -> Iterator[BatchScheduler]:
    created = BatchScheduler(N_BATCH, runtime.run, runtime.abort)
    yield created
    created.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as created:
        yield created


@pytest.fixture
def long_gather_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathers requests long enough for a busy machine."""
    monkeypatch.setattr(module, "GATHER_WINDOW_S", 0.05 * PATIENCE)


def create_request(
    name: int, answer: RecordedAnswer, *, batch_key: object = None, **sampling: Any
) -> BatchedRequest:
    return BatchedRequest(
        [name, 1], SamplingParams(**sampling), CONTEXT, answer, batch_key=batch_key
    )


class Submitter:
    """Submits requests one after the other, while the first run may be held."""

    def __init__(
        self, scheduler: BatchScheduler, runtime: FakeRuntime, pool: ThreadPoolExecutor
    ) -> None:
        self.scheduler = scheduler
        self.runtime = runtime
        self.pool = pool
        self.requests: dict[int, BatchedRequest] = {}
        self.answers: dict[int, RecordedAnswer] = {}

    def submit(
        self, name: int, tokens: int, *, batch_key: object = None, **options: Any
    ) -> Future[RunResult]:
        self.runtime.lengths[name] = tokens
        answer = self.answers[name] = RecordedAnswer(options.pop("stop_after", None))
        request = self.requests[name] = create_request(name, answer, batch_key=batch_key, **options)
        future = self.pool.submit(self.scheduler.run, request)
        wait_until(
            lambda: request.batch is not None or request in self.scheduler._waiting or future.done()
        )
        return future


def wait_until(condition: Callable[[], bool]) -> None:
    # Short gaps, because a property test calls this thousands of times.
    wait_until_blocking(condition, TIMEOUT_S, gap_s=0.001)


@pytest.fixture
def submitter(
    long_gather_window: None,
    scheduler: BatchScheduler,
    runtime: FakeRuntime,
    pool: ThreadPoolExecutor,
) -> Submitter:
    return Submitter(scheduler, runtime, pool)


def text(name: int, tokens: int) -> list[bytes]:
    return [b"%d/%d " % (i, name) for i in range(tokens)]


def test_each_request_gets_its_own_answer(submitter: Submitter) -> None:
    results = {name: submitter.submit(name, name) for name in (1, 5, 9)}
    for name, future in results.items():
        result = future.result(TIMEOUT_S)
        assert submitter.answers[name] == text(name, name)
        assert (result.prompt_tokens, result.completion_tokens) == (2, name)
        assert result.reason is FinishReason.STOP


def test_oldest_request_forms_a_batch_with_compatible_ones(
    submitter: Submitter, runtime: FakeRuntime
) -> None:
    runtime.holds_runs = True
    futures = [submitter.submit(1, 2)]
    assert runtime.started.acquire(timeout=TIMEOUT_S)
    arrivals = [(2, "a"), (3, "b"), (4, "a"), (5, "b"), (6, "a"), (7, "a")]
    futures += [submitter.submit(name, 2, batch_key=batch_key) for name, batch_key in arrivals]
    for _ in range(4):
        runtime.may_run.release()
    for future in futures:
        future.result(TIMEOUT_S)
    # At most three; the youngest waits behind the older requests with another batch key.
    assert runtime.runs == [[1], [2, 4, 6], [3, 5], [7]]


def test_exclusive_task_runs_in_order_of_age(
    submitter: Submitter, runtime: FakeRuntime, scheduler: BatchScheduler, pool: ThreadPoolExecutor
) -> None:
    runtime.holds_runs = True
    futures = [submitter.submit(1, 2)]
    assert runtime.started.acquire(timeout=TIMEOUT_S)
    runs_before: list[int] = []

    def work() -> str:
        assert not runtime.running
        runs_before.append(len(runtime.runs))
        return "done"

    futures.append(submitter.submit(2, 2))
    exclusive = pool.submit(scheduler.run_exclusively, work)
    wait_until(lambda: len(scheduler._waiting) == 2)
    futures.append(submitter.submit(3, 2, batch_key="other"))
    for _ in range(3):
        runtime.may_run.release()
    assert exclusive.result(TIMEOUT_S) == "done"
    for future in futures:
        future.result(TIMEOUT_S)
    assert (runtime.runs, runs_before) == ([[1], [2], [3]], [2])


def test_exclusive_task_raises_its_own_exception(scheduler: BatchScheduler) -> None:
    def work() -> None:
        raise BackendFailed("no vector")

    with pytest.raises(BackendFailed, match="no vector"):
        scheduler.run_exclusively(work)
    assert scheduler.run_exclusively(lambda: 3) == 3


def test_request_aborted_before_the_run_is_not_in_it(
    submitter: Submitter, runtime: FakeRuntime
) -> None:
    runtime.holds_runs = True
    first = submitter.submit(1, 2)
    assert runtime.started.acquire(timeout=TIMEOUT_S)
    second, third = submitter.submit(2, 2), submitter.submit(3, 2)
    submitter.requests[2].wakeup.set()
    assert second.result(TIMEOUT_S).completion_tokens == 0
    runtime.may_run.release()
    runtime.may_run.release()
    first.result(TIMEOUT_S)
    third.result(TIMEOUT_S)
    assert runtime.runs == [[1], [3]]


def test_aborted_request_is_skipped_even_if_its_thread_is_slow(
    scheduler: BatchScheduler, runtime: FakeRuntime
) -> None:
    aborted = create_request(1, RecordedAnswer())
    aborted.wakeup.set()
    scheduler._enqueue(aborted)
    scheduler.run(create_request(2, RecordedAnswer(), max_tokens=5))
    assert runtime.runs == [[2]]


def test_aborted_request_returns_while_the_run_continues(
    submitter: Submitter, runtime: FakeRuntime
) -> None:
    runtime.holds_runs = True
    futures = {name: submitter.submit(name, 40) for name in (1, 2, 3)}
    assert runtime.started.acquire(timeout=TIMEOUT_S)
    submitter.requests[2].wakeup.set()
    futures[2].result(TIMEOUT_S)
    assert not futures[1].done()
    assert not runtime.aborted
    runtime.may_run.release()
    assert futures[1].result(TIMEOUT_S).completion_tokens == 40
    assert submitter.answers[2] == []


def test_last_request_aborts_the_run_and_waits_for_its_end(
    submitter: Submitter, runtime: FakeRuntime
) -> None:
    runtime.holds_runs = True
    futures = {name: submitter.submit(name, 40) for name in (1, 2)}
    assert runtime.started.acquire(timeout=TIMEOUT_S)
    for name in futures:
        submitter.requests[name].wakeup.set()
    wait_until(lambda: bool(runtime.aborted))
    # One of the two waits for the end of the run, so that its timeout detects a hanging runtime.
    wait_until(lambda: any(future.done() for future in futures.values()))
    assert not all(future.done() for future in futures.values())
    runtime.may_run.release()
    for future in futures.values():
        future.result(TIMEOUT_S)


def test_limit_and_stop_end_a_request(submitter: Submitter) -> None:
    limited = submitter.submit(1, 40, max_tokens=7)
    stop_after = submitter.submit(2, 40, stop_after=3)
    assert limited.result(TIMEOUT_S).completion_tokens == 7
    assert stop_after.result(TIMEOUT_S).completion_tokens == 3
    assert (submitter.answers[1], submitter.answers[2]) == (text(1, 7), text(2, 3))


def test_answer_fits_its_context(submitter: Submitter) -> None:
    result = submitter.submit(1, 1000).result(TIMEOUT_S)
    assert (result.completion_tokens, result.reason) == (CONTEXT - 2, FinishReason.LENGTH)


def test_failure_is_raised_for_all_requests_of_the_batch_only(
    submitter: Submitter, runtime: FakeRuntime
) -> None:
    runtime.failure = BackendFailed("no luck")
    runtime.holds_runs = True
    futures = [submitter.submit(name, 5) for name in (1, 2)]
    runtime.may_run.release()
    for future in futures:
        with pytest.raises(BackendFailed, match="no luck"):
            future.result(TIMEOUT_S)
    runtime.failure, runtime.holds_runs = None, False
    assert submitter.submit(3, 5).result(TIMEOUT_S).completion_tokens == 5


def results_of(*outputs: tuple[bytes | None, int]) -> Any:
    created = (RKLLMResult * len(outputs))()
    for result, (piece, token_id) in zip(created, outputs, strict=True):
        result.text, result.token_id = piece, token_id
    return created


def test_text_may_be_missing_or_an_incomplete_character() -> None:
    request, other = RecordedAnswer(), RecordedAnswer()
    batch = Batch([create_request(1, request), create_request(2, other)], 2)
    batch.start()
    for state, first in ((WAITING, b"\xe2"), (NORMAL, None), (NORMAL, b"\xe2\x82\xac")):
        assert not batch.on_result(results_of((first, 7), (b"a", 8)), state)
    assert b"".join(request).decode() == "€"
    assert b"".join(other) == b"aaa"
    assert not batch.on_result(None, WAITING)
    batch.on_result(None, FINISH)
    assert batch.finished


def test_request_gets_no_tokens_after_it_has_left() -> None:
    request, other = RecordedAnswer(), RecordedAnswer()
    requests = [create_request(1, request), create_request(2, other)]
    batch = Batch(requests, 2)
    batch.start()
    batch.on_result(results_of((b"a", 1), (b"b", 1)), NORMAL)
    assert not batch.leave(requests[0])
    batch.on_result(results_of((b"c", 1), (b"d", 1)), NORMAL)
    # The last one waits until the run has returned.
    assert batch.leave(requests[1])
    batch.on_result(results_of((b"e", 1), (b"f", 1)), NORMAL)
    assert (request, other) == ([b"a"], [b"b", b"d"])


def test_prompt_of_a_request_that_has_left_is_not_computed() -> None:
    requests = [create_request(1, RecordedAnswer()), create_request(2, RecordedAnswer())]
    batch = Batch(requests, 2)
    batch.leave(requests[0])
    assert batch.start() == [[1], [2, 1]]


@pytest.mark.parametrize(("filler", "aborts"), [(7, True), (-1, False)])
def test_run_is_aborted_if_only_abandoned_sequences_continue(filler: int, aborts: bool) -> None:
    batch = Batch([create_request(1, RecordedAnswer())], 2)
    batch.start()
    assert batch.on_result(results_of((None, -1), (b"x", filler)), NORMAL) is aborts


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 30),  # tokens
        st.integers(1, 12) | st.none(),  # max_tokens
        st.integers(1, 12) | st.none(),  # stop_after
        st.sampled_from("ab"),  # batch_key
        st.integers(0, 8) | st.none(),  # aborted after this many pieces
    ),
    min_size=1,
    max_size=12,
)


@given(ARRIVALS)
def test_any_schedule_gives_each_request_its_answer(
    arrivals: list[tuple[int, int | None, int | None, str, int | None]],
) -> None:
    runtime = FakeRuntime()
    created = BatchScheduler(N_BATCH, runtime.run, runtime.abort)
    answers: list[RecordedAnswer] = []
    requests: list[BatchedRequest] = []
    for name, (tokens, limit, stop_after, batch_key, leaves_after) in enumerate(arrivals):
        runtime.lengths[name] = tokens
        answer = RecordedAnswer(stop_after)
        request = create_request(name, answer, batch_key=batch_key, max_tokens=limit)
        if leaves_after == 0:
            request.wakeup.set()
        elif leaves_after is not None:
            request.on_piece = abort_after(answer, request, leaves_after)
        answers.append(answer)
        requests.append(request)
    with ThreadPoolExecutor(N_BATCH) as threads:
        results = list(threads.map(created.run, requests, timeout=TIMEOUT_S))
    created.close()
    for name, (tokens, limit, stop_after, _, leaves_after) in enumerate(arrivals):
        expected = min(tokens, limit or CONTEXT, stop_after or CONTEXT, CONTEXT - 2)
        answer_pieces = answers[name]
        assert answer_pieces == text(name, len(answer_pieces))
        assert results[name].completion_tokens == len(answer_pieces) <= expected
        if leaves_after is None:
            assert len(answer_pieces) == expected
    assert all(len(run) <= N_BATCH for run in runtime.runs)
    run_names = [name for run in runtime.runs for name in run]
    assert len(run_names) == len(set(run_names))


def abort_after(
    answer: RecordedAnswer, request: BatchedRequest, after: int
) -> Callable[[bytes, int, object], bool]:
    def on_piece(piece: bytes, token_id: int, logprob: object) -> bool:
        stop_after = answer(piece, token_id, logprob)
        if len(answer) == after:
            request.wakeup.set()
        return stop_after

    return on_piece
