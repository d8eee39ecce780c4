"""Log the version, addresses, model, engine and changed settings at the start."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from common.usable_cpus import describe_usable_cpus
from emulator.http.allowed_hosts import is_loopback
from emulator.settings.emulator_settings import EmulatorSettings
from handler.logs.json_lines import FIELDS

logger = logging.getLogger(__name__)

_PACKAGE = "worker-rkllm"
_SECRET_NAME = re.compile(r"(^|_)(keys?|secret|password)(_|$)")
_MASKED = "***"


def log_start(
    settings: EmulatorSettings,
    slots: int | None,
    url: str,
    endpoints: Sequence[str] = (),
    rows: Mapping[str, Any] | None = None,
) -> None:
    """Log version, addresses, model or handler, and the settings that differ from their defaults.

    One record: rows under one line on a terminal, an object named `server` in JSON. A server
    without an engine has no `slots`. `endpoints` are those of the workers, if
    there are several, and `rows` say what they run.
    """
    endpoint_urls = [f"{url}/v2/{endpoint}" for endpoint in endpoints or [settings.endpoint_id]]
    block: dict[str, Any] = {
        "version": version(),
        "console": f"{url}/",
        "openai": f"{url}/v1",
        "runpod": ", ".join(endpoint_urls),
        "docs": f"{url}/docs",
        "hosts": settings.host_check().describe(),
        **_describe_work(settings, slots),
        **(rows or {}),
        "jobs": settings.job_db,
        "settings": changed_settings(settings),
    }
    if slots is None:
        # Only the handler's own OpenAI routes are there.
        block["openai"] = ", ".join(f"{each}/openai/v1" for each in endpoint_urls)
    logger.info(
        "%s %s running on %s", _PACKAGE, block["version"], url, extra={FIELDS: {"server": block}}
    )
    if not settings.keys() and not is_loopback(settings.host):
        logger.warning(
            "ALLOW_NO_API_KEY is on: everyone who can reach %s can use the server", settings.host
        )


def _describe_work(settings: EmulatorSettings, slots: int | None) -> dict[str, Any]:
    """Return the rows about the model."""
    if slots is None:
        return {}
    rows: dict[str, Any] = {
        "model": ", ".join(settings.served_models),
        "engine": "several" if settings.models else settings.backend,
        "slots": slots,
        # 0 stands for the model's own.
        "context_length": settings.context_length or "the model's own",
    }
    uses_llamacpp = any(model.backend == "llamacpp" for model in settings.model_list)
    if uses_llamacpp and not settings.deterministic:
        rows["threads"] = settings.threads or describe_usable_cpus()
    return rows


def changed_settings(settings: EmulatorSettings) -> dict[str, str]:
    """Return the settings whose value is not the default, by the names of their variables.

    Keys, secrets and credentials in URLs are masked.
    """
    changed: dict[str, str] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if value == field.default:
            continue
        is_secret = isinstance(value, SecretStr) or _SECRET_NAME.search(name) is not None
        changed[name.upper()] = _MASKED if is_secret and value else _format_value(value)
    return changed


def version() -> str:
    """Return the version of the installed package, or of the clone that this runs from."""
    try:
        return metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        project = Path(__file__).resolve().parents[2] / "pyproject.toml"
        try:
            return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
        except (OSError, tomllib.TOMLDecodeError, KeyError):
            return "(unknown version)"


def _format_value(value: Any) -> str:
    """Return a setting's value as it is written in an environment variable."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return f"{len(value)} entries"
    text = str(value)
    return _without_credentials(text) if "://" in text else text


def _without_credentials(url: str) -> str:
    """Return a URL without user name, password and query, any of which may be a secret."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        masked = parts.netloc != host
    except ValueError:
        return _MASKED
    query = f"?{_MASKED}" if parts.query else ""
    return f"{parts.scheme}://{_MASKED + '@' if masked else ''}{host}{parts.path}{query}"
