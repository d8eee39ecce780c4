"""What the runtime can honour, by its ABI and by what is beside the model."""

from __future__ import annotations

from engine.backends.rkllm.abi import Abi
from engine.capabilities import Capabilities
from engine.request import SamplingParams

# Sampling that is fixed at the load (R49's defaults, so that plain jobs get what they ask for).
FIXED = SamplingParams(temperature=0.7, top_p=0.9, top_k=50)
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)


def claims(
    model: str,
    context_length: int,
    abi: Abi,
    runtime: str = "",
    *,
    reloads: bool,
    tokenizes: bool,
    renders: bool,
    prompt_caches: bool = False,
) -> Capabilities:
    """Return what can be asked of it.

    `reloads` says whether the model is loaded again for other sampling, `tokenizes` that there is a
    tokenizer beside it, `renders` that this one has a chat template and `prompt_caches` that there
    is a folder for them.
    """
    per_run = abi.sampling_per_run or reloads
    return Capabilities(
        backend="rkllm",
        model=model,
        context_length=context_length,
        fixed_sampling={} if per_run else {name: getattr(FIXED, name) for name in SAMPLING},
        min_p=False,
        seed=False,
        ignore_eos=abi.sampling_per_run and reloads,
        token_prompts=True,
        chat_template=True,
        turns=renders,
        plain_prompts=tokenizes,
        tokenize=tokenizes,
        prompt_caches=prompt_caches,
        runtime=runtime,
    )
