"""Process long texts in a thread, so that the event loop stays responsive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engine import Chat, GenerationRequest, Message
from handler.input.options import OptionsInput, OptionsReader
from handler.input.request import TextRequest
from tests.unit.handler.conftest import ExclamationValidator, PipelineFactory
from validation import Issue, Options, Removal, Subject, Verdict

LONG = "so long " * 2_000
SHORT = "so short"


class OffloadRecorder:
    """Records the threads of calls that each block until the event loop has run."""

    def __init__(self) -> None:
        self.thread_names: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._started = asyncio.Event()
        self._may_end = threading.Event()

    def __call__(self) -> None:
        """Block until the event loop has run; on the loop's own thread this fails after 10 s."""
        self.thread_names.append(threading.current_thread().name)
        self._loop.call_soon_threadsafe(self._started.set)
        assert self._may_end.wait(10), "the loop stood still"

    async def wait_and_release(self) -> None:
        async with asyncio.timeout(30):
            await self._started.wait()
        self._may_end.set()

    def release(self) -> None:
        self._may_end.set()


class RecordingValidator(ExclamationValidator):
    """A validator whose calls block on an OffloadRecorder."""

    def __init__(self, offloads: OffloadRecorder) -> None:
        super().__init__()
        self.offloads = offloads

    def check_request(self, prompt: str, conversation: str, options: Options) -> Verdict | None:
        if options.blockers:
            self.offloads()
        return super().check_request(prompt, conversation, options)

    def validate(self, subject: Subject, options: Options) -> Verdict:
        self.offloads()
        return super().validate(subject, options)


class RecordingRedactor:
    """A redactor that blocks on an OffloadRecorder for texts that are not short."""

    def __init__(self, offloads: OffloadRecorder, short: int = len(SHORT)) -> None:
        self.offloads = offloads
        self.short = short

    def redact(self, text: str) -> tuple[str, tuple[Removal, ...]]:
        if len(text) > self.short:
            self.offloads()
        return text, ()


class PassingCheck:
    def find_issues(self, text: str) -> tuple[Issue, ...]:
        return ()


@pytest.fixture
async def offloads() -> AsyncIterator[OffloadRecorder]:
    offloads = OffloadRecorder()
    yield offloads
    offloads.release()


def ask(prompt: str | Chat, *, validation: bool = True, **options: Any) -> TextRequest:
    return TextRequest(
        generation=GenerationRequest(prompt=prompt),
        validation=validation,
        options=Options(**options),
    )


BLOCKING = OptionsReader(OptionsInput(blocked_terms=["bomb"])).defaults
CHAT = Chat((Message("system", LONG), Message("user", SHORT)))
EARLIER = Chat((Message("user", LONG), Message("assistant", SHORT), Message("user", SHORT)))

# The prompt, the answer, and which of the calls run in a thread.
LONG_ONES: dict[str, Callable[[OffloadRecorder], tuple[TextRequest, str]]] = {
    "answer": lambda offloads: (ask(SHORT), LONG),
    "prompt": lambda offloads: (ask(LONG), SHORT),
    "system text": lambda offloads: (ask(CHAT), SHORT),
    # It may have a model to load first.
    "check": lambda offloads: (ask(SHORT, checks={"language": PassingCheck()}), SHORT),
    "redaction": lambda offloads: (
        ask(SHORT, validation=False, redactor=RecordingRedactor(offloads)),
        LONG,
    ),
    "redacted prompt": lambda offloads: (ask(LONG, redactor=RecordingRedactor(offloads)), SHORT),
    "refusal": lambda offloads: (
        ask(EARLIER, validation=False, blockers=BLOCKING.blockers),
        SHORT,
    ),
}


@pytest.mark.parametrize("name", LONG_ONES)
async def test_loop_is_free_meanwhile(
    name: str, offloads: OffloadRecorder, pipeline_of: PipelineFactory
) -> None:
    request, expected = LONG_ONES[name](offloads)
    pipeline = pipeline_of({"pieces": [expected]}, validator=RecordingValidator(offloads))
    async with asyncio.timeout(30):
        await asyncio.gather(pipeline.run(request), offloads.wait_and_release())
    assert threading.main_thread().name not in offloads.thread_names


@pytest.mark.parametrize("blockers", [(), BLOCKING.blockers])
async def test_short_texts_need_no_thread(
    blockers: Any, offloads: OffloadRecorder, pipeline_of: PipelineFactory
) -> None:
    # A change of the thread costs more than the check.
    offloads.release()
    pipeline = pipeline_of({"pieces": [SHORT]}, validator=RecordingValidator(offloads))
    await pipeline.run(ask(SHORT, blockers=blockers, redactor=RecordingRedactor(offloads, 0)))
    assert set(offloads.thread_names) == {threading.main_thread().name}
