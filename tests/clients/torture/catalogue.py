"""The programs of this folder: which client each one uses, and how to start it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).resolve().parent
CLIENTS = FOLDER.parent
NODE_MODULES = CLIENTS / "node_modules"
# Some clients need other package versions than the tests have (requirements/clients.in).
PYTHON = sys.executable
CLIENTS_PYTHON = str(CLIENTS / ".venv" / "bin" / "python")
_VERSION_LIMIT_S = 60
_PRINT_VERSION = (
    "import sys; from importlib.metadata import version; sys.stdout.write(version(sys.argv[1]))"
)


@dataclass(frozen=True, slots=True)
class KnownClient:
    """A client library, the API that its program uses, and the command of the program."""

    name: str
    # The packages that read the stream; none if the program uses only Node.js.
    distributions: tuple[str, ...]
    ecosystem: Literal["pypi", "npm"]
    command: tuple[str, ...]
    api: str
    has_tools: bool = False

    @property
    def label(self) -> str:
        """Return the name and the API, which no two clients share."""
        return f"{self.name}, {self.api}"


def read_version(client: KnownClient) -> str:
    """Return the installed versions of a client's packages, or of Node.js if it uses none.

    For example "ai 6.0.1, @ai-sdk/openai 3.0.2".

    Raises:
        FileNotFoundError: a package of npm is not installed.
        subprocess.CalledProcessError: a package of PyPI is not installed.
    """
    if not client.distributions:
        return f"Node.js {_run_program('node', '--version').strip()}"
    return ", ".join(f"{name} {_read_version(client, name)}" for name in client.distributions)


def _read_version(client: KnownClient, distribution: str) -> str:
    if client.ecosystem == "npm":
        package = json.loads((NODE_MODULES / distribution / "package.json").read_text())
        return str(package["version"])
    return _run_program(client.command[0], "-c", _PRINT_VERSION, distribution)


def _run_program(*command: str) -> str:
    """Return what a program prints."""
    return subprocess.run(
        command, capture_output=True, check=True, text=True, timeout=_VERSION_LIMIT_S
    ).stdout


def _python(program: str, *arguments: str, python: str = PYTHON) -> tuple[str, ...]:
    return (python, str(FOLDER / program), *arguments)


def _node(program: str, *arguments: str) -> tuple[str, ...]:
    return ("node", str(FOLDER / program), *arguments)


def _openai_clients() -> tuple[KnownClient, ...]:
    calls = {
        "chat": "chat",
        "tools": "chat with tools",
        "completions": "completions",
        "responses": "responses",
        "final-response": "responses, `responses.stream()`",
    }
    python = [
        KnownClient(
            "openai-python",
            ("openai",),
            "pypi",
            _python("openai_python.py", call),
            api,
            has_tools=call == "tools",
        )
        for call, api in calls.items()
    ]
    node = [
        KnownClient(
            "openai-node",
            ("openai",),
            "npm",
            _node("openai_node.mjs", call),
            calls[call],
            has_tools=call == "tools",
        )
        for call in ("chat", "tools", "responses")
    ]
    return (*python, *node)


def _anthropic_clients() -> tuple[KnownClient, ...]:
    packages = ("anthropic",)
    return (
        KnownClient(
            "anthropic-python",
            packages,
            "pypi",
            _python("anthropic_python.py", "messages", python=CLIENTS_PYTHON),
            "messages",
        ),
        KnownClient(
            "anthropic-python",
            packages,
            "pypi",
            _python("anthropic_python.py", "tools", python=CLIENTS_PYTHON),
            "messages with tools",
            has_tools=True,
        ),
        KnownClient(
            "anthropic-typescript",
            ("@anthropic-ai/sdk",),
            "npm",
            _node("anthropic_node.mjs"),
            "messages",
        ),
    )


def _ai_sdk_clients() -> tuple[KnownClient, ...]:
    providers = {"chat": "openai", "responses": "openai", "messages": "anthropic"}
    return tuple(
        KnownClient("AI SDK", ("ai", f"@ai-sdk/{name}"), "npm", _node("ai_sdk.mjs", api), api)
        for api, name in providers.items()
    )


def _sse_clients() -> tuple[KnownClient, ...]:
    python = [
        KnownClient(
            name,
            (name,),
            "pypi",
            _python("sse_python.py", name, python=CLIENTS_PYTHON),
            "chat",
        )
        for name in ("httpx-sse", "sseclient-py")
    ]
    node = KnownClient(
        "eventsource-parser",
        ("eventsource-parser",),
        "npm",
        _node("eventsource_parser.mjs"),
        "chat",
    )
    return (*python, node)


def _example_programs() -> tuple[KnownClient, ...]:
    """Return the programs of API documents that read the stream without a client library."""
    python = [
        KnownClient(
            f"`{program}`", ("requests",), "pypi", _python("example.py", program), "chat by hand"
        )
        for program in ("chat_requests.py", "chat_requests_errors.py")
    ]
    node = KnownClient("`chat_fetch.mjs`", (), "npm", _node("example.mjs"), "chat by hand")
    return (*python, node)


KNOWN_CLIENTS: tuple[KnownClient, ...] = (
    *_openai_clients(),
    *_anthropic_clients(),
    KnownClient(
        "ollama-python",
        ("ollama",),
        "pypi",
        _python("ollama_python.py", python=CLIENTS_PYTHON),
        "Ollama's chat",
    ),
    KnownClient("ollama-js", ("ollama",), "npm", _node("ollama_node.mjs"), "Ollama's chat"),
    KnownClient("runpod-python", ("runpod",), "pypi", _python("runpod_python.py"), "job's stream"),
    KnownClient("runpod-sdk", ("runpod-sdk",), "npm", _node("runpod_node.mjs"), "job's stream"),
    KnownClient("LiteLLM", ("litellm",), "pypi", _python("litellm_chat.py"), "chat"),
    KnownClient(
        "LangChain", ("langchain-openai", "openai"), "pypi", _python("langchain_chat.py"), "chat"
    ),
    *(
        KnownClient(
            "Pydantic AI",
            ("pydantic-ai-slim", "openai"),
            "pypi",
            _python("pydantic_ai_agent.py", api),
            api,
        )
        for api in ("chat", "responses")
    ),
    *_ai_sdk_clients(),
    *_sse_clients(),
    *_example_programs(),
)
