"""The peer for llama.cpp: the library's own server. `PORT PARENT_PID MODEL SLOTS CONTEXT`.

llama.cpp's server code, C++ from socket to sampler, in the same build that our backend calls; the
difference is the code that we add. Model, slots, context, threads and batch sizes are those of
`engine.backends.llamacpp`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from benchmarks.client import HOST
from common.process_utils import die_with_parent

# As in engine.backends.llamacpp.
_BATCH_TOKENS = 64


def main() -> None:
    """Serve until SIGTERM."""
    port, parent, model_path, slots, context = sys.argv[1:]
    die_with_parent(int(parent))
    import xllamacpp

    library: Any = xllamacpp
    threads = len(os.sched_getaffinity(0))
    params = library.CommonParams()
    params.model.path = model_path
    params.n_ctx = int(context) * int(slots)
    params.n_parallel = int(slots)
    params.kv_unified = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_batch = params.n_ubatch = _BATCH_TOKENS
    params.cache_ram_mib = 0
    params.ui = False
    params.verbosity = -1
    params.hostnames = [HOST]
    params.port = int(port)
    server = library.Server(params)
    # Replace the signal handlers of the library.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while server is not None:
        signal.pause()


if __name__ == "__main__":
    main()
