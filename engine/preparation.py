"""The preparation of a request for the host: its prompt, its sampling, warnings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from engine.capabilities import Capabilities, thinks_before_grammar
from engine.errors import UnsupportedParameter
from engine.prompts.chat_template import apply_chat_template, merge_system_messages
from engine.prompts.control_marks import break_control_marks
from engine.prompts.image_prompt import leave_out_images
from engine.prompts.prompt_size import check_size
from engine.prompts.reasoning import leaves_reasoning_open, starts_in_reasoning
from engine.request import Chat, GenerationRequest, Prompt, SamplingParams

# The changes of a prompt, each with its warnings, in their order.
_CHANGES = (apply_chat_template, merge_system_messages, leave_out_images, break_control_marks)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request as the backend gets it, and warnings on what it has no part of.

    `starts_in_reasoning` means that the prompt ends with an open reasoning mark.
    """

    request: GenerationRequest
    warnings: tuple[str, ...]
    starts_in_reasoning: bool


async def prepare(
    request: GenerationRequest,
    capabilities: Capabilities,
    render: Callable[[Chat], Awaitable[str]],
) -> PreparedRequest:
    """Fit a request to the loaded model, whose template `render` applies. Raises EngineError."""
    if not capabilities.truncates(request.sampling):
        check_size(request.prompt, capabilities.context_length)
    warnings: list[str] = []
    for change in _CHANGES:
        request, new_warnings = change(request, capabilities)
        warnings += new_warnings
    warnings += capabilities.check(request.prompt, request.sampling)
    opens_reasoning = await _starts_in_reasoning(request.prompt, capabilities, render)
    sampling = _prepare_sampling(request, capabilities, opens_reasoning=opens_reasoning)
    if sampling is not request.sampling:
        request = replace(request, sampling=sampling)
    return PreparedRequest(request, tuple(warnings), opens_reasoning)


def _prepare_sampling(
    request: GenerationRequest, capabilities: Capabilities, *, opens_reasoning: bool
) -> SamplingParams:
    sampling = capabilities.leave_out_ignored(request.sampling)
    if thinks_before_grammar(request.prompt, sampling, capabilities):
        sampling = replace(sampling, may_think=True)
    if opens_reasoning and sampling.stop_scope is not None:
        scope = replace(sampling.stop_scope, starts_in_reasoning=True)
        sampling = replace(sampling, stop_scope=scope)
    return sampling


async def _starts_in_reasoning(
    prompt: Prompt, capabilities: Capabilities, render: Callable[[Chat], Awaitable[str]]
) -> bool:
    """Return whether the answer to a prompt begins inside the model's reasoning.

    Only a template with variables of the request's own has to be rendered for this.
    """
    if isinstance(prompt, str):
        return starts_in_reasoning(prompt)
    if not isinstance(prompt, Chat):
        return False
    if prompt.continues_last:
        return leaves_reasoning_open(prompt.messages[-1].content)
    if prompt.template_kwargs:
        with suppress(UnsupportedParameter):
            return starts_in_reasoning(await render(prompt))
    return capabilities.starts_in_reasoning
