"""Ports for servers that must know theirs before they start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port
