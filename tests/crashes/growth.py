"""Whether what is held grows with what is done."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression, median

from tests.crashes.samples import PROCESSES, Held, Sample

# Megabytes for ten thousand jobs.
MOST_SLOPE = 1.0
# An allocator takes memory in steps; a short run sees one or two of them as a slope.
STEPS_MB = 4.0
# Connections that are being opened and closed while somebody counts, or kept for a next time.
_FILES = 6
# Of pools, which make one more when more is done at once than before; a leak of any in each job is
# hundreds.
_THREADS = 6
# The part of a run in which caches fill up, and the machine may become free for more.
_WARM_UP = 0.5


def grown(samples: Sequence[Sample], idle: tuple[Sample, Sample]) -> list[str]:
    """Return sentences on what grew: under load after the warm-up, and from idle to idle."""
    found = []
    warm = samples[int(len(samples) * _WARM_UP) :]
    jobs = [sample.jobs / 10_000 for sample in warm]
    for at, process in enumerate(PROCESSES):
        held = [sample.held[at] for sample in warm]
        slope = linear_regression(jobs, [each.resident_mb for each in held]).slope
        done = jobs[-1] - jobs[0]
        if slope > MOST_SLOPE and slope * done > STEPS_MB:
            found.append(f"the memory of the {process} grows by {slope:.2f} MB in 10,000 jobs")
        if (more := _later(held, "files")) > _FILES:
            found.append(f"the {process} has {more:g} more open files than it had")
        if (more := _later(held, "threads")) > 1:
            found.append(f"the {process} has {more:g} more threads than it had")
        before, after = (sample.held[at] for sample in idle)
        if after.files > before.files + _FILES:
            found.append(f"the idle {process} has {after.files} files, it had {before.files}")
        if after.threads > before.threads + _THREADS:
            found.append(f"the idle {process} has {after.threads} threads, it had {before.threads}")
    return found


def slopes(samples: Sequence[Sample]) -> str:
    """Return how each process's memory went, for people."""
    warm = samples[int(len(samples) * _WARM_UP) :]
    jobs = [sample.jobs / 10_000 for sample in warm]
    said = []
    for at, process in enumerate(PROCESSES):
        sizes = [sample.held[at].resident_mb for sample in warm]
        slope = linear_regression(jobs, sizes).slope
        said.append(f"{process} {sizes[0]:.1f} to {sizes[-1]:.1f} MB ({slope:+.2f} MB/10k jobs)")
    return ", ".join(said)


def _later(held: Sequence[Held], what: str) -> float:
    """Return by how much the last third is above the first."""
    third = max(1, len(held) // 3)
    numbers = [getattr(each, what) for each in held]
    return float(median(numbers[-third:]) - median(numbers[:third]))
