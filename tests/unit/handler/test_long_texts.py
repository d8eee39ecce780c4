"""Long texts are looked at in a thread: while it looks, the loop serves all others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engine import Chat, GenerationRequest, Message
from handler.options import OptionsInput, OptionsReader
from handler.request import TextRequest
from tests.unit.handler.conftest import PipelineFactory, Quiet
from validation import Issue, Options, Removal, Subject, Verdict

LONG = "so long " * 2_000
SHORT = "so short"


class Look:
    """One look at a text that ends only when the loop has turned meanwhile."""

    def __init__(self) -> None:
        self.where: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._began = asyncio.Event()
        self._may_end = threading.Event()

    def __call__(self) -> None:
        """Wait for the loop; on the loop itself this would never end."""
        self.where.append(threading.current_thread().name)
        self._loop.call_soon_threadsafe(self._began.set)
        assert self._may_end.wait(10), "the loop stood still"

    async def let_end(self) -> None:
        async with asyncio.timeout(20):
            await self._began.wait()
        self._may_end.set()

    def end_at_once(self) -> None:
        self._may_end.set()


class Looking(Quiet):
    """A validator that looks for so long."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look

    def check_request(self, prompt: str, conversation: str, options: Options) -> Verdict | None:
        if options.blockers:
            self.look()
        return super().check_request(prompt, conversation, options)

    def validate(self, subject: Subject, options: Options) -> Verdict:
        self.look()
        return super().validate(subject, options)


class LookingRedactor:
    """Looks for so long at texts that are not short."""

    def __init__(self, look: Look, short: int = len(SHORT)) -> None:
        self.look = look
        self.short = short

    def redact(self, text: str) -> tuple[str, tuple[Removal, ...]]:
        if len(text) > self.short:
            self.look()
        return text, ()


class NothingWrong:
    def find_issues(self, text: str) -> tuple[Issue, ...]:
        return ()


@pytest.fixture
async def look() -> AsyncIterator[Look]:
    look = Look()
    yield look
    look.end_at_once()


def ask(prompt: str | Chat, *, validation: bool = True, **options: Any) -> TextRequest:
    return TextRequest(
        generation=GenerationRequest(prompt=prompt),
        validation=validation,
        options=Options(**options),
    )


BLOCKING = OptionsReader(OptionsInput(blocked_terms=["bomb"])).defaults
CHAT = Chat((Message("system", LONG), Message("user", SHORT)))
EARLIER = Chat((Message("user", LONG), Message("assistant", SHORT), Message("user", SHORT)))

# What is asked, what is answered, which of it takes a long look.
LONG_ONES: dict[str, Callable[[Look], tuple[TextRequest, str]]] = {
    "answer": lambda look: (ask(SHORT), LONG),
    "prompt": lambda look: (ask(LONG), SHORT),
    "system text": lambda look: (ask(CHAT), SHORT),
    # It may have a model to load first.
    "check": lambda look: (ask(SHORT, checks={"language": NothingWrong()}), SHORT),
    "redaction": lambda look: (
        ask(SHORT, validation=False, redactor=LookingRedactor(look)),
        LONG,
    ),
    "redacted prompt": lambda look: (ask(LONG, redactor=LookingRedactor(look)), SHORT),
    "refusal": lambda look: (
        ask(EARLIER, validation=False, blockers=BLOCKING.blockers),
        SHORT,
    ),
}


@pytest.mark.parametrize("name", LONG_ONES)
async def test_loop_is_free_meanwhile(name: str, look: Look, pipeline_of: PipelineFactory) -> None:
    request, expected = LONG_ONES[name](look)
    pipeline = pipeline_of({"pieces": [expected]}, validator=Looking(look))
    async with asyncio.timeout(30):
        await asyncio.gather(pipeline.run(request), look.let_end())
    assert threading.main_thread().name not in look.where


@pytest.mark.parametrize("blockers", [(), BLOCKING.blockers])
async def test_short_texts_need_no_thread(
    blockers: Any, look: Look, pipeline_of: PipelineFactory
) -> None:
    # Going there and back costs more than looking.
    look.end_at_once()
    pipeline = pipeline_of({"pieces": [SHORT]}, validator=Looking(look))
    await pipeline.run(ask(SHORT, blockers=blockers, redactor=LookingRedactor(look, 0)))
    assert set(look.where) == {threading.main_thread().name}
