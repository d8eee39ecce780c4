"""Serve `/tokenize` and `/detokenize`, in the format of vLLM's server."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from common.value_description import describe_value
from emulator.http.request_body import read_json
from emulator.http.responses import JSON
from emulator.http.route_facts import ApiRoute, OperationName, openai_facts
from engine import Chat, Engine
from handler.apis.openai.body_keys import DETOKENIZE_KEYS, TOKENIZE_KEYS
from handler.apis.openai.dialect import OPENAI
from handler.apis.openai.models import read_model
from handler.errors import InvalidRequest
from handler.generation.offload import check_body
from handler.input.messages import read_messages
from handler.input.request import read_flag
from handler.input.sampling import check_token_count, read_token_ids
from handler.input.text import check_text
from handler.models.registry import ModelRegistry

logger = logging.getLogger(__name__)


class TokenizeRoutes:
    """Converts between text and token ids with a model's engine; has no state between requests."""

    def __init__(self, models: ModelRegistry, max_body_bytes: int) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes

    def routes(self) -> list[ApiRoute]:
        """Return the routes to mount."""
        return [
            ApiRoute(f"/{operation}", handler, methods=[method], facts=openai_facts(operation))
            for method, operation, handler in (
                ("POST", OperationName.TOKENIZE, self._tokenize),
                ("POST", OperationName.DETOKENIZE, self._detokenize),
                ("GET", OperationName.TOKENIZER_INFO, self._describe_tokenizer),
            )
        ]

    async def _describe_tokenizer(self, request: Request) -> Response:
        """Return the special tokens and the chat template, which evaluation harnesses read."""
        name = request.query_params.get("model")
        engine = self._find_engine({"model": name})
        info = await engine.describe_tokenizer()
        return JSON({"tokenizer_class": "RemoteTokenizer", "pad_token": None, **info})

    async def _tokenize(self, request: Request) -> Response:
        body = await read_json(request, self._max_body_bytes)
        engine = self._find_engine(body)
        prompt = await self._read_prompt(body)
        if isinstance(prompt, str) and not read_flag(body, "add_special_tokens", default=True):
            tokens = await engine.tokenize_text(prompt)
        else:
            tokens = await engine.tokenize(prompt)
        capabilities = await engine.ready()
        return _create_response(
            {
                "count": len(tokens),
                "max_model_len": capabilities.context_length,
                "tokens": tokens,
            },
            TOKENIZE_KEYS.warnings(body),
        )

    def _find_engine(self, body: dict[str, Any]) -> Engine:
        """Return the engine of the model that a body names. Raises ModelNotFound."""
        pipeline = self._models.find_for_body(body)
        read_model(body, pipeline.model_name, OPENAI, pipeline.adapters, pipeline.aliases)
        return pipeline.engine

    async def _read_prompt(self, body: dict[str, Any]) -> str | Chat:
        """Return the prompt, or the messages as a chat."""
        if body.get("messages") is not None:
            messages, _ = await check_body(body, partial(read_messages, body["messages"]))
            return Chat(messages)
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise InvalidRequest(f"prompt must be a string, got {describe_value(prompt)}", "prompt")
        check_text(prompt, "prompt")
        return prompt

    async def _detokenize(self, request: Request) -> Response:
        body = await read_json(request, self._max_body_bytes)
        check_token_count(body.get("tokens"), "tokens")
        tokens = await check_body(body, partial(read_token_ids, body.get("tokens")))
        if tokens is None:
            raise InvalidRequest(
                f"tokens must be an array of token ids, got {describe_value(body.get('tokens'))}",
                "tokens",
            )
        engine = self._find_engine(body)
        prompt = await engine.detokenize([*tokens])
        return _create_response({"prompt": prompt}, DETOKENIZE_KEYS.warnings(body))


def _create_response(body: dict[str, Any], warnings: tuple[str, ...]) -> Response:
    for warning in warnings:
        logger.warning("%s", warning)
    return JSON({**body, "warnings": list(warnings)} if warnings else body)
