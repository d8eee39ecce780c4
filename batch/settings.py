"""The settings of `python -m batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, SecretStr

from handler.settings.shared_settings import Settings


class BatchSettings(Settings):
    """Settings of a batch in addition to those of the engine. The default limits are OpenAI's."""

    batch_max_lines: int = Field(
        50_000, ge=1, le=10_000_000, description="Maximum number of lines in an input file."
    )
    batch_max_mb: int = Field(200, ge=1, le=100_000, description="Maximum size of an input file.")
    max_body_mb: int = Field(
        10,
        ge=1,
        le=1_000,
        description="Maximum length of one line. For the local server, it is the maximum size of a "
        "request body, with a default of 20.",
    )
    batch_tries: int = Field(
        3, ge=1, le=100, description="Attempts per line, if the failure is temporary."
    )
    batch_at_once: int = Field(
        0,
        ge=0,
        le=10_000,
        description="Lines in progress at a time. 0: one per slot of the engine, and twice as many "
        "for `batch worker`.",
    )
    batch_patience_s: float = Field(
        600,
        ge=1,
        le=86_400,
        description="`batch run --server` ends, to be resumed, if no server has answered for this "
        "long.",
    )
    batch_lease_s: float = Field(
        60,
        ge=3,
        le=43_200,
        description="Visibility timeout of an SQS message that a worker has received. The worker "
        "renews it after a third of this time.",
    )
    batch_poll_s: float = Field(
        10,
        ge=1,
        le=20,
        description="How long a worker waits for messages in one request (SQS long polling). An "
        "idle worker takes up to this long to stop.",
    )
    batch_receives: int = Field(
        5,
        ge=2,
        le=1_000,
        description="For queues without a redrive policy: number of receives of a message after "
        "which it is given up. The last receive only writes its error.",
    )

    def for_servers(self, urls: Sequence[str], key: str | None, concurrency: int) -> Self:
        """Return the settings of an engine whose models are on these servers.

        Settings that name a model are for one that is loaded here, unless ENGINE is openai.
        """
        changes: dict[str, object] = {
            "engine": "openai",
            "upstream_url": ",".join(urls),
            "upstream_key": None if key is None else SecretStr(key),
            "max_concurrency": concurrency,
        }
        if self.engine != "openai":
            changes |= {"model_path": None, "model_name": None, "models": ()}
        return self.model_copy(update=changes)

    def find_set_checks(self) -> Sequence[str]:
        """Return the settings of validation that are set."""
        return [name for name in _CHECKS if getattr(self, name) != _default(name)]


_CHECKS = (
    *("validation_schema", "validation_language", "redact_pii"),
    *("blocked_intents", "blocked_terms", "regenerate"),
)


def _default(name: str) -> object:
    return BatchSettings.model_fields[name].default
