"""Log lines for people on a terminal and for machines elsewhere, always on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import orjson
import structlog

from handler.texts import NAME as TEXTS

# Without the frames' local variables, which may be keys and prompts.
_tracebacks = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


# What records may bring with them, beside what is bound to their task: ids first.
_FIELDS = ("job_id", "batch_id", "generation_id", "prompt", "answer")
# Libraries that write down what they send and receive: bodies, headers with keys in them, and URLs
# of webhooks, which may be secrets as well.
_TALKATIVE = (
    *("boto3", "botocore", "s3transfer", "urllib3", "requests"),
    *("httpx", "httpx2", "httpcore", "httpcore2", "hpack"),
    *("python_multipart", "multipart", "opentelemetry"),
)


def _json(record: object, **_: object) -> str:
    """Write a record; what is no JSON is written as its text."""
    return orjson.dumps(record, default=repr).decode()


def configure_logging(
    level: str, style: Literal["auto", "json", "console"], *, texts: bool = False
) -> None:
    """Send the records of this project's and others' loggers through one renderer.

    To stderr, because stdout carries results. The engine logs with the standard library alone, so
    it is the standard library's root logger that is set up. Prompts and answers are written only
    with `texts`, whatever the level is.
    """
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.ExtraAdder(_FIELDS),
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers: list[structlog.types.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if console
        else [_tracebacks, structlog.processors.JSONRenderer(_json)]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger(TEXTS).setLevel(logging.INFO if texts else logging.CRITICAL)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
