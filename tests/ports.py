"""Ports for servers that must know theirs before they start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

# Below those that a kernel gives to connections and to whoever asks for any: some servers take
# theirs only seconds after they have begun, and by then it would have given one of them away.
_FIRST, _LAST = 15_000, 32_000
_TRIES = 100

# Not the one that is seeded anew, and alike in all processes, before each test.
_dice = random.SystemRandom()


def free_port() -> int:
    """Return a port on which nobody listens.

    Raises:
        RuntimeError: there seems to be none.
    """
    for _ in range(_TRIES):
        port = _dice.randint(_FIRST, _LAST)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError(f"no port from {_FIRST} to {_LAST} is free")
