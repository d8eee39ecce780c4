"""`python -m tests.crashes JOBS KILLS [SEED]`: run the crash test for any length, in rounds."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.crashes.run import crash

# Each round has its own database and seed, so that a failure can be reproduced.
ROUND = 2_000


def main() -> int:
    jobs, kills = int(sys.argv[1]), int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(2**32)
    rounds = max(1, round(jobs / ROUND))
    total: Counter[str] = Counter()
    broken: list[str] = []
    for number in range(rounds):
        share = [(number + 1) * each // rounds - number * each // rounds for each in (jobs, kills)]
        with tempfile.TemporaryDirectory() as folder:
            report = asyncio.run(
                crash(Path(folder), jobs=share[0], kills=share[1], seed=seed + number)
            )
        broken += [f"seed {report.seed}: {each}" for each in report.broken]
        total += report.numbers()
        _print_line(f"round {number + 1} of {rounds}, {report}")
        for sentence in report.broken:
            _print_line(f"  broken: {sentence}")
    totals = ", ".join(f"{count:,} {what}" for what, count in total.items())
    _print_line(f"in all: {totals}; {len(broken)} promises broken")
    return 1 if broken else 0


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
