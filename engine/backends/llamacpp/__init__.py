"""llama.cpp through xllamacpp: the embedded default, and a production engine for CPU boxes."""

from engine.backends.llamacpp.backend import LlamaCppBackend

__all__ = ["LlamaCppBackend"]
