"""The log-probabilities of a prompt's tokens in vLLM's form, for `prompt_logprobs`."""

from __future__ import annotations

from typing import Any

from common.json_object import JsonObject
from engine import SCORE, Chat, Engine, PromptToken
from engine.request import FIT_CONTEXT, Prompt
from handler.apis.core.parsed_call import ParsedCall

# vLLM's number in place of minus infinity, which JSON has not.
_MIN_LOGPROB = -9999.0
# For each token its log-probability and that of the likeliest ones, by id; None for the first.
PromptLogprobs = list[JsonObject | None]


async def score_prompts(call: ParsedCall, engine: Engine) -> list[PromptLogprobs]:
    """Return the log-probabilities of the tokens of each prompt, with those put before a text.

    Raises:
        EngineError: a prompt is too long, or the engine could not compute them.
    """
    return [await _score_prompt(prompt, call, engine) for prompt in call.prompts]


async def _score_prompt(prompt: Prompt, call: ParsedCall, engine: Engine) -> PromptLogprobs:
    if isinstance(prompt, Chat):
        prompt = await engine.render(prompt)
    tokens = await engine.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
    count = call.parameters.sampling.truncate_prompt_tokens
    if count is not None and count != FIT_CONTEXT:
        tokens = tokens[-count:]
    alternatives = call.parameters.prompt_logprobs or 0
    [scored] = await engine.compute(SCORE, [(tuple(tokens), alternatives)], call.priority)
    return [_encode_token(each) for each in scored]


def _encode_token(token: PromptToken) -> JsonObject | None:
    if token.logprob is None:
        return None
    entries: dict[str, Any] = {
        str(token.token_id): _encode_entry(token.text, token.logprob, token.rank)
    }
    for index, (text, logprob) in enumerate(token.top):
        entry = _encode_entry(text, logprob, index + 1)
        entries.setdefault(str(token.top_ids[index]), entry)
    return entries


def _encode_entry(text: str, logprob: float, rank: int) -> JsonObject:
    return {"logprob": max(logprob, _MIN_LOGPROB), "rank": rank, "decoded_token": text}
