"""The last lines that a process printed."""

from __future__ import annotations

import os

from engine.hosts.output_tail import OutputTail
from tests.waiting import wait_until


async def test_last_words_are_complete_when_the_pipe_is_closed() -> None:
    last_words = OutputTail()
    assert last_words.is_complete
    assert (last_words.all(), last_words.last(), last_words.lines()) == ("none", "none", [])
    reading, writing = os.pipe()
    last_words.listen(os.fdopen(reading, "rb"))
    os.write(writing, b"first\n\nsecond\n")
    await wait_until(lambda: len(last_words.lines()) == 2)
    assert not last_words.is_complete
    os.write(writing, b"third")
    os.close(writing)
    await wait_until(lambda: last_words.is_complete)
    assert last_words.lines() == ["first", "second", "third"]
    assert (last_words.all(), last_words.last()) == ("first | second | third", "third")


async def test_last_words_leave_out_the_stack_trace_after_them() -> None:
    last_words = OutputTail()
    reading, writing = os.pipe()
    os.write(writing, b"what():  std::bad_alloc\nFatal Python error: Aborted\n  File x\n")
    os.close(writing)
    last_words.listen(os.fdopen(reading, "rb"))
    await wait_until(lambda: last_words.is_complete)
    assert last_words.lines() == ["what():  std::bad_alloc"]
