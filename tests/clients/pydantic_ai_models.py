"""Pydantic AI with a tool for the output, and OpenAI's chats or responses."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.clients.structured_output import (
    read_arguments,
    report,
    report_stream,
    uses_responses,
    write_prompt,
)


async def main() -> None:
    arguments = read_arguments()
    client = AsyncOpenAI(base_url=arguments.base_url, api_key=arguments.api_key, max_retries=0)
    model_class = OpenAIResponsesModel if uses_responses() else OpenAIChatModel
    chat_model = model_class(arguments.model_name, provider=OpenAIProvider(openai_client=client))
    for model in arguments.models:
        agent: Agent[None, Any] = Agent(
            chat_model,
            output_type=ToolOutput(model, name=model.__name__),
            model_settings=ModelSettings(temperature=0),
            retries=0,
        )
        prompt = write_prompt(model, "call")
        report("call", (await agent.run(prompt)).output, model)
        async with agent.run_stream(prompt) as stream:
            partials = [partial async for partial in stream.stream_output(debounce_by=None)]
        report_stream("call", partials, model)


if __name__ == "__main__":
    asyncio.run(main())
