"""Hide the credentials in URLs, for messages and reports."""

from __future__ import annotations

from urllib.parse import urlsplit


def hide_credentials(url: str) -> str:
    """Return a URL with `***` in place of its user name and password; `***` if it is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    credentials, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{host}").geturl() if credentials else url
