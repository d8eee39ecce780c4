"""The peer for whole jobs: our worker in the SDK's own local server. `PORT PARENT_PID`.

This is the server of `python -m handler --rp_serve_api`: the pipeline and engine of our server,
with the SDK's dispatch of jobs. It stores nothing, and its dozen log lines per job are disabled.
"""

from __future__ import annotations

import os
import sys

import handler.__main__
from benchmarks.client import HOST
from common.process_utils import die_with_parent


def main() -> int:
    """Serve until killed."""
    port, parent = sys.argv[1:]
    die_with_parent(int(parent))
    os.environ.update(RUNPOD_LOG_LEVEL="ERROR", UVICORN_LOG_LEVEL="warning")
    sys.argv[1:] = ["--rp_serve_api", "--rp_api_host", HOST, "--rp_api_port", port]
    return handler.__main__.main()


if __name__ == "__main__":
    sys.exit(main())
