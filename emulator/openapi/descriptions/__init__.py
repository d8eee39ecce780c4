"""The descriptions of the APIs in /openapi.json: a module for each, and the list of them."""

from __future__ import annotations

from emulator.openapi.api_description import ApiDescription
from emulator.openapi.descriptions import (
    aliases,
    batches,
    console,
    jobs,
    messages,
    ollama,
    openai,
    responses,
    server,
    workers,
)

# In the order in which a reader meets their tags.
DESCRIPTIONS: tuple[ApiDescription, ...] = (
    jobs.DESCRIPTION,
    openai.DESCRIPTION,
    responses.DESCRIPTION,
    messages.DESCRIPTION,
    ollama.DESCRIPTION,
    batches.DESCRIPTION,
    server.DESCRIPTION,
    aliases.DESCRIPTION,
    console.DESCRIPTION,
    workers.DESCRIPTION,
)
