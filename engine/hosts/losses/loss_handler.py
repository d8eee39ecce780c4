"""End the requests of the engine's process when it was lost, and plan the next start."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from engine.config import BackendConfig
from engine.errors import EngineCrashed, EngineError, EngineReplaced, EngineStalled
from engine.hooks import Hooks, HostLost
from engine.hosts.child_process import EngineProcess
from engine.hosts.inflight import InflightRequests
from engine.hosts.losses.crash_causes import CrashCauses
from engine.hosts.losses.downtime import Downtime
from engine.hosts.losses.loss import Loss, describe_loss
from engine.hosts.losses.restart_policy import RestartPolicy
from engine.hosts.output_tail import OutputTail

logger = logging.getLogger(__name__)


class LossHandler:
    """Describes how a process was lost, ends its requests, and plans the next start.

    Owned by the event loop; the supervisor of the process calls it.
    """

    def __init__(
        self,
        config: BackendConfig,
        down_limit_s: float,
        hooks: Hooks,
        inflight: InflightRequests,
        crash_causes: CrashCauses,
        output_tail: OutputTail,
    ) -> None:
        self._config = config
        self._down_limit_s = down_limit_s
        self._hooks = hooks
        self._inflight = inflight
        self._crash_causes = crash_causes
        self._output_tail = output_tail
        self.policy = RestartPolicy()
        # Why there is no loaded model, if that began with a failure.
        self.downtime: Downtime | None = None
        # How long the last load took.
        self.load_s = 0.0
        # Why the supervisor has killed the process, until its end was described.
        self.kill_reason: EngineError | None = None
        # Why the system refused the last start.
        self.start_error: OSError | RuntimeError | None = None

    def record_load(self, load_s: float, *, has_run: bool) -> None:
        """Record that the model is loaded; `has_run` is whether a trial run on it has ended."""
        self.load_s = load_s
        self.downtime = None
        self.policy.record_load(has_run=has_run)

    def begin_downtime(self, reason: str) -> None:
        """Start a downtime unless there is one, or the model was never loaded."""
        if self.downtime is None and self.policy.has_loaded:
            self.downtime = Downtime(time.monotonic(), reason, load_s=self.load_s)

    def end_pause(self) -> None:
        """Note that the next process is being started."""
        if self.downtime is not None:
            self.downtime = replace(self.downtime, next_start=None)

    def forget(self) -> None:
        """Forget how the last process ended: it is not wanted any more."""
        self.downtime = self.kill_reason = None

    async def describe(self, process: EngineProcess | None) -> Loss:
        """Wait for the end of the process, and return why it was lost."""
        loss = await describe_loss(
            process,
            self.start_error,
            self.kill_reason,
            self._output_tail,
            self._config,
            has_loaded=self.policy.has_loaded,
        )
        self.kill_reason = None
        return loss

    def handle(self, loss: Loss, *, has_failed: bool) -> EngineError | None:
        """End the requests of a lost process, and decide whether another process is started.

        Returns None if one is started after `policy.pause_s` seconds, else the reason why not.
        `has_failed` is whether the supervisor has given up before.
        """
        aborted = self._inflight.aborted_runs
        # An abort may crash the library or have no effect: that is no sign of a broken engine. A
        # run that was aborted by a timeout had stalled before, which is.
        counts = not aborted or any(isinstance(each.error, EngineStalled) for each in aborted)
        if counts:
            self.policy.record_crash(loss.lived_s)
        crashes, pause_s = self.policy.crashes_in_a_row, self.policy.pause_s
        now = time.monotonic()
        since = self.downtime.since if self.downtime else now
        fatal_error = self.policy.find_fatal_error(loss, now - since, self._down_limit_s)
        self.downtime = Downtime(
            since, loss.reason, crashes=crashes, next_start=now + pause_s, load_s=self.load_s
        )
        self._end_requests(loss, was_aborted=bool(aborted))
        self._hooks(HostLost(loss.reason, fatal_error is not None))
        if fatal_error is not None and not has_failed:
            logger.error("%s", fatal_error.message)
        elif not has_failed:
            logger.error(
                "%s%s; restarting in %.1f s, at %s; its last output: %s",
                loss.reason,
                f" (crash {crashes} in a row)" if counts else "",
                pause_s,
                time.strftime("%H:%M:%S", time.localtime(time.time() + pause_s)),
                self._output_tail.joined(),
            )
        return fatal_error

    def _end_requests(self, loss: Loss, *, was_aborted: bool) -> None:
        """End what ran on the process, and remember it if it may be the cause."""
        ended_by_other = was_aborted or loss.was_killed
        if not ended_by_other and loss.has_crashed:
            self._crash_causes.record(self._inflight.running, loss.reason)
        self._inflight.fail_all(
            EngineReplaced(f"{loss.reason} while the request was running beside another one")
            if ended_by_other
            else EngineCrashed(f"{loss.reason} while the request was running on it")
        )
