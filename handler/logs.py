"""Log lines for people on a terminal and for machines elsewhere, always on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.types import EventDict, WrappedLogger

from handler.content_log import NAME as CONTENT_LOGGER
from handler.log_console import ConsoleFormatter, shows_colours
from handler.log_json import FIELDS, JsonFormatter

# Libraries that log what they send and receive: bodies, headers with keys in them, and URLs of
# webhooks, which may be secrets as well. Uvicorn logs its own start and end, which ours repeat.
_TALKATIVE = (
    *("boto3", "botocore", "s3transfer", "urllib3", "requests"),
    *("httpx", "httpx2", "httpcore", "httpcore2", "hpack"),
    *("python_multipart", "multipart", "opentelemetry", "uvicorn"),
)


def configure_logging(
    level: str, style: Literal["auto", "json", "console"], *, texts: bool = False
) -> None:
    """Send the records of this project's and others' loggers through one formatter, to stderr.

    Stdout carries results. The engine logs with the standard library alone, so the standard
    library's root logger is the one that is configured. Prompts and answers are written only with
    `texts`, whatever the level is.
    """
    is_terminal = sys.stderr.isatty()
    console = style == "console" or (style == "auto" and is_terminal)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        ConsoleFormatter(colours=shows_colours(is_terminal=is_terminal))
        if console
        else JsonFormatter()
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger(CONTENT_LOGGER).setLevel(logging.INFO if texts else logging.CRITICAL)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    structlog.configure(
        processors=[_to_record],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _to_record(
    logger: WrappedLogger, method: str, event: EventDict
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Pass what structlog's loggers are called with to the standard library's, as fields."""
    text = event.pop("event", "")
    told = {"exc_info": event.pop("exc_info", None)}
    return ("%s", text), {**told, "extra": {FIELDS: event}}
