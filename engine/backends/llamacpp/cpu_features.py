"""Recognise a build of llama.cpp that does not use what the CPUs of a board have."""

from __future__ import annotations

import platform


def find_slow_build_warning(system_info: str, machine: str | None = None) -> str | None:
    """Return a warning if llama.cpp is built without the dot-product instructions of arm64.

    `system_info` is llama.cpp's own line on its build, such as `CPU : NEON = 1 | DOTPROD = 1 |`.
    The wheels of xllamacpp are built for every ARMv8 processor, so they have none of them. Cores
    since the Cortex-A55 and A76, as in the RK3588, have them. `machine` is uname's name for the
    processor.
    """
    if (machine or platform.machine()) != "aarch64" or "DOTPROD = 1" in system_info:
        return None
    return (
        "llama.cpp is built without the dot-product instructions of this processor, so prompts and "
        "answers are far slower than the board allows: docs/rkllm.md has the command that builds "
        "it for the board"
    )
