"""Prepare a call for the engine of its model: its requests, without what the engine cannot do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine import Capabilities, Chat, Engine
from engine.request import Prompt
from handler.apis.core.best_of import build_requests
from handler.apis.core.parsed_call import ParsedCall
from handler.errors import InvalidRequest
from handler.input.request import TextRequest


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call as its engine can run it, with a request for each candidate of each prompt."""

    call: ParsedCall
    requests: tuple[TextRequest, ...]

    def with_warning(self, warning: str) -> PreparedCall:
        """Return the call with one more warning in its answers."""
        call = _warn(self.call, warning)
        return PreparedCall(call, build_requests(call))


async def prepare_call(call: ParsedCall, engine: Engine) -> PreparedCall:
    """Complete a call with what depends on the engine.

    Raises:
        InvalidRequest: the call needs something that the engine does not have.
        EngineError: the engine failed or is not available.
    """
    parameters = call.parameters
    is_ranked = parameters.candidates > parameters.n
    asks_prompt_logprobs = parameters.prompt_logprobs is not None
    if is_ranked or parameters.suffix or parameters.draft_param or asks_prompt_logprobs:
        capabilities = await engine.ready()
        call = adapt_call(call, capabilities)
        if capabilities.infill and parameters.suffix:
            texts = [await prompt_text(prompt, engine) for prompt in call.prompts]
            prompts = [await engine.infill(text, parameters.suffix) for text in texts]
            call = replace(call, prompts=tuple(prompts))
    return PreparedCall(call, build_requests(call))


def adapt_call(call: ParsedCall, capabilities: Capabilities) -> ParsedCall:
    """Return the call without what the engine does not support, with warnings about it.

    Raises:
        InvalidRequest: the call needs a draft model, and none is loaded.
    """
    parameters = call.parameters
    if (name := parameters.draft_param) is not None and not capabilities.draft:
        raise InvalidRequest(f"{name} needs a draft model, and none is loaded", name)
    if parameters.suffix and not capabilities.infill:
        call = _warn(call, f"suffix is not supported by {capabilities.model} and was ignored")
    if parameters.candidates > parameters.n and not capabilities.max_logprobs:
        # Without log-probabilities `select_best` keeps the first candidates.
        call = _warn(call, "best_of was not ranked, because the engine returns no logprobs")
        if parameters.logprobs is None:
            sampling = replace(parameters.sampling, logprobs=None)
            call = replace(call, parameters=replace(parameters, sampling=sampling))
    if parameters.prompt_logprobs is not None:
        reason = _find_obstacle_to_prompt_logprobs(call, capabilities)
        if reason is not None:
            call = _warn(call, f"prompt_logprobs was ignored, {reason}")
            call = replace(call, parameters=replace(call.parameters, prompt_logprobs=None))
    return call


def _find_obstacle_to_prompt_logprobs(call: ParsedCall, capabilities: Capabilities) -> str | None:
    if call.streaming:
        return "because the answer is streamed"
    if not (capabilities.prompt_logprobs and capabilities.tokenize and capabilities.token_prompts):
        return f"because the {capabilities.backend} engine returns none"
    if call.parameters.sampling.lora is not None:
        return "because they are computed without adapters"
    if any(isinstance(prompt, Chat) and prompt.images for prompt in call.prompts):
        return "because there are images"
    return None


async def prompt_text(prompt: Prompt, engine: Engine) -> str:
    """Return a prompt as text. Raises EngineError if token ids cannot be converted."""
    if isinstance(prompt, Chat):
        return await engine.render(prompt)
    return prompt if isinstance(prompt, str) else await engine.detokenize(prompt)


def _warn(call: ParsedCall, *warnings: str) -> ParsedCall:
    return replace(call, warnings=tuple(dict.fromkeys((*call.warnings, *warnings))))
