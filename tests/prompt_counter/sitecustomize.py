"""Makes the scripted backend write each prompt to the pipe PROMPT_COUNTER.

Python imports this module at start when this folder is on its path, as it is for engine processes
of tests that count how often a line was generated.
"""

from __future__ import annotations

import os

from engine import SamplingParams
from engine.backends.base import OnPiece, RunResult
from engine.backends.scripted import ScriptedBackend
from engine.request import Prompt

_run = ScriptedBackend.run
_pipe = os.open(os.environ["PROMPT_COUNTER"], os.O_WRONLY)


def run(
    self: ScriptedBackend, run_id: int, prompt: Prompt, sampling: SamplingParams, on_piece: OnPiece
) -> RunResult:
    os.write(_pipe, f"{prompt}\n".encode())
    return _run(self, run_id, prompt, sampling, on_piece)


ScriptedBackend.run = run  # type: ignore[method-assign]
