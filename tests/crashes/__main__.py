"""`python -m tests.crashes JOBS KILLS [SEED]`: the crash test as long as you like, in rounds."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.crashes.run import crash

# A round has a database and a seed of its own, so that what it finds can be had again.
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
        _say(f"round {number + 1} of {rounds}, {report}")
        for sentence in report.broken:
            _say(f"  broken: {sentence}")
    counted = ", ".join(f"{count:,} {what}" for what, count in total.items())
    _say(f"in all: {counted}; {len(broken)} promises broken")
    return 1 if broken else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
