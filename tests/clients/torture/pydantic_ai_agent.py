"""Pydantic AI: `pydantic_ai_agent.py chat|responses`."""

from __future__ import annotations

import asyncio
import os
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


async def main() -> None:
    provider = OpenAIProvider(openai_client=AsyncOpenAI(max_retries=0))
    model_class = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[sys.argv[1]]
    agent = Agent(model_class(os.environ["TORTURE_MODEL"], provider=provider), retries=0)
    async with agent.run_stream("hi") as result:
        async for text in result.stream_text(delta=True):
            print(text, end="", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
