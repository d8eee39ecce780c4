"""The command `worker-rkllm`: which part it runs, with what arguments, and what it prints."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from worker_rkllm import cli

HEAVY = ("starlette", "runpod", "pydantic", "emulator", "handler", "batch", "engine")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], str]]:
    """Replace every command's module by one that records its call and returns 3."""
    made: list[tuple[str, list[str], str]] = []

    def load(module: str) -> SimpleNamespace:
        def run(argv: Sequence[str], *, prog: str) -> int:
            made.append((module, list(argv), prog))
            return 3

        return SimpleNamespace(main=run)

    monkeypatch.setattr(cli, "import_module", load)
    monkeypatch.setattr(sys, "argv", ["worker-rkllm"])
    return made


@pytest.mark.parametrize(
    ("arguments", "module", "passed_on"),
    [
        (["run", "--test_input", "{}"], "handler.__main__", ["--test_input", "{}"]),
        (["serve", "--port", "0"], "emulator.__main__", ["--port", "0"]),
        (["serve", "--help"], "emulator.__main__", ["--help"]),
        (["batch", "run", "-i", "a"], "batch.__main__", ["run", "-i", "a"]),
        (["doctor"], "handler.__main__", ["doctor"]),
        (["fetch-model"], "worker_rkllm.fetch_model", []),
    ],
)
def test_command_runs_its_module_with_the_rest_of_the_arguments(
    calls: list[tuple[str, list[str], str]], arguments: list[str], module: str, passed_on: list[str]
) -> None:
    assert cli.main(arguments) == 3
    assert calls == [(module, passed_on, f"worker-rkllm {arguments[0]}")]
    # RunPod's SDK reads them there.
    assert sys.argv[1:] == passed_on


@pytest.mark.parametrize("arguments", [[], ["sevre"]])
def test_command_that_does_not_exist_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "worker-rkllm: error:" in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for name in ("run", "serve", "batch", "doctor", "fetch-model"):
        assert f"\n  {name} " in printed


def test_help_imports_no_part_of_the_package() -> None:
    program = (
        "import sys\n"
        "from worker_rkllm.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"sys.exit(str([name for name in {HEAVY} if name in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("module", "requirement"),
    [
        ("runpod", "runpod"),
        ("starlette.applications", "starlette"),
        ("boto3", "boto3"),
        ("opentelemetry.sdk", "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"),
        ("tokenizers", "jinja2 tokenizers"),
        ("jsonschema_rs", "json-repair jsonschema-rs py3langid"),
    ],
)
@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_missing_package_is_one_sentence_with_its_requirement(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    module: str,
    requirement: str,
) -> None:
    monkeypatch.setattr(cli, "import_module", raising(ModuleNotFoundError("no", name=module)))
    monkeypatch.setattr(sys, "argv", ["worker-rkllm"])
    assert cli.main([command]) == 2
    assert capsys.readouterr().err == (
        f"worker-rkllm {command} needs the package {module.partition('.')[0]}, which is not "
        f"installed: `pip install {requirement}` installs it.\n"
    )


def test_missing_module_of_no_extra_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "import_module", raising(ModuleNotFoundError("no", name="emulatr")))
    monkeypatch.setattr(sys, "argv", ["worker-rkllm"])
    with pytest.raises(ModuleNotFoundError):
        cli.main(["serve"])


def test_every_command_has_a_main_that_takes_its_arguments() -> None:
    for command in cli.COMMANDS.values():
        assert callable(importlib.import_module(command.module).main)


def raising(error: Exception) -> Callable[[str], object]:
    def load(module: str) -> object:
        raise error

    return load


@pytest.mark.parametrize(
    ("name", "usage", "command"),
    [
        ("serve", "worker-rkllm serve", "worker-rkllm test ./handler.py"),
        ("doctor", "worker-rkllm doctor", "--compare"),
    ],
)
def test_help_of_a_command_names_commands_that_exist(
    name: str,
    usage: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["worker-rkllm"])
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {usage} [")
    assert command in text
    assert "serve test" not in text


def test_serve_has_no_other_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["worker-rkllm"])
    with pytest.raises(SystemExit):
        cli.main(["serve", "test", "handler.py"])
    assert "unrecognized arguments: test handler.py" in capsys.readouterr().err
