"""The capabilities of the runtime with a model, by ABI, settings and tokenizer files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.backends.rkllm.abi.abi import Abi
from engine.capabilities import Capabilities
from engine.prompts.chat_template import KNOWN_MARKERS
from engine.reply.reply_format import ToolForm
from engine.request import SamplingParams

_MAX_LOGPROBS = 20
# The sampling of the first load: the defaults of jobs, so a job without parameters needs no reload.
DEFAULT_SAMPLING = SamplingParams(temperature=0.7, top_p=0.9, top_k=50)
SAMPLING_PARAMETERS = (
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)


def build_capabilities(
    model: str,
    context_length: int,
    abi: Abi,
    runtime: str = "",
    *,
    can_reload: bool,
    has_tokenizer: bool,
    has_template: bool,
    template_markers: Sequence[str] | None = None,
    late_system: bool = True,
    starts_in_reasoning: bool = False,
    adapters: Sequence[str] = (),
    logits: bool = False,
    rerank: bool = False,
    rerank_gap: str = "",
    kv_reuse: bool = False,
    slots: int = 1,
    images: bool = False,
    control_tokens: Sequence[str] = (),
    answer_marks: Sequence[str] = (),
    call_form: ToolForm | None = None,
    library_facts: Mapping[str, Any] | None = None,
) -> Capabilities:
    """Return the capabilities of the rkllm backend with a loaded model and its settings.

    Args:
        can_reload: a request with other sampling parameters may reload the model.
        has_tokenizer: there are tokenizer files.
        has_template: the tokenizer files contain a chat template.
        template_markers: the markers of that template; None if it cannot render one user turn.
        late_system: that template takes system messages after the first message.
        starts_in_reasoning: that template starts every answer in the model's reasoning.
        adapters: the names of the LoRA adapters.
        logits: tokens are sampled here, from the runtime's logits.
        rerank: the model is a reranking model.
        rerank_gap: why a reranking model scores no texts.
        kv_reuse: the key-value cache is kept between runs.
        slots: the number of requests that share a run.
        images: there is a vision encoder.
        control_tokens: the special tokens that a message must not contain as such.
        answer_marks: those of them that mark the reasoning and the calls of an answer.
        call_form: the form of calls that the chat template asks for.
        library_facts: what the library printed about itself and the model at the load.
    """
    per_run = abi.sampling_per_run or can_reload or logits
    # The runtime applies its own template only to text; logits and batches use tokens.
    runtime_renders = not (has_template or logits or slots > 1)
    if runtime_renders:
        template_markers = KNOWN_MARKERS
    return Capabilities(
        backend="rkllm",
        model=model,
        context_length=context_length,
        slots=slots,
        fixed_sampling=(
            {}
            if per_run
            else {name: getattr(DEFAULT_SAMPLING, name) for name in SAMPLING_PARAMETERS}
        ),
        min_p=logits,
        seed=logits,
        ignore_eos=logits or (abi.sampling_per_run and can_reload),
        max_logprobs=_MAX_LOGPROBS if logits else 0,
        logit_bias=logits,
        min_tokens=logits,
        grammar=logits,
        json_schema=logits,
        token_prompts=True,
        chat_template=has_template or runtime_renders,
        own_template=template_markers is not None,
        template_markers=template_markers or (),
        turns=has_template,
        late_system=late_system,
        starts_in_reasoning=starts_in_reasoning,
        plain_prompts=has_tokenizer,
        tokenize=has_tokenizer,
        # Without a tokenizer the runtime would apply its template to texts. A reranking model is
        # not trained for embeddings.
        embeddings=has_tokenizer and not rerank and not rerank_gap,
        rerank=rerank,
        rerank_gap=rerank_gap,
        adapters=tuple(adapters),
        # In logits mode a long prompt takes several runs, and an abort takes effect between two.
        abort_in_prefill=logits,
        prefix_reuse=kv_reuse and has_tokenizer and not logits,
        runtime=runtime,
        images=images,
        # With two, models mix them before 1.3.0 (rknn-llm#468: one is supported).
        max_images=None if abi.sampling_per_run else 1,
        control_tokens=control_tokens,
        answer_marks=answer_marks,
        call_form=call_form,
        plain_marks=has_template,
        library_facts=library_facts or {},
    )
