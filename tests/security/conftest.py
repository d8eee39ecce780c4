"""Servers under attack: the ones of the integration tests."""

from tests.integration.emulator.conftest import Serve, serve

__all__ = ["Serve", "serve"]
