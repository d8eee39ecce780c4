"""`python -m emulator.status.healthcheck`: the HEALTHCHECK of the container image.

Uses only the standard library, because it is started every half minute.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TIMEOUT_S = 5.0
_PORT = 8000
# `python -m emulator` and `worker-rkllm serve`.
_SERVERS = ("emulator", "serve")


def main(command_line: Path = Path("/proc/1/cmdline"), argv: Sequence[str] = ()) -> int:
    """Return 0 if the container's main process is healthy; else print the reason and return 1."""
    argparse.ArgumentParser(
        prog="python -m emulator.status.healthcheck",
        description="Exit 0 if the server that this container runs answers /health, and 1 with the "
        "reason otherwise. It takes no arguments: the address is that of the server's own command.",
    ).parse_args(argv)
    arguments = command_line.read_bytes().decode(errors="replace").split("\0")
    name = next((each for each in arguments if each in _SERVERS), None)
    if name is None:
        # The container runs a worker, which listens on no port and exits if its engine is dead.
        return 0
    address = find_address(arguments[arguments.index(name) + 1 :], os.environ)
    trouble = check_health(*address, key=os.environ.get("API_KEYS", "").split(",")[0].strip())
    if trouble is not None:
        sys.stderr.write(f"{trouble}\n")
    return 0 if trouble is None else 1


def find_address(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the host and port at which a server with these arguments listens in its container."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--host", default=environment.get("HOST") or "127.0.0.1")
    parser.add_argument("--port", type=int, default=int(environment.get("PORT") or _PORT))
    options, _ = parser.parse_known_args([each for each in arguments if each])
    wildcards = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not an address to listen on
    return wildcards.get(options.host, options.host), options.port


def check_health(host: str, port: int, key: str = "") -> str | None:
    """Return the reason why the server is unhealthy; None if it is healthy or loads its model.

    Without the server's key, the reason is the state alone.
    """
    headers = {"Authorization": f"Bearer {key}".encode()} if key else {}
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health", headers=headers)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return f"/health does not answer: {error}"
    finally:
        connection.close()
    return None if response.status == 200 else body.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(argv=sys.argv[1:]))
