"""The llama.cpp backend (through xllamacpp): the default engine, and one for CPU servers."""

from engine.backends.llamacpp.backend import LlamaCppBackend

__all__ = ["LlamaCppBackend"]
