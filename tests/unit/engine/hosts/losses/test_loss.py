"""The description of a lost process."""

from __future__ import annotations

import signal
from typing import Any

from engine.backends.options import RkllmOptions
from engine.config import BackendConfig
from engine.errors import EngineStalled
from engine.hosts.losses.loss import Loss, describe_loss
from engine.hosts.output_tail import OutputTail


class EndedProcess:
    """A process that lived for 9 s and was ended by a signal."""

    age_s = 9.0

    def __init__(self, number: int, *, has_crashed: bool) -> None:
        self.returncode = -number
        self.has_crashed = has_crashed

    async def wait_for_exit(self) -> str:
        return f"the engine process was killed by {signal.Signals(-self.returncode).name}"


async def describe(process: Any, **reasons: Any) -> Loss:
    arguments = {"start_error": None, "kill_reason": None, "has_loaded": True} | reasons
    config = BackendConfig(RkllmOptions(model_path="m.rkllm", model_name="m"))
    return await describe_loss(process, output_tail=OutputTail(), config=config, **arguments)


async def test_crash_is_described_by_its_signal() -> None:
    loss = await describe(EndedProcess(signal.SIGSEGV, has_crashed=True))
    assert loss.reason == "the engine process was killed by SIGSEGV"
    assert (loss.lived_s, loss.has_crashed, loss.was_killed) == (9.0, True, False)


async def test_crash_before_the_first_load_has_advice() -> None:
    process = EndedProcess(signal.SIGILL, has_crashed=True)
    assert "install 1.2.3" in (await describe(process, has_loaded=False)).reason
    assert "install" not in (await describe(process)).reason


async def test_killed_process_is_described_by_the_reason_and_has_not_lived() -> None:
    process = EndedProcess(signal.SIGKILL, has_crashed=False)
    loss = await describe(process, kill_reason=EngineStalled("it hangs"))
    assert (loss.reason, loss.lived_s, loss.was_killed) == ("it hangs", 0.0, True)


async def test_refused_start_is_no_end_of_a_process() -> None:
    loss = await describe(None, start_error=OSError("no memory"))
    assert loss.reason == "the engine process cannot be started: no memory"
    assert not loss.was_started
