"""Advice for the user whose library crashes the engine process while it loads a model."""

from __future__ import annotations

import signal

_RKLLM_ADVICE = {
    # rknn-llm#518, rkllama#122
    -signal.SIGILL: (
        "librkllmrt.so has instructions that this processor lacks, as 1.3.0 has on some RK3588 "
        "systems: install 1.2.3"
    ),
    -signal.SIGBUS: (
        "the model may be converted for another version: install the librkllmrt.so of the "
        "converter's version, such as 1.2.2"
    ),
}


def crash_note(exit_code: int | None, backend: str) -> str:
    """Return a note for the reason of a load that ended in a crash, or "".

    `exit_code` is the one of `subprocess`, negative for a signal, and None if it is not known.
    """
    if backend != "rkllm" or exit_code not in _RKLLM_ADVICE:
        return ""
    return f" ({_RKLLM_ADVICE[exit_code]})"
