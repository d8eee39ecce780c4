"""Has the scripted engine tell each prompt that it is given to whoever reads the pipe WITNESS.

Imported by Python before anything else where this folder is on the path, as it is for the engine
processes of the tests that count how often a line was generated.
"""

from __future__ import annotations

import os

from engine import SamplingParams
from engine.backends.base import OnPiece, RunEnd
from engine.backends.scripted import ScriptedBackend
from engine.request import Prompt

_run = ScriptedBackend.run
_pipe = os.open(os.environ["WITNESS"], os.O_WRONLY)


def run(
    self: ScriptedBackend, run_id: int, prompt: Prompt, sampling: SamplingParams, on_piece: OnPiece
) -> RunEnd:
    os.write(_pipe, f"{prompt}\n".encode())
    return _run(self, run_id, prompt, sampling, on_piece)


ScriptedBackend.run = run  # type: ignore[method-assign]
