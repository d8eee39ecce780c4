"""Advice about crashes of a library while it loads."""

from __future__ import annotations

import signal

import pytest

from engine.hosts.losses.crash_advice import crash_note


@pytest.mark.parametrize(
    ("exit_code", "backend", "advice"),
    [
        (-signal.SIGILL, "rkllm", "install 1.2.3"),
        (-signal.SIGBUS, "rkllm", "install the librkllmrt.so of the converter's version"),
        (-signal.SIGSEGV, "rkllm", ""),
        (-signal.SIGILL, "llamacpp", ""),
        (1, "rkllm", ""),
        (None, "rkllm", ""),
    ],
)
def test_crash_note_advises_another_version(
    exit_code: int | None, backend: str, advice: str
) -> None:
    note = crash_note(exit_code, backend)
    assert advice in note
    assert bool(note) is bool(advice)
