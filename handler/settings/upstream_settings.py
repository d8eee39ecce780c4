"""The environment variables of the openai backend."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr, field_validator

from handler.settings.rkllm_settings import RkllmSettings


class UpstreamSettings(RkllmSettings):
    """Adds the settings of the backend for models on other servers; others ignore them."""

    upstream_url: str | None = Field(
        None,
        description="Address of an OpenAI-compatible server whose models are served with "
        "`ENGINE=openai`, such as vLLM, Ollama or another worker-rkllm; or several with the same "
        "models, separated by commas: each request goes to the one with the fewest. Its models "
        "are named by MODEL_PATH, MODEL_NAME or MODELS. Unset, all of `/v1/models` are served.",
        examples=["http://gpu-box:8000/v1"],
    )
    upstream_key: SecretStr | None = Field(
        None, description="Key that the servers of UPSTREAM_URL get, as a bearer token."
    )

    @field_validator("upstream_url")
    @classmethod
    def _check_urls(cls, value: str | None) -> str | None:
        if value is None:
            return None
        urls = _split(value)
        if not urls:
            raise ValueError("must be the address of a server, or several separated by commas")
        for url in urls:
            parts = urlsplit(url)
            if parts.query or parts.fragment:
                raise ValueError("must be a server's address without ? and #")
            if parts.path.rstrip("/").endswith(("/completions", "/models", "/embeddings")):
                raise ValueError("must be a server's address that ends before or with /v1")
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("must begin with http:// or https:// and have a host")
            _check_port(parts)
        return value

    @field_validator("upstream_key")
    @classmethod
    def _check_key(cls, value: SecretStr | None) -> SecretStr | None:
        """Remove the line end of a key from a file; other characters than ASCII fit no header."""
        if value is None:
            return None
        key = value.get_secret_value().strip()
        if not (key.isascii() and key.isprintable()):
            raise ValueError("must have visible ASCII characters only")
        return SecretStr(key) if key else None

    @property
    def upstream_urls(self) -> Sequence[str]:
        """The addresses of the servers."""
        return _split(self.upstream_url or "")

    @property
    def upstream_secret(self) -> str | None:
        """The key in plain text."""
        return None if self.upstream_key is None else self.upstream_key.get_secret_value()


def _check_port(parts: SplitResult) -> None:
    try:
        parts.port  # noqa: B018
    except ValueError:
        raise ValueError("must have a port from 0 to 65535") from None


def _split(setting: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in setting.split(",") if each.strip())
