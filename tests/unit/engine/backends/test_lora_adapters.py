"""Settings with LoRA adapters: valid adapters, and errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.lora_adapters import (
    LoraAdapter,
    check_adapters,
    parse_adapters,
)
from engine.errors import ModelLoadFailed


def test_adapters_are_read_in_order() -> None:
    assert parse_adapters("one=a/b.rkllm, two = /c:d.rkllm:0.5 ,three=x=y,") == (
        LoraAdapter("one", Path("a/b.rkllm"), 1.0),
        LoraAdapter("two", Path("/c:d.rkllm"), 0.5),
        LoraAdapter("three", Path("x=y"), 1.0),
    )
    assert parse_adapters("") == parse_adapters(" , ") == ()


@pytest.mark.parametrize("bad", ["one", "=a.rkllm", "one=", "o\tne=a.rkllm", "one=a,two"])
def test_invalid_adapter_is_named(bad: str) -> None:
    with pytest.raises(ValueError, match="an adapter is name=path or name=path:scale, not"):
        parse_adapters(bad)


def test_adapter_names_must_be_unique() -> None:
    with pytest.raises(ValueError, match="two adapters are named one"):
        parse_adapters("one=a,two=b,one=c")


def test_scale_is_limited() -> None:
    assert parse_adapters("one=a:100")[0].scale == 100
    with pytest.raises(ValueError, match=r"from 0 to 100, not 100\.5"):
        parse_adapters("one=a:100.5")


def test_adapter_needs_a_file_and_a_name_that_is_not_the_models(tmp_path: Path) -> None:
    path = tmp_path / "one.rkllm"
    with pytest.raises(ModelLoadFailed, match=r"RKLLM_LORA: there is no file .*one\.rkllm"):
        check_adapters((LoraAdapter("one", path),), "tiny", "RKLLM_LORA")
    path.touch()
    check_adapters((LoraAdapter("one", path),), "tiny", "RKLLM_LORA")
    with pytest.raises(ModelLoadFailed, match="RKLLM_LORA: one is the model's own name"):
        check_adapters((LoraAdapter("one", path),), "one", "RKLLM_LORA")
