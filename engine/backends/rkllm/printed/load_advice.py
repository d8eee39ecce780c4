"""Advice about the errors that the library prints at a load, with the setting to change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from engine.backends.rkllm.board.clocks import format_cpus, read_clocks
from engine.backends.rkllm.board.driver import find_cpu_warning
from engine.backends.rkllm.checks import CONTEXT_STEP_TOKENS
from engine.backends.rkllm.printed.library_facts import read_facts

_CONTEXT_LIMIT = re.compile(
    r"max_context\[\d+\] must be less than the model's max_context_limit\[(\d+)\]"
)
_TOO_FEW_CPUS = (
    "The number of enabled CPUs must be greater than or equal to the number of NPU cores"
)
_NO_TOKENIZER = "Tokenizer is unavailable"
_CPU_MISMATCH = "Mismatch between enabled CPUs mask and expected count"
_ROOT = Path("/")


def find_load_advice(lines: Sequence[str], cpu_mask: int, root: Path = _ROOT) -> list[str]:
    """Return a sentence for each known error in the lines of a load that failed.

    Another try of such a load fails as well.
    """
    text = "\n".join(lines)
    advice = []
    if (limit := _CONTEXT_LIMIT.search(text)) is not None:
        # The runtime takes multiples alone.
        tokens = int(limit[1]) // CONTEXT_STEP_TOKENS * CONTEXT_STEP_TOKENS
        advice.append(
            f"the model was converted for a shorter context: set CONTEXT_LENGTH={tokens}, or less "
            "(context_length in an entry of MODELS)"
        )
    if _TOO_FEW_CPUS in text:
        cores = read_facts(lines).get("npu_core_num")
        warning = find_cpu_warning(cpu_mask, cores) if isinstance(cores, int) else None
        advice.append(warning or "RKLLM_CPU_MASK must enable a CPU for each NPU core of the model")
    if _CPU_MISMATCH in text:
        offline = read_clocks(root).offline
        state = f"the CPUs {format_cpus(offline)} are off" if offline else "CPUs may be off"
        advice.append(f"{state}: switch them on, or name the others in RKLLM_CPU_MASK")
    if _NO_TOKENIZER in text:
        advice.append("convert the model again, without export_tokenizer=False")
    return advice
