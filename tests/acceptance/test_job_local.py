"""`python -m handler` without RunPod: one job, its JSON last on stdout, and what goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.done import Done
from tests.conftest import SMALL_RULES
from tests.integration.handler.control_plane import clean_environment
from tests.leftovers import outlives_test

WAIT_S = 50
COUNTING = {
    "prompt": "Count: one two three four",
    "apply_chat_template": False,
    "sampling_params": {"max_tokens": 40, "temperature": 0, "stop": ["five"], "stream": True},
}
HELLO = {"answers": [{"pieces": ["He", "llo", " world"], "delay_ms": 100}]}
# Read at once, where it is not about validation: all rules take a quarter of a second.
RULES = {"VALIDATION_RULES": str(SMALL_RULES)}
STREAMED = {"prompt": "hi", "sampling_params": {"stream": True}}


class Runner:
    """Runs each of CASES once, when a test needs it first."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder = folder
        self._model = model
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @outlives_test()
    def _start(self, name: str) -> subprocess.Popen[bytes]:
        case, model = CASES[name], self._model
        folder = self._folder / name
        (folder / "home").mkdir(parents=True)
        (folder / "hello.json").write_text(json.dumps(HELLO))
        if case.make_model is not None:
            case.make_model(folder / "broken.gguf", model)
        if case.file is not None:
            (folder / "test_input.json").write_bytes(case.file)
        arguments = [] if case.test_input is None else ["--test_input", case.test_input]
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "handler", *arguments],
                env=clean_environment(folder / "home", case.environment),
                # The embedded model is found from anywhere, test_input.json right here.
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def __call__(self, name: str) -> Done:
        """Wait for the end of a case."""
        if name not in self.processes:
            self.processes[name] = self._start(name)
        code = self.processes[name].wait(WAIT_S)
        folder = self._folder / name
        return Done(code, (folder / "stdout").read_text(), (folder / "stderr").read_text())

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Runner]:
    """A function that returns the result of a case, by its name."""
    runner = Runner(tmp_path_factory.mktemp("local"), model_path)
    yield runner
    runner.kill()


def truncated(target: Path, model: Path) -> None:
    with model.open("rb") as file:
        target.write_bytes(file.read(model.stat().st_size // 2))


def job(job_input: Any) -> str:
    return json.dumps({"input": job_input})


@dataclass(frozen=True)
class Case:
    """One command line: its job, its environment, its model's file."""

    test_input: str | None = None
    file: bytes | None = None
    environment: dict[str, str] = field(default_factory=lambda: {"ENGINE": "scripted", **RULES})
    make_model: Callable[[Path, Path], object] | None = None


def of_model(make: Callable[[Path, Path], object]) -> Case:
    return Case(job(STREAMED), environment={"MODEL_PATH": "broken.gguf", **RULES}, make_model=make)


SCRIPT = {"MODEL_PATH": "hello.json", "STREAM_INTERVAL_MS": "0", **RULES}
CASES = {
    "counting": Case(job(COUNTING), environment={}),
    "aggregate": Case(job(STREAMED), environment={**SCRIPT, "STREAM_MODE": "aggregate"}),
    "generator": Case(
        file=job(STREAMED).encode(), environment={**SCRIPT, "STREAM_MODE": "generator"}
    ),
    "bad-generator": Case(job({}), environment={**SCRIPT, "STREAM_MODE": "generator"}),
    "bad-aggregate": Case(job({"prompt": "x", "sampling_params": {"stop": ""}})),
    "not-json": Case("{input: 5}"),
    "file-not-json": Case(file=b"\xff\xfe"),
    "array": Case('[{"input": {"prompt": "x"}}]'),
    "no-input": Case('{"prompt": "x"}'),
    "no-job": Case(),
    "truncated-model": of_model(truncated),
    "not-a-model": of_model(lambda target, model: target.write_bytes(b"PK\3\4 something else")),
}


@pytest.mark.long
def test_counting_to_the_stop_on_the_embedded_model(run: Runner) -> None:
    # R4, R11, R26, R44-R46
    done = run("counting")
    assert done.code == 0
    output = done.result
    (choice,) = output["choices"]
    assert "five" not in choice["text"]
    assert all("five" not in delta for delta in choice["deltas"])
    assert "".join(choice["deltas"]) == choice["text"]
    assert choice["tokens"] == choice["deltas"]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "five"
    assert output["streaming"] is True
    # The whole prompt, and each generated token, as the engine counted them.
    usage = output["usage"]
    assert usage["input"] == 6
    assert 1 <= usage["output"] < 40
    assert usage["total"] == usage["input"] + usage["output"]


def test_aggregate_prints_one_json(run: Runner) -> None:
    # R45
    done = run("aggregate")
    assert done.code == 0
    choice = done.result["choices"][0]
    assert choice["text"] == "Hello world"
    assert choice["deltas"] == ["He", "llo", " world"]
    assert done.result["id"] == "local_test"


def test_generator_prints_all_that_was_yielded(run: Runner) -> None:
    # R45; the SDK alone would print a generator object and never run it.
    done = run("generator")
    assert done.code == 0
    *partials, final = done.result
    assert len(partials) > 1
    assert "".join(each["choices"][0]["text"] for each in partials) == "Hello world"
    assert final["choices"][0]["deltas"] == ["He", "llo", " world"]
    assert final["usage"] == {"input": 1, "output": 3, "total": 4}


@pytest.mark.long_except("counting")
@pytest.mark.parametrize("name", ["counting", "aggregate", "generator", "bad-aggregate", "no-job"])
def test_stdout_is_the_output_as_one_line(name: str, run: Runner) -> None:
    # R45, R55: log lines are on stderr, and nothing prints the job a second time.
    lines = run(name).stdout.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])


@pytest.mark.long_except(
    "bad-generator-input must have prompt, messages, openai_input",
    "bad-aggregate-input.sampling_params.stop must be a non-empty string or an array",
    "not-json-the test input is not JSON: ",
    "no-job-no job: --test_input or test_input.json must have input",
)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bad-generator", "input must have prompt, messages, openai_input"),
        ("bad-aggregate", "input.sampling_params.stop must be a non-empty string or an array"),
        ("not-json", "the test input is not JSON: "),
        ("file-not-json", "the test input is not JSON: "),
        ("array", "the test input is not a JSON object"),
        ("no-input", "no job: --test_input or test_input.json must have input"),
        ("no-job", "no job: --test_input or test_input.json must have input"),
    ],
)
def test_bad_job_is_one_clear_error(name: str, message: str, run: Runner) -> None:
    # R50
    assert run(name).error().startswith(message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("truncated-model", "MODEL_PATH: llama.cpp could not load "),
        ("not-a-model", "MODEL_PATH: "),
    ],
)
def test_bad_model_is_one_clear_error(name: str, message: str, run: Runner) -> None:
    # R54
    error = run(name).error()
    assert error.startswith(message)
    assert "broken.gguf" in error
    if name == "not-a-model":
        assert error.endswith(" is not a GGUF file")


@pytest.mark.long
def test_no_engine_is_left(run: Runner, hosts_of: Callable[[int], list[int]]) -> None:
    for name in ("counting", "aggregate", "truncated-model"):
        run(name)
    assert [pid for each in run.processes.values() for pid in hosts_of(each.pid)] == []
