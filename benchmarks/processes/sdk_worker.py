"""The peer for whole jobs: our worker under the SDK's own local server. `PORT PARENT_PID`.

What `python -m handler --rp_serve_api` starts: the pipeline and engine of our server, and the SDK's
way to bring a job there. It keeps nothing, and is spared its log lines, a dozen for each job.
"""

from __future__ import annotations

import os
import sys

import handler.__main__
from benchmarks.client import HOST
from engine.hosts.process_utils import die_with_parent


def main() -> int:
    """Serve until killed."""
    port, parent = sys.argv[1:]
    die_with_parent(int(parent))
    os.environ.update(RUNPOD_LOG_LEVEL="ERROR", UVICORN_LOG_LEVEL="warning")
    sys.argv[1:] = ["--rp_serve_api", "--rp_api_host", HOST, "--rp_api_port", port]
    return handler.__main__.main()


if __name__ == "__main__":
    sys.exit(main())
