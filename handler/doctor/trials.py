"""Make RKLLM's trials for the doctor, each in a process of its own, and keep their outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine import BackendConfig, Timeouts
from engine.backends.options import RkllmOptions
from engine.doctor.examiner import BEGINS, FAILED
from handler.doctor.examination import examine

if TYPE_CHECKING:
    from handler.doctor.bundle import Bundle
    from handler.doctor.report import Finding


def run_trials(
    backend: BackendConfig,
    timeouts: Timeouts,
    on_step: Callable[[str], object],
    bundle: Bundle | None = None,
) -> list[Finding]:
    """Make RKLLM's trials, write their outcomes into RKLLM_PROFILE, and return the findings.

    If the process of a trial crashes or hangs, that is a finding and no failure of the doctor. The
    list is empty for another backend, and if even a plain run fails: then the examination that
    follows reports the reason.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C; no profile is written.
    """
    from engine.backends.rkllm.board.trials import PLAIN_RUN, TRIALS

    findings: list[Finding] = []
    options = backend.options
    if not isinstance(options, RkllmOptions):
        return findings
    for step, trial in TRIALS.items():
        examination = examine(backend, timeouts, on_step, trial=step, bundle=bundle)
        if examination.was_interrupted:
            raise KeyboardInterrupt
        if all(name != PLAIN_RUN for _, name, _ in examination.findings):
            return []
        findings += (each for each in examination.findings if each[1] not in (BEGINS, FAILED))
        reason = examination.ended or "".join(value for _, _, value in examination.failures)
        if reason:
            findings += [(step, trial.outcome, False), (step, "reason", reason)]
    if options.profile is not None:
        findings += _write_profile(Path(options.profile), options, findings)
    return findings


def _write_profile(
    path: Path, options: RkllmOptions, findings: Sequence[Finding]
) -> Iterator[Finding]:
    from engine.backends.rkllm.board.profile import write_profile
    from engine.backends.rkllm.board.trials import build_profile
    from engine.backends.rkllm.library import find_library

    library = find_library(options.lib_path)
    profile = build_profile({name: value for _, name, value in findings})
    try:
        write_profile(path, library, Path(options.model_path), profile)
    except (OSError, ValueError) as error:
        yield "profile", FAILED, f"RKLLM_PROFILE: {path} was not written: {error}"
    else:
        yield "profile", "written to", str(path)
