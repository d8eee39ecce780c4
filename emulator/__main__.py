"""`python -m emulator`: the local server."""

from __future__ import annotations

import argparse
import signal
import sys

import uvicorn

from emulator.app import build_app
from emulator.settings import EmulatorSettings
from engine import Engine
from handler.assembly import SettingError, leave
from handler.logs import configure_logging
from handler.settings import read_settings

# What streams get to end by themselves after SIGTERM; then they are cut off.
GRACE_S = 30


def main() -> int:
    """Serve until SIGINT or SIGTERM; both end with what was begun, and with 0."""
    parser = argparse.ArgumentParser(prog="emulator", description="A local RunPod and OpenAI API.")
    parser.add_argument("--host", help="the address to listen on")
    parser.add_argument("--port", type=_port, help="the port to listen on")
    given = {key: value for key, value in vars(parser.parse_args()).items() if value is not None}
    settings = read_settings(EmulatorSettings).model_copy(update=given)
    configure_logging(settings.log_level, settings.log_format)
    try:
        app = build_app(settings, Engine(settings.engine_config()))
    except SettingError as error:
        leave(error)
    # Uvicorn handles SIGTERM and, when it is done, raises it again for whoever was there before.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        # One by nature, whatever WEB_CONCURRENCY says to other servers.
        workers=1,
    )
    return 0


def _port(raw: str) -> int:
    # uvloop would take 99999 for 34463.
    port = int(raw)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("the port must be from 0 to 65535")
    return port


if __name__ == "__main__":
    sys.exit(main())
