"""The OpenAI Agents SDK: a model as the output of an agent, and as the argument of its tool."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    RunResultStreaming,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.clients.structured_output import (
    read_arguments,
    report,
    report_parts,
    uses_responses,
    write_prompt,
)

TEXT_EVENTS = {"response.output_text.delta", "response.function_call_arguments.delta"}


def build_writer(chat_model: Any, model: type[BaseModel]) -> Agent[Any]:
    return Agent(
        "writer", model=chat_model, output_type=model, model_settings=ModelSettings(temperature=0)
    )


def build_saver(chat_model: Any, model: type[BaseModel], saved: list[Any]) -> Agent[Any]:
    def save(value: Any) -> str:
        """Save the object."""
        saved.append(value)
        return "saved"

    # The SDK derives the schema of the arguments from the annotation.
    save.__annotations__["value"] = model
    return Agent(
        "saver",
        model=chat_model,
        tools=[function_tool(save)],
        tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(tool_choice="required", temperature=0),
    )


async def count_parts(run: RunResultStreaming) -> int:
    """Consume a streamed run and return the number of its pieces of text."""
    return sum(
        [
            event.type == "raw_response_event" and event.data.type in TEXT_EVENTS
            async for event in run.stream_events()
        ]
    )


async def main() -> None:
    set_tracing_disabled(True)
    arguments = read_arguments()
    client = AsyncOpenAI(base_url=arguments.base_url, api_key=arguments.api_key, max_retries=0)
    model_class = OpenAIResponsesModel if uses_responses() else OpenAIChatCompletionsModel
    chat_model = model_class(arguments.model_name, client)
    for model in arguments.models:
        writer = build_writer(chat_model, model)
        prompt = write_prompt(model, "json")
        report("json", (await Runner.run(writer, prompt)).final_output, model)
        run = Runner.run_streamed(writer, prompt)
        parts = await count_parts(run)
        report_parts("json", run.final_output, model, parts)

        saved: list[Any] = []
        saver = build_saver(chat_model, model, saved)
        prompt = write_prompt(model, "argument")
        await Runner.run(saver, prompt)
        parts = await count_parts(Runner.run_streamed(saver, prompt))
        report("argument", saved[0], model)
        report_parts("argument", saved[1], model, parts)


if __name__ == "__main__":
    asyncio.run(main())
