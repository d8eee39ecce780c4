"""The number of llama.cpp's threads."""

from __future__ import annotations

import pytest

from engine.backends.llamacpp import backend
from engine.backends.options import LlamaCppOptions


@pytest.mark.parametrize(
    ("threads", "deterministic", "expected"), [(0, False, 3), (5, False, 5), (0, True, 1)]
)
def test_backend_has_a_thread_for_each_usable_cpu_by_default(
    monkeypatch: pytest.MonkeyPatch, threads: int, deterministic: bool, expected: int
) -> None:
    monkeypatch.setattr(backend, "count_usable_cpus", lambda: 3)
    options = LlamaCppOptions(
        model_path="x.gguf", model_name="x", threads=threads, deterministic=deterministic
    )
    assert backend.LlamaCppBackend(options)._threads == expected
