"""Whether memory, files or threads of the processes grow with the number of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression, median

from tests.crashes.samples import PROCESSES, ProcessSample, Sample

# Megabytes for ten thousand jobs.
MAX_SLOPE_MB = 1.0
# An allocator takes memory in steps; a short run sees one or two of them as a slope.
STEPS_MB = 4.0
# Connections that are open at the moment of a sample, or kept alive for reuse.
_FILES = 6
# Thread pools start one more when more jobs run at once than before; a leak of one per job would
# be hundreds.
_THREADS = 6
# The share of a run in which caches fill up and other load on the machine may end.
_WARM_UP = 0.5


def find_growth(samples: Sequence[Sample], idle: tuple[Sample, Sample]) -> list[str]:
    """Return sentences on what grew: under load after the warm-up, and from idle to idle."""
    findings = []
    warm = samples[int(len(samples) * _WARM_UP) :]
    jobs = [sample.jobs / 10_000 for sample in warm]
    for at, process in enumerate(PROCESSES):
        held = [sample.held[at] for sample in warm]
        slope = linear_regression(jobs, [each.resident_mb for each in held]).slope
        jobs_done = jobs[-1] - jobs[0]
        if slope > MAX_SLOPE_MB and slope * jobs_done > STEPS_MB:
            findings.append(f"the memory of the {process} grows by {slope:.2f} MB in 10,000 jobs")
        if (more := _later(held, "files")) > _FILES:
            findings.append(f"the {process} has {more:g} more open files than it had")
        if (more := _later(held, "threads")) > 1:
            findings.append(f"the {process} has {more:g} more threads than it had")
        before, after = (sample.held[at] for sample in idle)
        if after.files > before.files + _FILES:
            findings.append(f"the idle {process} has {after.files} files, it had {before.files}")
        if after.threads > before.threads + _THREADS:
            findings.append(
                f"the idle {process} has {after.threads} threads, it had {before.threads}"
            )
    return findings


def slopes(samples: Sequence[Sample]) -> str:
    """Return a readable summary of each process's memory."""
    warm = samples[int(len(samples) * _WARM_UP) :]
    jobs = [sample.jobs / 10_000 for sample in warm]
    descriptions = []
    for at, process in enumerate(PROCESSES):
        sizes = [sample.held[at].resident_mb for sample in warm]
        slope = linear_regression(jobs, sizes).slope
        descriptions.append(
            f"{process} {sizes[0]:.1f} to {sizes[-1]:.1f} MB ({slope:+.2f} MB/10k jobs)"
        )
    return ", ".join(descriptions)


def _later(held: Sequence[ProcessSample], what: str) -> float:
    """Return by how much the last third is above the first."""
    third = max(1, len(held) // 3)
    numbers = [getattr(each, what) for each in held]
    return float(median(numbers[-third:]) - median(numbers[:third]))
