"""Compare the examined model with a GGUF model on the fastest CPUs, for the doctor.

Which of the two is faster depends on the board and the model: an RK3588 gave 10 tokens/s of a 1.5B
model on the NPU and 22 on four A76 cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from engine import BackendConfig, Timeouts
from engine.backends.options import LlamaCppOptions
from engine.doctor.examiner import FAILED, SLOW_BUILD, SPEED_STEPS
from engine.doctor.machine_info import find_big_cpus
from handler.doctor.examination import examine
from handler.doctor.report import Finding

_STEP = "comparison with a GGUF"


class _Speeds(NamedTuple):
    """Tokens per second of a prompt and of an answer; None if they were not measured."""

    prompt: float | None
    answer: float | None


def compare_with_gguf(
    findings: Sequence[Finding],
    backend: BackendConfig,
    gguf: Path,
    timeouts: Timeouts,
    on_step: Callable[[str], object],
) -> Iterator[Finding]:
    """Yield the speeds of the examined model and of a GGUF, and which is faster by how much.

    `findings` are those of the examination. The GGUF runs on the fastest CPUs, with as many
    threads, and with the same context.
    """
    options = LlamaCppOptions(
        model_path=str(gguf),
        model_name=gguf.stem,
        context_length=getattr(backend.options, "context_length", 0),
    )
    cpus = find_big_cpus()
    examination = examine(BackendConfig(options), timeouts, on_step, steps=SPEED_STEPS, cpus=cpus)
    yield _STEP, "GGUF", gguf.name
    yield _STEP, "CPUs", ", ".join(map(str, cpus))
    reason = examination.ended or "".join(value for _, _, value in examination.failures)
    if reason:
        yield _STEP, FAILED, reason
        return
    for _, name, value in examination.findings:
        if name == SLOW_BUILD:
            yield _STEP, name, value
    ours, other = _read_speeds(findings), _read_speeds(examination.findings)
    for name, own, theirs in zip(("prompts", "answers"), ours, other, strict=True):
        yield _STEP, f"tokens a second of {name}, {backend.backend}", own
        yield _STEP, f"tokens a second of {name}, GGUF", theirs
        if own and theirs:
            faster = backend.backend if own > theirs else "GGUF"
            ratio = max(own, theirs) / min(own, theirs)
            yield _STEP, f"faster for {name}", f"{faster}, {ratio:.1f} times"


def _read_speeds(findings: Sequence[Finding]) -> _Speeds:
    values = {(step, name): value for step, name, value in findings}
    tokens = values.get(("long prompt", "prompt tokens"))
    prompt_ms = values.get(("long prompt", "ms to the first callback"))
    prompt = round(1000 * tokens / prompt_ms, 1) if tokens and prompt_ms else None
    return _Speeds(prompt, values.get(("first run", "tokens a second")))
