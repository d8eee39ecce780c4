"""The options of each backend: made from settings, sent to the host process, and read there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from engine.backends.lora_adapters import LoraAdapter
from engine.backends.rkllm.embeddings import Pooling
from engine.backends.rkllm.vision.cores import VisionCores
from engine.backends.rkllm.vision.image_marks import DEFAULT_IMAGE_MARKS, DEFAULT_VISION_SIZE

BackendName = Literal["llamacpp", "openai", "rkllm", "scripted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOptions:
    """The options of the scripted backend; without `model_path` each answer is its prompt."""

    backend: ClassVar[BackendName] = "scripted"

    model_path: str | None = None
    model_name: str = "scripted"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOptions:
    """The options of the llama.cpp backend.

    Args:
        context_length: per slot, in tokens; 0 means the model's own.
        deterministic: one slot, one thread and no reuse of an earlier prompt's cache, for the same
            text every time.
        draft_path: a draft model for speculative decoding.
        mmproj_path: the model's projector, with which messages may have images.
        adapters: the LoRA adapters that requests may choose.
    """

    backend: ClassVar[BackendName] = "llamacpp"

    model_path: str
    model_name: str
    context_length: int = 4096
    slots: int = 4
    threads: int = 0
    deterministic: bool = False
    draft_path: str | None = None
    mmproj_path: str | None = None
    adapters: tuple[LoraAdapter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RkllmOptions:
    """The options of the RKLLM backend.

    Args:
        context_length: in tokens; 0 means the runtime's own default.
        sampling: what to do if the runtime accepts sampling parameters only at init (1.2).
            "fixed" warns about requests that differ; "reload" reloads the model for them.
        mode: with "logits" the runtime only computes logits; tokens are sampled here, and each
            prompt is computed completely.
        kv_reuse: a prompt that continues the previous prompt and its answer reuses the key-value
            cache instead of being computed from its beginning.
        n_batch: the number of concurrent calls of `run`, which share runs if it is above 1.
        profile: the file with what the doctor measured on this board.
        record: a file to record calls and callbacks of the library to; another one if it exists.
        record_text: whether prompts, answers and token ids are recorded too.
        record_process: which process a recording is of, such as "copy 2".
        device_lock: refuse to load while another server uses the NPU.
        device_path: a file to lock instead of the NPU's.
        device_files: descriptors of these files that this server has opened and locked already.
        encoder_lock: a model of this server has a vision encoder, which must not use the NPU while
            this model does.
        encoder_files: descriptors of the files of that lock, which this server has opened.
        vision: the .rknn vision encoder of the model, with which messages may have images.
        vision_size: the width and height of the images that it takes, in pixels.
        vision_cores: the NPU's cores that compute the images; "auto" lets the toolkit choose one.
        vision_tokens: the texts around and in an image, in the format of RKLLM_VISION_TOKENS.
        adapters: the LoRA adapters that requests may choose.
    """

    backend: ClassVar[BackendName] = "rkllm"

    model_path: str
    model_name: str
    context_length: int = 0
    lib_path: str | None = None
    abi: str = "auto"
    sampling: Literal["fixed", "reload"] = "fixed"
    tokenizer: str | None = None
    cpu_mask: int = 0
    base_domain_id: int = 0
    pooling: Pooling = "last"
    mode: Literal["generate", "logits"] = "generate"
    kv_reuse: bool = True
    n_batch: int = 1
    profile: str | None = None
    record: str | None = None
    record_text: bool = False
    record_process: str = "copy 1"
    device_lock: bool = True
    device_path: str | None = None
    device_files: tuple[int, ...] | None = None
    encoder_lock: bool = False
    encoder_files: tuple[int, ...] | None = None
    vision: str | None = None
    vision_size: int = DEFAULT_VISION_SIZE
    vision_cores: VisionCores = "auto"
    vision_tokens: str = DEFAULT_IMAGE_MARKS
    adapters: tuple[LoraAdapter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIOptions:
    """The options of the openai backend.

    Args:
        model_name: the model's name in answers.
        model_id: its name at the servers.
        urls: the base URLs of the servers, with or without `/v1`.
        key: the key that they get; None for none.
        context_length: in tokens; 0 means what the server tells, or no limit.
        slots: how many requests are in progress at a time.
        load_timeout_s: how long to wait for a server that is not there yet.
    """

    backend: ClassVar[BackendName] = "openai"
    # The model has no file here.
    model_path: ClassVar[str | None] = None

    model_name: str
    model_id: str
    urls: tuple[str, ...]
    key: str | None = field(default=None, repr=False)
    context_length: int = 0
    slots: int = 32
    load_timeout_s: float = 600.0


BackendOptions = LlamaCppOptions | OpenAIOptions | RkllmOptions | ScriptedOptions

_OPTIONS: Mapping[str, type[BackendOptions]] = {
    each.backend: each for each in (LlamaCppOptions, OpenAIOptions, RkllmOptions, ScriptedOptions)
}


def options_to_wire(options: BackendOptions) -> dict[str, Any]:
    """Return options as JSON values."""
    values = asdict(options)
    if "adapters" in values:
        values["adapters"] = [
            {**adapter, "path": str(adapter["path"])} for adapter in values["adapters"]
        ]
    return values


def options_from_wire(backend: str, values: Mapping[str, Any]) -> BackendOptions:
    """Return the options that JSON values describe.

    Raises:
        ValueError: no backend has this name.
    """
    options = _OPTIONS.get(backend)
    if options is None:
        raise ValueError(f"there is no backend {backend!r}")
    rest = dict(values)
    if adapters := rest.get("adapters"):
        rest["adapters"] = tuple(
            each if isinstance(each, LoraAdapter) else LoraAdapter.from_wire(each)
            for each in adapters
        )
    if "urls" in rest:
        rest["urls"] = tuple(rest["urls"])
    return options(**rest)
