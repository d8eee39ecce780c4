"""Name the client's fields in errors about the chat that was made of its body."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.errors import RequestRejected
from handler.errors import InvalidRequest

# An error's message begins with the path of its field.
_FIRST_PATH = re.compile(r"[\w.\[\]]+")
_ITEM = re.compile(r"(messages|tools)\[(\d+)\](.*)")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The client's fields from which a chat, or another body of OpenAI's API, was made.

    `names` has the client's name for each field that is named otherwise in the chat; what is inside
    such a field is renamed with it. `messages` has the client's path for each message of the chat,
    and `tools` for each of its tools; without them these fields have the same paths. `schema` is
    the client's name for the parameters of a tool.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[str] = ()
    tools: Sequence[str] = ()
    schema: str = "parameters"

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Name the client's fields in the errors of a block, those of the engine included."""
        try:
            yield
        except InvalidRequest as error:
            message = _FIRST_PATH.sub(lambda path: self.rename(path[0]), error.message, count=1)
            param = None if error.param is None else self.rename(error.param)
            raise InvalidRequest(message, param, error.details) from error
        except RequestRejected as error:
            named = error.details.get("param")
            if not isinstance(named, str) or (renamed := self.rename(named)) == named:
                raise
            raise error.rename_param(named, renamed) from error

    def rename(self, path: str) -> str:
        """Return the client's path for one of the chat."""
        if (item := _ITEM.fullmatch(path)) is not None:
            return self._rename_item(path, item[1], int(item[2]), item[3])
        prefix = path
        while prefix not in self.names:
            if (end := max(prefix.rfind("."), prefix.rfind("["))) < 0:
                return path
            prefix = prefix[:end]
        return self.names[prefix] + path[len(prefix) :]

    def _rename_item(self, path: str, kind: str, index: int, rest: str) -> str:
        paths = self.messages if kind == "messages" else self.tools
        if index >= len(paths):
            return path
        if kind == "messages":
            # The text of a message may come from several blocks.
            return paths[index]
        rest = rest.removeprefix(".function")
        return paths[index] + rest.replace(".parameters", f".{self.schema}", 1)
