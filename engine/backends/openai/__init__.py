"""The openai backend: a model on another server, through its OpenAI-compatible API."""

from engine.backends.openai.backend import OpenAIBackend

__all__ = ["OpenAIBackend"]
