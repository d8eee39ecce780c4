"""Configure logging to stderr: readable lines on a terminal, JSON otherwise."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.types import EventDict, WrappedLogger

from handler.generation.content_log import NAME as CONTENT_LOGGER
from handler.logs.console import ConsoleFormatter, should_use_colours
from handler.logs.json_lines import FIELDS, JsonFormatter

# Libraries that log the data that they send and receive: bodies, headers with keys, and URLs of
# webhooks, which may be secret too. Uvicorn logs its start and end, which this project logs itself.
_QUIET_LOGGERS = (
    *("boto3", "botocore", "s3transfer", "urllib3", "requests"),
    *("httpx", "httpx2", "httpcore", "httpcore2", "hpack"),
    *("python_multipart", "multipart", "opentelemetry", "uvicorn", "watchfiles"),
)


def configure_logging(
    level: str, style: Literal["auto", "json", "console"], *, texts: bool = False
) -> None:
    """Send the records of all loggers through one formatter to stderr.

    Stdout is for results. The engine logs with the standard library only, so this configures the
    standard library's root logger. Prompts and answers are logged only with `texts`, at any level.
    """
    is_terminal = sys.stderr.isatty()
    is_console = style == "console" or (style == "auto" and is_terminal)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        ConsoleFormatter(colours=should_use_colours(is_terminal=is_terminal))
        if is_console
        else JsonFormatter()
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger(CONTENT_LOGGER).setLevel(logging.INFO if texts else logging.CRITICAL)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    structlog.configure(
        processors=[_convert_event],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _convert_event(
    logger: WrappedLogger, method: str, event: EventDict
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Convert the arguments of a structlog call to those of a standard library logger."""
    text = event.pop("event", "")
    exc_info = event.pop("exc_info", None)
    return ("%s", text), {"exc_info": exc_info, "extra": {FIELDS: event}}
