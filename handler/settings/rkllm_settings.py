"""The environment variables of the RKLLM backend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from engine.backends.lora_adapters import LoraAdapter, parse_adapters
from engine.backends.rkllm.checks import batch_conflict, vision_conflict
from engine.backends.rkllm.vision.cores import VisionCores
from engine.backends.rkllm.vision.image_marks import (
    DEFAULT_IMAGE_MARKS,
    DEFAULT_VISION_SIZE,
    parse_image_marks,
)


class RkllmSettings(BaseSettings):
    """Settings of the backend for Rockchip's NPUs; other backends ignore them."""

    model_config = SettingsConfigDict(env_ignore_empty=True, extra="ignore")

    rkllm_lib_path: Path | None = Field(
        None,
        description="Path of librkllmrt.so, or of its folder. Unset: LD_LIBRARY_PATH, the loader's "
        "cache and the usual folders, such as /usr/lib and /opt/rkllm/lib.",
        examples=["/opt/rkllm/lib"],
    )
    rkllm_abi: Literal["auto", "1.2", "1.3", "1.3.1"] = Field(
        "auto",
        description="Version of the library's binary interface (ABI). `auto` detects it from the "
        "library's default parameters.",
    )
    rkllm_sampling: Literal["fixed", "reload"] = Field(
        "fixed",
        description="For runtimes whose sampling parameters are fixed when the model is loaded. "
        "`fixed` warns about requests that differ; `reload` loads the model again for "
        "them.",
    )
    rkllm_tokenizer: Path | None = Field(
        None,
        description="Folder with the model's tokenizer.json, or `hf:org/repo[@revision]`. Unset: "
        "the folder named like the model without .rkllm, if it has a tokenizer.json, else the "
        "model's folder.",
        examples=["/models/qwen", "hf:org/repo"],
    )
    rkllm_cpu_mask: int = Field(
        0,
        ge=0,
        lt=2**32,
        description="CPUs that the runtime may use, as a bit mask in decimal. 0: the runtime "
        "chooses.",
        examples=["240"],
    )
    rkllm_base_domain_id: int = Field(
        0,
        ge=0,
        le=63,
        description="NPU memory domain of the model. Models that together exceed 4 GB need "
        "different ones.",
        examples=["1"],
    )
    rkllm_lora: Annotated[tuple[LoraAdapter, ...], NoDecode] = Field(
        (),
        description="LoRA adapters as `name=path` or `name=path:scale`, separated by commas.",
        examples=["legal=/models/legal.rkllm:0.8"],
    )
    rkllm_mode: Literal["generate", "logits"] = Field(
        "generate",
        description="`generate`: the runtime samples the tokens. `logits`: this worker samples "
        "them, which is slower and supports every sampling parameter and JSON Schema. "
        "A reranking model scores texts only with it.",
    )
    rkllm_pooling: Literal["last", "mean", "cls"] = Field(
        "last",
        description="How the embedding of a text is computed from its tokens: from the last token, "
        "as the mean of all, or from the first token (`cls`).",
    )
    rkllm_kv_reuse: bool = Field(
        True,
        description="`on`: reuse the cache of the previous turn of a chat (not yet confirmed on a "
        "board). `off`: compute every prompt from its beginning.",
    )
    rkllm_vision: Path | None = Field(
        None,
        description="Vision encoder of the model, for images in messages (not yet confirmed on a "
        "board): a .rknn file, or `hf:org/repo/file`. It needs the packages rknn-toolkit-lite2 and "
        "Pillow. Unset: messages are text.",
        examples=["/models/qwen2-vl-vision.rknn"],
    )
    rkllm_vision_size: int = Field(
        DEFAULT_VISION_SIZE,
        ge=14,
        le=4096,
        description="Width and height in pixels of the images for which the vision encoder was "
        "converted.",
        examples=["448"],
    )
    rkllm_vision_cores: VisionCores = Field(
        "auto",
        description="NPU cores that compute images: `auto` leaves the choice of one core to "
        "rknn-toolkit-lite2, `0_1` and `0_1_2` use several at once. With the drivers 0.9.2 and "
        "0.9.3 only `0` works.",
    )
    rkllm_vision_tokens: str = Field(
        DEFAULT_IMAGE_MARKS,
        description="Texts of the model's vocabulary before an image, after it, and for each of "
        "its tokens, separated by commas. The default is that of the Qwen-VL models.",
        examples=["<img>,</img>,<IMG_CONTEXT>"],
    )

    rkllm_n_batch: int = Field(
        1,
        ge=1,
        le=8,
        description="Requests that the NPU computes together in one run. A request that arrives "
        "during a run waits for its end.",
    )
    rkllm_record: Path | None = Field(
        None,
        description="File to record the calls and callbacks of the library to, without texts, for "
        "a report about a fault. Each process writes a new file: if it exists, the name gets .2, "
        ".3 and so on. Unset: nothing is recorded.",
        examples=["/var/log/board.jsonl"],
    )
    rkllm_record_text: bool = Field(
        False,
        description="`on`: RKLLM_RECORD also records prompts, answers and their token ids.",
    )

    rkllm_profile: Path | None = Field(
        None,
        description="File with what `python -m handler doctor` measured on this board, which it "
        "writes and the engine reads. Unset: the engine does what is safe on every board.",
        examples=["/var/lib/worker-rkllm/profile.json"],
    )

    rkllm_device_lock: bool = Field(
        True,
        description="`on`: refuse to load a model while another server uses the NPU. `off`: allow "
        "it, although two servers on one NPU have crashed a kernel.",
    )

    @field_validator("rkllm_lora", mode="before")
    @classmethod
    def _parse_adapters(cls, value: object) -> object:
        return parse_adapters(value) if isinstance(value, str) else value

    @field_validator("rkllm_vision_tokens")
    @classmethod
    def _vision_tokens(cls, value: str) -> str:
        parse_image_marks(value)
        return value

    @model_validator(mode="after")
    def _batches(self) -> Self:
        if self.rkllm_n_batch > 1 and (reason := batch_conflict(self.rkllm_mode)):
            raise ValueError(reason)
        if self.rkllm_vision is not None and (
            reason := vision_conflict(self.rkllm_n_batch, self.rkllm_mode)
        ):
            raise ValueError(reason)
        return self
