"""The inputs of the runtime's calls (init, run), and the state of a run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from engine.backends.base import OnPiece
from engine.backends.rkllm.abi.abi import Abi
from engine.backends.rkllm.abi.structs import LLMCallState, RKLLMInputType, RKLLMLoraParam
from engine.backends.rkllm.runs.padding import PaddingCounter
from engine.request import SamplingParams

# Stands for "all tokens" in top_k: the runtime uses the smaller of it and the vocabulary's size.
ALL_TOKENS = 1_000_000
_USER = b"user"
# The runtime replaces it with the tokens of an image.
IMAGE_TAG = "<image>"

_NORMAL = int(LLMCallState.RKLLM_RUN_NORMAL)
_WAITING = int(LLMCallState.RKLLM_RUN_WAITING)
_FINISH = int(LLMCallState.RKLLM_RUN_FINISH)


class ImageMarks(NamedTuple):
    """The texts of a model's vocabulary around an image, and for each of an image's tokens."""

    start: str
    end: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InitConfig:
    """The settings of an init; in 1.2 it is the only call that sets sampling parameters.

    `n_batch` is the number of prompts of each run. A model that takes no images has no
    `image_marks`. With `has_raw_prompts` the runtime applies no chat template to texts.
    """

    model: Path
    context_length: int
    sampling: SamplingParams
    cpu_mask: int = 0
    base_domain_id: int = 0
    n_batch: int = 1
    image_marks: ImageMarks | None = None
    has_raw_prompts: bool = False


@dataclass(frozen=True, slots=True)
class UserTurn:
    """One user turn as text, to which the runtime applies the model's template."""

    text: str
    enable_thinking: bool = False


@dataclass(frozen=True, slots=True)
class MultimodalPrompt:
    """A prompt as text, with an `IMAGE_TAG` for each image, and the embeddings of the images.

    `embeddings` is a contiguous array of 32-bit floats: for each image `image_tokens` rows.
    `image_size` is the width and height that the encoder takes, in pixels. `tokens` is the
    number of tokens of the prompt, as far as it is known.
    """

    text: str
    embeddings: Any
    images: int
    image_tokens: int
    image_size: int
    marks: ImageMarks
    tokens: int
    enable_thinking: bool = False


RuntimeInput = UserTurn | MultimodalPrompt | list[int]


@dataclass(slots=True)
class Run:
    """The state of one run; written by the callback, read after `rkllm_run` has returned."""

    number: int
    on_piece: OnPiece
    # The most tokens to deliver; further tokens are only counted.
    limit: int
    # Copies hidden states or logits from a result, in a run that generates no text.
    copy_output: Callable[[Any], None] | None = None
    # Whether the library received the limit and ends the run there itself.
    limit_is_known: bool = False
    # The tokens that end the answer, which some versions of the library go on after
    # (rknn-llm#534).
    end_tokens: frozenset[int] = frozenset()
    # The ids of all tokens called back, also after an abort; `end_id` is the FINISH callback's.
    ids: list[int] = field(default_factory=list)
    end_id: int = -1
    tokens: int = 0
    padding: PaddingCounter = field(default_factory=PaddingCounter)
    # Whether the answer was ended because it was nothing but padding.
    is_padding: bool = False
    stopped: bool = False
    finished: bool = False
    failed: bool = False
    code: int = 0
    prefill_tokens: int = 0
    generate_tokens: int = 0
    prefill_ms: float = 0.0
    peak_mb: float = 0.0

    @property
    def reached_limit(self) -> bool:
        """Whether the library received the limit and reached it, so the answer is complete."""
        return self.limit_is_known and self.tokens >= self.limit

    def on_result(self, result: Any, state: int) -> bool:
        """Process a callback; return whether to abort the run."""
        if state == _NORMAL:
            output = result.contents
            if self.copy_output is not None:
                self.copy_output(output)
                return False
            piece, token_id = output.text or b"", output.token_id
            self.ids.append(token_id)
        elif state == _WAITING:
            # The bytes of this token come with a later one.
            piece, token_id = b"", -1
            self.ids.append(result.contents.token_id if result else -1)
        else:
            self.finish(result, finished=state == _FINISH)
            return False
        if token_id in self.end_tokens and not self.stopped:
            # Later tokens are only counted.
            self.limit = self.tokens
            return True
        tokens = self.tokens = self.tokens + 1
        if self.stopped:
            return False
        if tokens > self.limit:
            return True
        if self.padding.push(piece):
            self.is_padding = True
            return True
        should_stop = self.on_piece(piece, token_id, None)
        if tokens == self.limit:
            # A library that received the limit ends there and reports its counts; an abort would
            # suppress them.
            return not self.limit_is_known
        if should_stop:
            # As behind an end token.
            self.limit = tokens
        return should_stop

    def finish(self, result: Any, *, finished: bool) -> None:
        """Record the end of the run, and the runtime's statistics if it finished."""
        if not finished:
            self.failed = True
            return
        self.finished = True
        if result:
            self.end_id, perf = result.contents.token_id, result.contents.perf
            self.prefill_tokens, self.generate_tokens = perf.prefill_tokens, perf.generate_tokens
            self.prefill_ms, self.peak_mb = perf.prefill_time_ms, perf.memory_usage_mb


