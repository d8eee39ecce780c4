"""Free ports for servers that need a port number before they start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

# Below the range of ephemeral ports: some servers bind only seconds after their start, and the
# kernel could give an ephemeral port to another connection before that.
_FIRST, _LAST = 15_000, 32_000
_MAX_ATTEMPTS = 100

# The default generator is seeded before each test, with the same seed in all processes.
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port that no server uses.

    Raises:
        RuntimeError: no free port was found.
    """
    for _ in range(_MAX_ATTEMPTS):
        port = _random.randint(_FIRST, _LAST)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError(f"no port from {_FIRST} to {_LAST} is free")
