"""`python -m worker_rkllm`: the same as the command `worker-rkllm`."""

from __future__ import annotations

import sys

from worker_rkllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
