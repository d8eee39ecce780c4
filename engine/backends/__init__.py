"""Where tokens come from: one module or package a backend, imported only when it is built."""

from __future__ import annotations

from engine.backends.base import Backend, BackendOptions


def build(name: str, options: BackendOptions) -> Backend:
    """Return a backend that has yet to be loaded; its library is not touched before `load`.

    Raises:
        ValueError: there is no backend of that name.
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
