"""The curves of a soak as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.crashes.samples import PROCESSES, Sample


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Draw memory, files and threads of each process over time."""
    # Only here: it takes longer to import than anything else takes to run.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 9), layout="constrained")
    axes = figure.subplots(4, 1, sharex=True)
    minutes = [sample.seconds / 60 for sample in samples]
    for axis, what, label in zip(
        axes, ("resident_mb", "files", "threads"), ("MB", "open files", "threads"), strict=False
    ):
        for at, process in enumerate(PROCESSES):
            axis.plot(
                minutes, [getattr(sample.held[at], what) for sample in samples], label=process
            )
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="lower right", ncols=3)
    axes[3].plot(minutes, [sample.jobs / 1000 for sample in samples], color="black")
    axes[3].set_ylabel("thousand jobs")
    axes[3].set_xlabel("minutes")
    figure.savefig(path, dpi=120)
