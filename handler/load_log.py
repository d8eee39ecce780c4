"""The log lines about the engine's model: loaded, and loaded again after a crash."""

from __future__ import annotations

import logging

from engine.hooks import EngineEvent, HostLoaded

logger = logging.getLogger(__name__)


def log_loaded(event: EngineEvent) -> None:
    """Log that a model is loaded and how long that took; a hook of the engine."""
    if not isinstance(event, HostLoaded):
        return
    # Imported here because it imports structlog, and the model should start loading before that.
    from handler.log_json import FIELDS

    fields = {"load_ms": round(event.after_s * 1000), "restarts": event.restarts}
    again = " again" if event.restarts else ""
    logger.info("model loaded%s in %.1f s", again, event.after_s, extra={FIELDS: fields})
