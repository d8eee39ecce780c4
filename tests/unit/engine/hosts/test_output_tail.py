"""The last lines that a process has printed."""

from __future__ import annotations

import os

from engine.hosts.output_tail import OutputTail
from tests.waiting import wait_until


async def test_output_tail_is_complete_when_the_pipe_is_closed() -> None:
    tail = OutputTail()
    assert tail.is_complete
    assert (tail.joined(), tail.last_line(), tail.lines()) == ("none", "none", [])
    reading, writing = os.pipe()
    tail.listen(os.fdopen(reading, "rb"))
    os.write(writing, b"first\n\nsecond\n")
    await wait_until(lambda: len(tail.lines()) == 2)
    assert not tail.is_complete
    os.write(writing, b"third")
    os.close(writing)
    await wait_until(lambda: tail.is_complete)
    assert tail.lines() == ["first", "second", "third"]
    assert (tail.joined(), tail.last_line()) == ("first | second | third", "third")


async def test_output_tail_omits_a_stack_trace_after_the_last_lines() -> None:
    tail = OutputTail()
    reading, writing = os.pipe()
    os.write(writing, b"what():  std::bad_alloc\nFatal Python error: Aborted\n  File x\n")
    os.close(writing)
    tail.listen(os.fdopen(reading, "rb"))
    await wait_until(lambda: tail.is_complete)
    assert tail.lines() == ["what():  std::bad_alloc"]
