"""A build of llama.cpp without the instructions of a board is recognised by its own words."""

from __future__ import annotations

import pytest

from engine.backends.llamacpp.cpu_features import find_slow_build_warning

PLAIN = "CPU : NEON = 1 | ARM_FMA = 1 | LLAMAFILE = 1 | OPENMP = 1 | REPACK = 1 | "
BUILT_FOR_THE_BOARD = "CPU : NEON = 1 | ARM_FMA = 1 | FP16_VA = 1 | DOTPROD = 1 | OPENMP = 1 | "


@pytest.mark.parametrize(
    ("system_info", "machine", "is_slow"),
    [
        (PLAIN, "aarch64", True),
        (BUILT_FOR_THE_BOARD, "aarch64", False),
        (PLAIN, "x86_64", False),
        ("", "aarch64", True),
    ],
)
def test_build_without_dot_products_is_named_on_arm64(
    system_info: str, machine: str, is_slow: bool
) -> None:
    warning = find_slow_build_warning(system_info, machine)
    assert (warning is not None) is is_slow
    assert warning is None or "dot-product" in warning
