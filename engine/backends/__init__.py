"""The backends that produce tokens; each one is imported only when it is built."""

from __future__ import annotations

from engine.backends.base import Backend, BackendOptions


def build(name: str, options: BackendOptions) -> Backend:
    """Return a backend that is not loaded yet; `load` is the first call that uses its library.

    Raises:
        ValueError: no backend has this name.
    """
    if name == "llamacpp":
        from engine.backends.llamacpp import LlamaCppBackend

        return LlamaCppBackend(**options)
    if name == "rkllm":
        from engine.backends.rkllm.backend import RkllmBackend

        return RkllmBackend(**options)
    if name == "scripted":
        from engine.backends.scripted import ScriptedBackend

        return ScriptedBackend(**options)
    raise ValueError(f"there is no backend {name!r}")
