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


def open_shared_files(name: str, options: BackendOptions) -> dict[str, tuple[int, ...]]:
    """Open the files that all engine processes of a server share, by the option that takes them.

    They are passed on to each process. Opened by each one on its own, a lock on such a file would
    exclude the server's other processes.
    """
    if name == "rkllm" and options.get("device_lock", True):
        from engine.backends.rkllm.board.device_lock import open_device

        return {"device_files": open_device(options.get("device_path"))}
    return {}
