"""Known clients: each reads a correct answer, and broken streams with `worker-rkllm torture`.

With CLIENTS_TABLE=write, the reports of the broken streams become docs/clients.md.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from tests.acceptance.client_program import run_program
from tests.clients.torture.catalogue import KNOWN_CLIENTS, KnownClient, read_version
from tests.integration.emulator.processes import ROOT, EmulatorProcess, run_emulator
from tests.long.clients_page import ClientRow, TortureReport, write_page

PAGE = ROOT / "docs" / "clients.md"
MODEL = "tiny"
TORTURE_LIMIT_S, PROGRAM_LIMIT_S = 1500, 120
pytestmark = pytest.mark.timeout(TORTURE_LIMIT_S + 60)

TEXT = "one zwölf\nthree\n"
ARGUMENTS = {"city": "Zürich", "n": 3}
SCRIPT = {
    "slots": 4,
    "answers": [
        # The name of the tool that the programs send.
        {
            "when": "report",
            "pieces": [
                '<tool_call>\n{"name": "report", "arguments": ',
                json.dumps(ARGUMENTS, ensure_ascii=False),
                "}\n</tool_call>",
            ],
        },
        {"pieces": ["one ", "zwölf", "\n", "three", "\n"]},
    ],
}

each_client = pytest.mark.parametrize("client", KNOWN_CLIENTS, ids=lambda client: client.label)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmulatorProcess]:
    path = tmp_path_factory.mktemp("clients") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    settings = {"ENGINE": "scripted", "MODEL_PATH": str(path), "MODEL_NAME": MODEL}
    async with run_emulator(settings, "--port", "0") as running:
        await running.wait_until_listening()
        yield running


def program_variables(port: int) -> dict[str, str]:
    """Return the variables that `worker-rkllm torture` sets for a client."""
    url = f"http://127.0.0.1:{port}"
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "any",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "any",
        "OLLAMA_HOST": url,
        "RUNPOD_ENDPOINT_BASE_URL": f"{url}/v2",
        "RUNPOD_API_KEY": "any",
        "RUNPOD_ENDPOINT_ID": "default",
        "TORTURE_MODEL": MODEL,
        "PYTHONUTF8": "1",
    }


@pytest.mark.asyncio(loop_scope="module")
@each_client
async def test_program_prints_exactly_the_answer(
    server: EmulatorProcess, tmp_path: Path, client: KnownClient
) -> None:
    variables = program_variables(server.port) | {"HOME": str(tmp_path)}
    output = await run_program(client.command, tmp_path, variables, PROGRAM_LIMIT_S)
    if client.has_tools:
        assert json.loads(output) == ARGUMENTS
    else:
        assert output == TEXT


def write_reports(reports: Mapping[KnownClient, TortureReport]) -> None:
    """Write the page.

    Raises:
        AssertionError: a client has no report, because its test failed or was not selected.
    """
    missing = [client.label for client in KNOWN_CLIENTS if client not in reports]
    assert not missing, f"{PAGE} is not written: these clients have no report: {missing}"
    rows = (
        ClientRow(client.name, read_version(client), client.api, reports[client])
        for client in KNOWN_CLIENTS
    )
    PAGE.write_text(write_page(rows))


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[KnownClient, TortureReport]]:
    """Collect the reports of the tests; write the page after the last one."""
    collected: dict[KnownClient, TortureReport] = {}
    yield collected
    if os.environ.get("CLIENTS_TABLE") == "write":
        write_reports(collected)


@each_client
def test_client_gets_a_verdict_for_every_shape(
    reports: dict[KnownClient, TortureReport], tmp_path: Path, client: KnownClient
) -> None:
    path = tmp_path / "report.json"
    command = ["torture", "--client", shlex.join(client.command), "--json", str(path)]
    ended = subprocess.run(
        [sys.executable, "-m", "worker_rkllm", *command],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=TORTURE_LIMIT_S,
    )
    assert ended.returncode in {0, 1}, ended.stdout + ended.stderr
    report = TortureReport.model_validate_json(path.read_text())
    assert report.results
    assert (report.wrong > 0) == (ended.returncode == 1)
    reports[client] = report
