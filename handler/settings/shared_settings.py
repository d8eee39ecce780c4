"""The environment variables of all commands, read once in `main` and passed on as values."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator
from pydantic_settings import NoDecode

from common.durations import parse_keep_alive_s
from common.url_credentials import hide_credentials
from engine.backends.lora_adapters import LoraAdapter, parse_adapters
from engine.backends.options import BackendName
from engine.hosts.memory_limit import default_limit_mb
from engine.reply.reply_format import ToolForm
from handler.models.default_model import DEFAULT_MODEL_NAME, DEFAULT_MODEL_PATH
from handler.models.model_file import ModelSource
from handler.models.model_list import (
    ModelEntry,
    assign_domains,
    check_models,
    model_name_from_path,
    read_models,
    split_names,
)
from handler.models.served_model import ServedModel
from handler.settings.upstream_settings import UpstreamSettings

DEFAULT_SLOTS = 4
# Requests in progress at the servers of UPSTREAM_URL.
UPSTREAM_SLOTS = 32
_BACKENDS: dict[str, BackendName] = {".json": "scripted", ".rkllm": "rkllm"}


class Settings(UpstreamSettings):
    """Settings that every command needs to build an engine and a pipeline.

    The names are the variables' names in lower case. A value that is empty counts as unset, since
    RunPod's console sends empty ones for fields left blank.
    """

    engine: Literal["auto", "llamacpp", "openai", "rkllm", "scripted", "none"] = Field(
        "auto",
        description="Engine that generates the text. `auto` chooses it by the file ending of "
        "MODEL_PATH. `openai`: the model is on the server of UPSTREAM_URL. `none`: the server "
        "loads no model, and only workers that connect to it run jobs. That is also the case with "
        "`--handler` and `--image`, and with `LOCAL_WORKER=off` unless ENGINE, MODEL_PATH, MODELS "
        "or MODEL_PULL is set.",
    )
    model_path: Path | None = Field(
        None,
        description="Model to load: a .gguf file (llama.cpp), a .rkllm file (Rockchip NPU), a "
        "folder with one of them, `hf:org/repo[@revision][/file]` on the Hugging Face Hub "
        "(downloaded unless it is in the cache) or a .json script (tests). Unset: the built-in "
        "135M model, which `worker-rkllm fetch-model` or `make run` fetches. With `ENGINE=openai`, "
        "the model's name at the server.",
        examples=["/models/qwen.gguf", "hf:org/repo/file.gguf"],
    )
    draft_model_path: Path | None = Field(
        None,
        description="Smaller .gguf model with the same vocabulary, for speculative decoding with "
        "llama.cpp: a file, a folder or `hf:org/repo`, as MODEL_PATH. Unset: no draft model.",
        examples=["/models/qwen-0.5b.gguf"],
    )
    mmproj_path: Path | None = Field(
        None,
        description="Projector of the model of MODEL_PATH, for images in messages with llama.cpp: "
        "a .gguf file, a folder or `hf:org/repo/file`, as MODEL_PATH. Unset: messages are text.",
        examples=["/models/mmproj-qwen-vl.gguf"],
    )
    lora_adapters: Annotated[tuple[LoraAdapter, ...], NoDecode] = Field(
        (),
        description="LoRA adapters of the model of MODEL_PATH with llama.cpp, as `name=path` or "
        "`name=path:scale`, separated by commas; a request selects one with its name as `model`. A "
        "path is a .gguf file, a folder or `hf:org/repo/file`, as MODEL_PATH. For an NPU there is "
        "RKLLM_LORA.",
        examples=["french=/models/french.gguf,legal=/models/legal.gguf:0.8"],
    )
    model_name: str | None = Field(
        None,
        description="Name of the model in requests and responses, or several separated by commas: "
        "requests may use any of them, responses have the first. Unset: the file name without its "
        "ending.",
        examples=["qwen2.5", "qwen2.5,gpt-4o-mini"],
    )
    models: Annotated[tuple[ModelEntry, ...], NoDecode] = Field(
        (),
        description="Several models, or several copies of one, as a JSON list; use it instead of "
        "MODEL_PATH and MODEL_NAME. Optional keys of an entry: name, copies, "
        "base_domain_id, context_length, tokenizer, mmproj (as MMPROJ_PATH or RKLLM_VISION), lora "
        "(an object of LoRA adapters' names and paths), lib_path (as RKLLM_LIB_PATH, for models of "
        "different toolkits), and memory_mb for what the model takes in "
        "memory; the first entry is the default model. Models that do not fit together are loaded "
        "when they are requested.",
        examples=['[{"path": "/models/a.rkllm", "copies": 2}, {"path": "hf:org/repo"}]'],
    )
    model_memory_mb: int | None = Field(
        None,
        ge=1,
        description="Memory for the models of MODELS together, in MB. A model that is requested "
        "and does not fit is loaded in place of the one whose last request is the longest ago. "
        "Unset: 80 % of the memory of the machine or container.",
        examples=["6000"],
    )
    preload_models: str = Field(
        "",
        description="Models of MODELS to load at the start, separated by commas. Unset: as many as "
        "fit, in the order of MODELS.",
        examples=["small,large"],
    )
    keep_alive: str | None = Field(
        None,
        description="How long a model stays loaded after its last request, such as `5m` or `1h`; a "
        "number is in seconds. Unset or negative: until another model needs the memory.",
        examples=["5m"],
    )
    context_length: int = Field(
        4096,
        ge=0,
        description="Maximum tokens of prompt and answer together, for each slot. 0: the model's "
        "own maximum (4096 with RKLLM, whose runtime does not report it).",
    )
    max_concurrency: int = Field(
        0,
        ge=0,
        le=256,
        description=f"Answers that llama.cpp generates in parallel (slots). 0: {DEFAULT_SLOTS}, "
        f"and {UPSTREAM_SLOTS} with `ENGINE=openai`; RKLLM uses RKLLM_N_BATCH instead.",
    )
    max_queue: int = Field(
        256,
        ge=0,
        le=1_000_000,
        description="OpenAI requests that may wait for a slot; further requests get status 429. "
        "Jobs wait in a queue of their own.",
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="CPU threads for llama.cpp. 0: one for each CPU that the process may use, by "
        "its affinity and the CPU limit of its container or service (cgroup).",
    )
    apply_chat_template: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether a job's `prompt` becomes a user message in the model's chat template. "
        "auto: yes, unless the model has no template or the prompt contains the template's special "
        "tokens. `/v1/completions` always sends the prompt unchanged.",
    )
    tool_parser: Literal["auto", ToolForm] = Field(
        "auto",
        description="The form in which the model writes tool calls. auto: all of these forms are "
        "recognised.",
    )
    stop_in_reasoning: bool = Field(
        False,
        description="Whether stop strings also end an answer in its reasoning and in tool calls. "
        "Requests may choose with `stop_in_reasoning`.",
    )
    default_max_tokens: int | None = Field(
        None,
        ge=1,
        description="`max_tokens` for OpenAI requests that do not set it. Unset: until the context "
        "is full.",
        examples=["512"],
    )
    request_timeout_s: float = Field(
        600, gt=0, description="Maximum duration of a request, including the time in the queue."
    )
    prefill_timeout_s: float = Field(
        300,
        gt=0,
        description="Maximum time from getting a slot to the first token, for a prompt of up to "
        "4,096 tokens. A longer one has more in proportion. A slow machine needs more.",
    )
    # Answers that are not streamed report progress five times a second, so less than 0.5 s would
    # count as a stall.
    stall_timeout_s: float = Field(
        60, ge=0.5, description="Maximum time between two tokens. The minimum is 0.5."
    )
    abort_grace_s: float = Field(
        10,
        gt=0,
        description="Time that an aborted generation gets to stop. After it the engine's process is"
        " killed, when the other generations have ended or ENGINE_DRAIN_S is over.",
    )
    engine_drain_s: float = Field(
        60,
        ge=0,
        allow_inf_nan=False,
        description="Time that the other generations get to finish before the engine's process is "
        "killed because one does not stop. New ones wait meanwhile.",
    )
    engine_down_exit_s: float = Field(
        300,
        gt=0,
        description="After a crash the engine is restarted with growing pauses. If no restart "
        "succeeds within this time, the server or worker exits with code 1, and its jobs stay in "
        "the queue.",
    )
    load_timeout_s: float = Field(600, gt=0, description="Maximum time for loading the model.")
    engine_isolation: Literal["process", "thread"] = Field(
        "process",
        description="`process` runs the engine in a process of its own. `thread` is for tests: a "
        "crash of the native library ends the server too.",
    )
    engine_memory_mb: int | None = Field(
        None,
        ge=0,
        description="Memory that the engine's process may use, in MB, without the model file, which"
        " is mapped. A request that needs more ends that process, which is started again. Unset: "
        "80 % of the memory of the machine or container; with `MODELS`, less the other models' "
        "files. "
        "`0` or `off`: no limit.",
        examples=["4096"],
    )
    deterministic: bool = Field(
        False,
        description="`on`: the same seed always gives the same text. Uses one slot and one thread, "
        "without cache reuse.",
    )
    enable_validation: bool = Field(
        True,
        description="Whether the answers to jobs with a `prompt` or `messages` are validated if "
        "the job does not set `enable_validation`. OpenAI requests are validated only if their "
        "body sets it to true.",
    )
    validation_rules: Path | None = Field(
        None,
        description="Rules file that replaces validation/rules.yaml.",
        examples=["/etc/worker-rkllm/rules.yaml"],
    )
    validation_schema: Path | None = Field(
        None,
        description="File with a JSON Schema that validated answers are checked against.",
        examples=["/etc/worker-rkllm/answer.schema.json"],
    )
    validation_language: str | None = Field(
        None,
        description="Expected language of validated answers, as an ISO 639-1 code.",
        examples=["en"],
    )
    redact_pii: str = Field(
        "off",
        description="Personal data to remove from every answer: `on`, `off` or a list of card, "
        "iban, email, phone, key, ssn. A redacted stream is sent in one piece, at its end.",
        examples=["email,phone"],
    )
    blocked_intents: str = Field(
        "",
        description="Requests with one of these intents are refused; separated by commas.",
        examples=["salary_intelligence"],
    )
    blocked_terms: str = Field(
        "",
        description="Requests that contain one of these words or phrases are refused; separated by "
        "commas.",
        examples=["password,credit card"],
    )
    regenerate: bool = Field(
        False,
        description="`on`: generate an answer once more when a validation rule recommends it.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Lowest severity that is logged."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="`auto`: readable lines on a terminal, JSON otherwise."
    )
    log_texts: bool = Field(
        False,
        description="`on`: log prompts and answers too, at every LOG_LEVEL.",
    )

    # Models that were added while the process runs.
    _pulled_models: tuple[ModelEntry, ...] = PrivateAttr(())

    @field_validator("log_level", mode="before")
    @classmethod
    def _convert_to_upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("engine_memory_mb", mode="before")
    @classmethod
    def _parse_off(cls, value: object) -> object:
        return 0 if isinstance(value, str) and value.strip().lower() == "off" else value

    @field_validator("model_name")
    @classmethod
    def _check_names(cls, value: str | None) -> str | None:
        if value is not None:
            split_names(value)
        return value

    @field_validator("lora_adapters", mode="before")
    @classmethod
    def _parse_own_adapters(cls, value: object) -> object:
        return parse_adapters(value) if isinstance(value, str) else value

    @field_validator("keep_alive")
    @classmethod
    def _check_keep_alive(cls, value: str | None) -> str | None:
        if value is not None and parse_keep_alive_s(value) is None:
            raise ValueError("must be a number of seconds or a duration such as 5m")
        return value

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: object) -> object:
        return read_models(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        if self.keep_alive_s != math.inf and self.engine_isolation == "thread":
            raise ValueError("KEEP_ALIVE needs ENGINE_ISOLATION=process: a thread keeps its model")
        return self

    @model_validator(mode="after")
    def _check_upstream(self) -> Self:
        if self.engine == "openai" and not self.upstream_urls:
            raise ValueError("UPSTREAM_URL must be set where ENGINE is openai")
        return self

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if not self.models:
            return self
        single_model_fields = (
            *("model_path", "model_name", "draft_model_path", "mmproj_path"),
            *("lora_adapters", "rkllm_lora"),
        )
        check_models(
            self.models,
            [name.upper() for name in single_model_fields if getattr(self, name)],
            in_threads=self.engine_isolation == "thread",
        )
        for each in self.models:
            if each.lib_path is not None and self.backend_of(each.path) != "rkllm":
                raise ValueError(
                    f"MODELS: lib_path is for .rkllm models, and {each.path} is none: leave it out"
                )
        self.npu_domains()
        return self

    @property
    def model_list(self) -> Sequence[ServedModel]:
        """The models that are served, the default first; a single model is a list of one."""
        listed = self.models or ()
        models = [self._from_entry(each) for each in listed] or [self._single_model()]
        return (*models, *(self._from_entry(each) for each in self._pulled_models))

    def _single_model(self) -> ServedModel:
        path = self.model_path
        backend = self.backend_of(path)
        name = self.model_name
        if backend == "openai":
            # The name of a model at a server is no path, and may have a dot.
            name = name or str(path)
            path = path or Path(split_names(name)[0])
        if name is None and path is not None:
            name = model_name_from_path(path)
        if name is None:
            name = "scripted" if backend == "scripted" else DEFAULT_MODEL_NAME
        if path is None and backend == "llamacpp":
            path = DEFAULT_MODEL_PATH
        is_rkllm = backend == "rkllm"
        adapters = {"llamacpp": self.lora_adapters, "rkllm": self.rkllm_lora}
        return ServedModel(
            path=path,
            backend=backend,
            names=split_names(name),
            context_length=self._context_length(backend),
            tokenizer=self.rkllm_tokenizer,
            projector=self.rkllm_vision if is_rkllm else self.mmproj_path,
            library=self.rkllm_lib_path,
            draft=self.draft_model_path,
            adapters=adapters.get(backend, ()),
            base_domain_id=self.rkllm_base_domain_id,
        )

    def _from_entry(self, entry: ModelEntry) -> ServedModel:
        backend = self.backend_of(entry.path)
        encoder = self.rkllm_vision if backend == "rkllm" else None
        own_context = entry.context_length
        return ServedModel(
            path=entry.path,
            backend=backend,
            names=entry.served_names,
            context_length=self._context_length(backend) if own_context is None else own_context,
            tokenizer=entry.tokenizer or self.rkllm_tokenizer,
            projector=entry.mmproj or encoder,
            library=entry.lib_path or self.rkllm_lib_path,
            adapters=entry.lora,
            copies=entry.copies,
            base_domain_id=entry.base_domain_id,
            memory_mb=entry.memory_mb,
        )

    def _context_length(self, backend: BackendName) -> int:
        """Return CONTEXT_LENGTH, whose default is for models that are loaded here."""
        is_default = "context_length" not in self.model_fields_set
        return 0 if backend == "openai" and is_default else self.context_length

    @property
    def served_model(self) -> str:
        """The name of the one model, or of the default among several."""
        return self.model_list[0].name

    @property
    def served_models(self) -> tuple[str, ...]:
        """All names that a request may use: the default first, those of adapters last."""
        names = [name for model in self.model_list for name in model.names]
        return (*names, *self.served_adapters)

    @property
    def keep_alive_s(self) -> float:
        """How long a model stays loaded after its last request; infinite for no limit."""
        seconds = parse_keep_alive_s(self.keep_alive)
        return math.inf if seconds is None else seconds

    def with_model(self, entry: ModelEntry) -> Self:
        """Return settings with one more model. Raises ValueError if there is no domain for it."""
        grown = self.model_copy()
        grown._pulled_models = (*self._pulled_models, entry)
        grown.npu_domains()
        return grown

    @property
    def model_sources(self) -> Mapping[str, ModelSource]:
        """The source of each model, by the model's name; none for a scripted engine without one."""
        sources = {model.name: model.source for model in self.model_list}
        return {name: source for name, source in sources.items() if source is not None}

    @property
    def aliases(self) -> Mapping[str, Sequence[str]]:
        """The further names of each model that has some, by the name in answers."""
        return {each.name: each.names[1:] for each in self.model_list if len(each.names) > 1}

    @property
    def served_adapters(self) -> tuple[str, ...]:
        """The names of all LoRA adapters."""
        return tuple(name for names in self.adapters_by_model.values() for name in names)

    @property
    def adapters_by_model(self) -> Mapping[str, Sequence[str]]:
        """The names of each model's LoRA adapters, by the model's name."""
        return {
            model.name: tuple(adapter.name for adapter in model.adapters)
            for model in self.model_list
        }

    @property
    def backend(self) -> BackendName:
        """The backend that `engine` and the model file select."""
        return self.backend_of(self.model_path)

    @property
    def backends(self) -> frozenset[BackendName]:
        """The backends in use."""
        return frozenset(model.backend for model in self.model_list)

    def backend_of(self, path: Path | None) -> BackendName:
        """Return the backend that loads a model file."""
        if self.engine != "auto" and self.engine != "none":
            return self.engine
        return _BACKENDS.get(path.suffix if path is not None else "", "llamacpp")

    def npu_domains(self) -> Mapping[str, Sequence[int]]:
        """Return the `base_domain_id` of each copy of the models that run on an NPU."""
        on_npu = [model for model in self.model_list if model.backend == "rkllm"]
        return assign_domains(on_npu, self.rkllm_base_domain_id)

    @property
    def memory_mb(self) -> int:
        """The memory that one engine process may use, 0 for no limit."""
        if self.engine_isolation == "thread":
            return 0
        if self.engine_memory_mb is not None:
            return self.engine_memory_mb
        return default_limit_mb()

    def memory_mb_of(self, model: ServedModel) -> int:
        """The memory that one engine process of one of several models may use, 0 for no limit."""
        if self.engine_isolation == "thread" or self.engine_memory_mb is not None:
            return self.memory_mb
        all_models_bytes = sum(each.copies * each.size_bytes for each in self.model_list)
        processes = sum(each.copies for each in self.model_list)
        return default_limit_mb(processes, all_models_bytes - model.size_bytes)


S = TypeVar("S", bound=Settings)


def read_settings(cls: type[S]) -> S:
    """Return the settings from the environment; exit with code 2 and messages if one is invalid."""
    try:
        return cls()
    except ValidationError as error:
        for each in error.errors(include_url=False):
            if not each["loc"]:
                # An error about several settings together.
                sys.stderr.write(each["msg"].removeprefix("Value error, ") + "\n")
                continue
            name, *inner = each["loc"]
            path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in inner)
            value = _describe_value(cls, str(name), each["input"])
            sys.stderr.write(f"{str(name).upper()}{path}: {each['msg']}{value}\n")
        raise SystemExit(2) from None


def _describe_value(cls: type[Settings], name: str, value: object) -> str:
    """Return the end of a message with the invalid value; nothing for a secret."""
    setting = cls.model_fields.get(name.lower())
    if setting is not None and "SecretStr" in str(setting.annotation):
        return ""
    visible = hide_credentials(value) if isinstance(value, str) and "://" in value else value
    return f", got {visible!r}"
