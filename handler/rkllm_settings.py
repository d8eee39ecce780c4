"""The variables of RKLLM's backend: its library, its model's setting up, and what it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.backends.rkllm.adapters import read_adapters
from engine.backends.rkllm.checks import why_no_batch


class RkllmSettings(BaseSettings):
    """What the backend for Rockchip's NPUs is built with; the others look at none of it."""

    model_config = SettingsConfigDict(env_ignore_empty=True, extra="ignore")

    rkllm_lib_path: Path | None = Field(
        None, description="librkllmrt.so or its folder; unset is where the loader finds it."
    )
    rkllm_abi: Literal["auto", "1.2", "1.3"] = Field(
        "auto", description="The library's ABI: auto looks at its default parameters."
    )
    rkllm_sampling: Literal["fixed", "reload"] = Field(
        "fixed",
        description="Where sampling is set at the load: warn of requests that differ, or load the "
        "model again for them.",
    )
    rkllm_tokenizer: Path | None = Field(
        None, description="The folder of tokenizer.json; unset is where the model is."
    )
    rkllm_cpu_mask: int = Field(
        0, ge=0, lt=2**32, description="The runtime's CPUs as bits; 0 is its own choice."
    )
    rkllm_base_domain_id: int = Field(
        0, ge=0, le=63, description="The NPU's memory domain, one for each process beyond 4 GB."
    )
    rkllm_lora: str = Field(
        "",
        description="LoRA adapters of the model as name=path, or name=path:scale, separated by "
        "commas.",
    )
    rkllm_mode: Literal["generate", "logits"] = Field(
        "generate",
        description="Who chooses the tokens: the runtime, or logits: this worker, which is slower "
        "and honours every sampling parameter and schemas.",
    )
    rkllm_pooling: Literal["last", "mean", "cls"] = Field(
        "last",
        description="Which of a text's tokens is its vector: the last one, the first (cls), or the "
        "mean of all.",
    )
    rkllm_kv_reuse: bool = Field(
        True,
        description="on: a chat's next turn is read from where the last one ended, as no board has "
        "confirmed yet; off: every prompt from its beginning.",
    )
    rkllm_prompt_caches: Path | None = Field(
        None,
        description="The folder of prompts that requests save and name in prompt_cache; unset is "
        "none.",
    )

    rkllm_n_batch: int = Field(
        1,
        ge=1,
        le=8,
        description="Requests that are computed in one run, side by side; those that come later "
        "wait for its end. 1 is one after the other.",
    )

    @field_validator("rkllm_lora")
    @classmethod
    def _adapters(cls, value: str) -> str:
        read_adapters(value)
        return value

    @model_validator(mode="after")
    def _batches(self) -> Self:
        caches = self.rkllm_prompt_caches is not None
        if self.rkllm_n_batch > 1 and (why := why_no_batch(self.rkllm_mode, prompt_caches=caches)):
            raise ValueError(why)
        return self

    def rkllm_options(self) -> dict[str, object]:
        """Return the backend's options that are of these variables alone."""
        paths = {
            "lib_path": self.rkllm_lib_path,
            "tokenizer": self.rkllm_tokenizer,
            "prompt_caches": self.rkllm_prompt_caches,
        }
        return {
            "abi": self.rkllm_abi,
            "sampling": self.rkllm_sampling,
            "cpu_mask": self.rkllm_cpu_mask,
            "base_domain_id": self.rkllm_base_domain_id,
            "lora": self.rkllm_lora,
            "pooling": self.rkllm_pooling,
            "mode": self.rkllm_mode,
            "kv_reuse": self.rkllm_kv_reuse,
            "n_batch": self.rkllm_n_batch,
            **{name: None if path is None else str(path) for name, path in paths.items()},
        }
