"""A runner over a tiny backend: results, failures, and an abort at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest

from engine.backends.base import OnPiece, Operations, RunResult, SideCall
from engine.capabilities import Capabilities
from engine.errors import BackendFailed, EngineError, RequestRejected, UnsupportedParameter
from engine.output import Delta, Finish
from engine.request import Chat, Message, Prompt, RenderedPrompt, SamplingParams
from engine.runs.runner import Runner

Body = Callable[[RenderedPrompt, OnPiece, threading.Event], RunResult]


class TinyBackend:
    """Runs a function, and accepts aborts during a run, like a real backend."""

    def __init__(self, body: Body, slots: int = 2) -> None:
        self.body = body
        self.slots = slots
        self.aborts: dict[int, threading.Event] = {}
        self.may_embed = threading.Event()
        self.closed_with: list[int] | None = None

    def load(self) -> Capabilities:
        return Capabilities(backend="tiny", model="tiny", context_length=10, slots=self.slots)

    @property
    def operations(self) -> Operations:
        return {"render": self.render, "tokenize": self.tokenize, "embed": self.embed}

    def render(self, chat: Chat) -> str:
        if not chat.messages:
            raise RequestRejected("messages: there are none")
        return "|".join(message.content for message in chat.messages)

    def tokenize(self, prompt: str | Chat) -> list[int]:
        return [ord(char) // (char != "!") for char in str(prompt)]

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        assert self.may_embed.wait(10)
        return [1.0], len(text)

    def run(
        self, run_id: int, prompt: Prompt, sampling: SamplingParams, on_piece: OnPiece
    ) -> RunResult:
        aborted = self.aborts.setdefault(run_id, threading.Event())
        try:
            text = self.render(prompt) if isinstance(prompt, Chat) else prompt
            return self.body(text, on_piece, aborted)
        finally:
            del self.aborts[run_id]

    def abort(self, run_id: int) -> None:
        self.aborts.setdefault(run_id, threading.Event()).set()

    def close(self) -> None:
        self.closed_with = list(self.aborts)


class RecordingSink:
    """A sink that can be waited on."""

    def __init__(self) -> None:
        self.texts: list[tuple[int, str]] = []
        self.finishes: dict[int, Finish] = {}
        self.errors: dict[int, EngineError] = {}
        self.cut: list[int] = []
        self.ended = threading.Semaphore(0)
        self.answers: list[tuple[Any, EngineError | None]] = []

    def on_delta(self, run_id: int, delta: Delta) -> None:
        self.texts.append((run_id, delta.text))

    def on_finished(self, run_id: int, finish: Finish) -> None:
        self.finishes[run_id] = finish
        self.ended.release()

    def on_aborted(self, run_id: int, end: Finish | EngineError) -> None:
        self.cut.append(run_id)
        if isinstance(end, Finish):
            self.on_finished(run_id, end)
        else:
            self.on_failed(run_id, end)

    def on_failed(self, run_id: int, error: EngineError) -> None:
        self.errors[run_id] = error
        self.ended.release()

    def answer(self, result: Any, error: EngineError | None) -> None:
        self.answers.append((result, error))
        self.ended.release()

    def wait(self) -> None:
        assert self.ended.acquire(timeout=30)


@contextmanager
def running(body: Body) -> Iterator[tuple[Runner, RecordingSink, TinyBackend]]:
    backend, results = TinyBackend(body), RecordingSink()
    runner = Runner(backend, results)
    runner.load()
    yield runner, results, backend
    runner.close()
    assert backend.closed_with == []


def echo(prompt: RenderedPrompt, on_piece: OnPiece, aborted: threading.Event) -> RunResult:
    on_piece(str(prompt).encode(), 1, None)
    return RunResult(prompt_tokens=1)


def test_run_sends_its_deltas_and_its_finish() -> None:
    with running(echo) as (runner, results, _):
        runner.start(5, "hello", SamplingParams())
        results.wait()
        assert results.texts == [(5, "hello")]
        assert results.finishes[5].usage.completion_tokens == 1
        assert results.cut == []


def test_chat_is_rendered_first() -> None:
    # R38
    with running(echo) as (runner, results, _):
        runner.start(1, Chat((Message("user", "a"), Message("user", "b"))), SamplingParams())
        results.wait()
        assert results.texts == [(1, "a|b")]


def test_chat_that_cannot_be_rendered_fails_its_request_only() -> None:
    with running(echo) as (runner, results, _):
        runner.start(1, Chat(()), SamplingParams())
        results.wait()
        assert type(results.errors[1]) is RequestRejected
        runner.start(2, "next", SamplingParams())
        results.wait()
        assert results.texts == [(2, "next")]


def test_exception_of_a_backend_fails_only_its_request(caplog: pytest.LogCaptureFixture) -> None:
    def body(*_: object) -> RunResult:
        raise ZeroDivisionError("by nothing")

    with running(body) as (runner, results, _):
        runner.start(1, "x", SamplingParams())
        results.wait()
    assert type(results.errors[1]) is BackendFailed
    assert "by nothing" in results.errors[1].message
    assert "ZeroDivisionError" in caplog.text


def test_bad_stop_string_fails_its_request_and_not_the_caller() -> None:
    with running(echo) as (runner, results, _):
        runner.start(1, "x", SamplingParams(stop=("",)))
        results.wait()
        assert type(results.errors[1]) is RequestRejected
        assert "stop string" in results.errors[1].message


def test_abort_ends_a_silent_run_and_drops_its_late_output() -> None:
    # R31
    started = threading.Event()

    def body(prompt: RenderedPrompt, on_piece: OnPiece, aborted: threading.Event) -> RunResult:
        started.set()
        assert aborted.wait(10)
        assert on_piece(b"late", 1, None)
        return RunResult()

    with running(body) as (runner, results, _):
        runner.start(1, "x", SamplingParams())
        assert started.wait(10)
        runner.abort(1)
        results.wait()
        assert results.texts == []
        # Reported as aborted, because its end may overtake the output of other runs.
        assert results.cut == [1]


@pytest.mark.parametrize("error", [BackendFailed("without a word"), KeyError("a bug")])
def test_run_that_fails_after_its_abort_is_reported_as_aborted(error: Exception) -> None:
    """Its slot must be released as soon as that of a successful run."""
    started = threading.Event()

    def body(prompt: RenderedPrompt, on_piece: OnPiece, aborted: threading.Event) -> RunResult:
        started.set()
        assert aborted.wait(10)
        raise error

    with running(body) as (runner, results, _):
        runner.start(1, "x", SamplingParams())
        assert started.wait(10)
        runner.abort(1)
        results.wait()
        assert results.cut == [1]
        assert type(results.errors[1]) is BackendFailed


def test_abort_during_rendering_reaches_the_run() -> None:
    # R31: otherwise a prefill of minutes would continue without a client.
    rendering, rendered = threading.Event(), threading.Event()
    was_aborted: list[bool] = []

    def body(prompt: RenderedPrompt, on_piece: OnPiece, aborted: threading.Event) -> RunResult:
        was_aborted.append(aborted.is_set())
        return RunResult()

    with running(body) as (runner, results, backend):

        def render(chat: Chat) -> str:
            rendering.set()
            assert rendered.wait(10)
            return "prompt"

        backend.render = render  # type: ignore[method-assign]
        runner.start(1, Chat(()), SamplingParams())
        assert rendering.wait(10)
        runner.abort(1)
        rendered.set()
        results.wait()
    assert was_aborted == [True] or was_aborted == []


def test_abort_of_an_ended_or_unknown_run_is_ignored() -> None:
    with running(echo) as (runner, results, backend):
        runner.abort(1)
        runner.start(1, "x", SamplingParams())
        results.wait()
        runner.abort(1)
        assert results.texts == [(1, "x")]
        assert backend.aborts == {}


def test_side_calls_do_not_wait_behind_runs() -> None:
    release = threading.Event()

    def body(prompt: RenderedPrompt, on_piece: OnPiece, aborted: threading.Event) -> RunResult:
        assert release.wait(10)
        return RunResult()

    with running(body) as (runner, results, _):
        runner.start(1, "x", SamplingParams())
        runner.start(2, "x", SamplingParams())
        runner.call("tokenize", "ab", results.answer)
        results.wait()
        assert results.answers == [([97, 98], None)]
        release.set()


def test_side_calls_do_not_wait_behind_embeddings() -> None:
    with running(echo) as (runner, results, backend):
        runner.call("embed", "abc", results.answer)
        runner.call("tokenize", "ab", results.answer)
        results.wait()
        assert results.answers == [([97, 98], None)]
        backend.may_embed.set()
        results.wait()
        assert results.answers[1:] == [(([1.0], 3), None)]


def test_side_call_that_raises_answers_with_an_error() -> None:
    with running(echo) as (runner, results, _):
        runner.call("tokenize", "!", results.answer)
        runner.call("render", Chat(()), results.answer)
        results.wait()
        results.wait()
    (_, broken), (_, rejected) = results.answers
    assert type(broken) is BackendFailed
    assert type(rejected) is RequestRejected


def test_operation_that_the_backend_lacks_is_unsupported() -> None:
    with running(echo) as (runner, results, _):
        runner.call("rerank", ["query", "document"], results.answer)
        results.wait()
    ((_, error),) = results.answers
    assert type(error) is UnsupportedParameter
    assert str(error) == "this engine has no operation rerank"


def test_operation_on_tokens_that_the_backend_lacks_names_its_parameter() -> None:
    with running(echo) as (runner, results, _):
        runner.call("detokenize", [1], results.answer)
        results.wait()
    ((_, error),) = results.answers
    assert isinstance(error, UnsupportedParameter)
    assert str(error) == "tokens: this engine does not have the tokens of its model"
    assert error.details == {"param": "tokens"}


def test_every_operation_has_a_name_and_a_type() -> None:
    assert set(get_args(SideCall)) == Operations.__annotations__.keys()


def test_close_aborts_the_runs_first() -> None:
    started = threading.Event()

    def body(prompt: RenderedPrompt, on_piece: OnPiece, aborted: threading.Event) -> RunResult:
        started.set()
        assert aborted.wait(10)
        return RunResult()

    with running(body) as (runner, results, _):
        runner.start(1, "x", SamplingParams())
        assert started.wait(10)
    assert list(results.finishes) == [1]
