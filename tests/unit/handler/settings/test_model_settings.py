"""The start of a command without a model on another server."""

from __future__ import annotations

from tests.modules import loaded_with


def test_models_are_found_without_an_http_client() -> None:
    # Each command would take a tenth of a second longer.
    loaded = loaded_with("handler.settings.model_settings")
    assert loaded.isdisjoint({"anyio", "httpcore2", "httpx2"})
