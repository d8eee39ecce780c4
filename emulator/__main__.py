"""`python -m emulator`: the local server."""

from __future__ import annotations

import argparse
import sys

import uvicorn

from emulator.app import build_app
from emulator.settings import EmulatorSettings
from engine import Engine
from handler.logs import configure_logging
from handler.settings import read_settings


def main() -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="emulator", description="A local RunPod and OpenAI API.")
    parser.add_argument("--host", help="the address to listen on")
    parser.add_argument("--port", type=int, help="the port to listen on")
    given = {key: value for key, value in vars(parser.parse_args()).items() if value is not None}
    settings = read_settings(EmulatorSettings).model_copy(update=given)
    configure_logging(settings.log_level, settings.log_format)
    app = build_app(settings, Engine(settings.engine_config()))
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=30,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