def ignore_token(piece: bytes, token_id: int, logprob: object) -> bool:
    """Ignore a token, in a run that generates no text."""
    return False


def build_input_struct(abi: Abi, prompt: RuntimeInput) -> tuple[Any, Any]:
    """Return a run's input, and the object to which it points and which must outlive the run."""
    struct = abi.input()
    struct.role = _USER
    if isinstance(prompt, UserTurn):
        text = prompt.text.encode("utf-8", "replace")
        struct.enable_thinking = prompt.enable_thinking
        struct.input_type = RKLLMInputType.RKLLM_INPUT_PROMPT
        struct.prompt_input = text
        return struct, text
    if isinstance(prompt, MultimodalPrompt):
        return _fill_multimodal(struct, prompt)
    ids = (ctypes.c_int32 * len(prompt))(*prompt)
    struct.input_type = RKLLMInputType.RKLLM_INPUT_TOKEN
    struct.token_input.input_ids = ctypes.cast(ids, ctypes.POINTER(ctypes.c_int32))
    struct.token_input.n_tokens = len(prompt)
    return struct, ids


def _fill_multimodal(struct: Any, prompt: MultimodalPrompt) -> tuple[Any, Any]:
    struct.enable_thinking = prompt.enable_thinking
    struct.input_type = RKLLMInputType.RKLLM_INPUT_MULTIMODAL
    content = struct.multimodal_input
    texts = [text.encode("utf-8", "replace") for text in (prompt.text, *prompt.marks)]
    content.prompt = texts[0]
    # 1.2 has the texts around an image in the parameters of init instead.
    image = content
    if hasattr(content, "image"):
        image = content.image
        image.image_start, image.image_end, image.image_content = texts[1:]
    image.image_embed = prompt.embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    image.n_image_tokens, image.n_image = prompt.image_tokens, prompt.images
    image.image_width = image.image_height = prompt.image_size
    return struct, (texts, prompt.embeddings)


def build_input_array(abi: Abi, prompts: Sequence[RuntimeInput], n_batch: int) -> tuple[Any, Any]:
    """Return a run's array of `n_batch` inputs, and the objects that must outlive the run.

    The library reads as many inputs as init set for `n_batch`. One more, of zeros, follows them: an
    input of an unknown version may be longer. Missing prompts are filled with the
    first token of the first prompt: it is in the vocabulary, and one token is the shortest prompt.
    """
    filler = prompts[0][:1] if isinstance(prompts[0], list) else prompts[0]
    filled = (*prompts, *[filler] * (n_batch - len(prompts)))
    pairs = [build_input_struct(abi, prompt) for prompt in filled]
    return (abi.input * (n_batch + 1))(*(struct for struct, _ in pairs)), pairs


def set_adapter(infer: Any, lora: str | None) -> Any:
    """Set a run's LoRA adapter; every run names its own, because NULL means the base model."""
    if lora is None:
        return None
    lora_param = RKLLMLoraParam(lora.encode())
    infer.lora_params = ctypes.pointer(lora_param)
    return lora_param


def fill_sampling(struct: Any, sampling: SamplingParams) -> None:
    """Set the sampling fields, which the structs of init and run have in common."""
    greedy = sampling.temperature == 0 or sampling.top_p == 0
    top_k = min(sampling.top_k, ALL_TOKENS) if sampling.top_k > 0 else ALL_TOKENS
    struct.top_k = 1 if greedy else top_k
    struct.top_p = 1.0 if greedy else sampling.top_p
    # A temperature of 0 would be a divisor; top_k = 1 has the same effect.
    struct.temperature = 1.0 if greedy else sampling.temperature
    struct.repeat_penalty = sampling.repetition_penalty
    struct.frequency_penalty = sampling.frequency_penalty
    struct.presence_penalty = sampling.presence_penalty
    # The documented defaults: mirostat is off.
    struct.mirostat, struct.mirostat_tau, struct.mirostat_eta = 0, 5.0, 0.1
