"""What /openapi.json says about one API, in one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from emulator.http.error_format import ErrorFormat
from emulator.openapi.operation import Operation
from emulator.openapi.schemas import Schema
from emulator.settings.emulator_settings import EmulatorSettings


@dataclass(frozen=True, slots=True)
class Example:
    """An example of a body, which can be sent as it is.

    With `names_model` it names the served model as well. `can_stream` means that the answer can be
    streamed, so that there is an example of that too.
    """

    body: Mapping[str, Any]
    names_model: bool = False
    can_stream: bool = False

    def describe(self, model: str) -> dict[str, Any]:
        """Return OpenAPI's `example` or `examples` of the body, for a server of that model."""
        body = {**({"model": model} if self.names_model else {}), **self.body}
        if self.can_stream:
            return {
                "examples": {
                    "whole": {"summary": "The whole answer", "value": body},
                    "streamed": {"summary": "Streamed", "value": {**body, "stream": True}},
                }
            }
        return {"example": body}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDescription:
    """What /openapi.json says about one API.

    - `tags`: a sentence by the name of each tag, in the order in which a reader meets them.
    - `operations`: by path, preceded by the method if a path has several. An operation that exists
      with and without `/v2/{endpoint}` is listed without it.
    - `build_schemas`: returns the schemas of its bodies by their names.
    - `examples`: by the name of the body's schema.
    - `path_parameters`: a sentence by the name of each parameter that no other API describes.
    - `error_schemas`: the names of the schemas of its errors, if no other API has this form.
    """

    tags: Mapping[str, str]
    operations: Mapping[str, Operation]
    build_schemas: Callable[[EmulatorSettings], dict[str, Schema]]
    examples: Mapping[str, Example] = field(default_factory=dict)
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    error_schemas: Mapping[ErrorFormat, str] = field(default_factory=dict)
