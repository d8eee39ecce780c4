"""What the runtime can honour, by its ABI and by what is beside the model."""

from __future__ import annotations

from collections.abc import Sequence

from engine.backends.rkllm.abi import Abi
from engine.capabilities import Capabilities
from engine.chat_template import KNOWN_MARKERS
from engine.request import SamplingParams

_MAX_LOGPROBS = 20
# Sampling that is fixed at the load (R49's defaults, so that plain jobs get what they ask for).
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
    reloads: bool,
    tokenizes: bool,
    renders: bool,
    template_markers: Sequence[str] | None = None,
    opens_thoughts: bool = False,
    adapters: Sequence[str] = (),
    logits: bool = False,
    reuses: bool = False,
    prompt_caches: bool = False,
    slots: int = 1,
) -> Capabilities:
    """Return what can be asked of it.

    `template_markers` are those of the template beside the model; None without a template that
    renders a single user turn. `reloads` says whether the model is loaded again for other sampling,
    `tokenizes` that there is a tokenizer beside it and `renders` that this one has a chat template,
    which begins with the model's thoughts if it `opens_thoughts`; `adapters` are the LoRAs by name,
    `logits` that tokens are chosen here, `reuses` that the key-value cache is kept from run to run,
    `prompt_caches` that there is a folder for them and `slots` how many requests share a run.
    """
    per_run = abi.sampling_per_run or reloads or logits
    # Logits and batches are of tokens alone: there the runtime's own template is out of reach.
    runtime_renders = not (renders or logits or slots > 1)
    if runtime_renders:
        template_markers = KNOWN_MARKERS
    return Capabilities(
        backend="rkllm",
        model=model,
        context_length=context_length,
        slots=slots,
        fixed_sampling={}
        if per_run
        else {name: getattr(DEFAULT_SAMPLING, name) for name in SAMPLING_PARAMETERS},
        min_p=logits,
        seed=logits,
        ignore_eos=logits or (abi.sampling_per_run and reloads),
        max_logprobs=_MAX_LOGPROBS if logits else 0,
        logit_bias=logits,
        grammar=logits,
        json_schema=logits,
        token_prompts=True,
        chat_template=renders or runtime_renders,
        own_template=template_markers is not None,
        template_markers=template_markers or (),
        turns=renders,
        opens_thoughts=opens_thoughts,
        plain_prompts=tokenizes,
        tokenize=tokenizes,
        # Without a tokenizer the runtime would put texts into its template.
        embeddings=tokenizes,
        adapters=tuple(adapters),
        # Between two runs, of which a long prompt takes several.
        abort_in_prefill=logits,
        prefix_reuse=reuses and tokenizes and not logits,
        # With a history, which logits need, they save nothing.
        prompt_caches=prompt_caches and not logits,
        runtime=runtime,
    )
