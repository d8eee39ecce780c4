"""`ENGINE=rkllm python -m handler` over the stand-in for librkllmrt.so: both ABIs, no board."""

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
from tests.fake_rkllm import build, read_log, write_script
from tests.fake_rkllm.odd import build_odd
from tests.fake_rkllm.tokenizer import text_of, write_tokenizer
from tests.integration.handler.control_plane import clean_environment
from tests.leftovers import outlives_test

WAIT_S = 50
SCRIPT = r"""
answer when="Count"
  say "one " "two " "th" "ree fo" "ur" us=1000
  say " and on" us=1000 times=100000
answer
  say "\{seen}"
"""
PROMPT = {"prompt": "Count with me", "sampling_params": {"stop": ["four"], "stream": True}}
CHAT = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé?"}]
}


@dataclass(frozen=True)
class Case:
    """One command line: its library, job, settings and the preparation of its folder."""

    library: str = "1.3"
    job: dict[str, Any] = field(default_factory=lambda: PROMPT)
    settings: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], object] = lambda folder: None


CASES = {
    "1.2": Case("1.2"),
    "1.3": Case("1.3"),
    "thread": Case("1.2", settings={"ENGINE_ISOLATION": "thread", "ENGINE": "auto"}),
    "rendered": Case("1.3", CHAT, prepare=write_tokenizer),
    "prompt-in-template": Case("1.2", {"prompt": "Hé?"}, prepare=write_tokenizer),
    "prompt-with-tokens": Case(
        "1.2", {"prompt": "<|im_start|>user\nHé?<|im_end|>"}, prepare=write_tokenizer
    ),
    "prompt-raw": Case(
        "1.3", {"prompt": "Hé?"}, {"APPLY_CHAT_TEMPLATE": "off"}, prepare=write_tokenizer
    ),
    "raw-without-tokenizer": Case("1.3", {"prompt": "Hé?", "apply_chat_template": False}),
    "one-turn": Case("1.3", CHAT),
    "reload": Case(
        "1.2",
        {"prompt": "hi", "sampling_params": {"temperature": 1.5}},
        settings={"RKLLM_SAMPLING": "reload"},
    ),
    "wrong-abi": Case("1.2", settings={"RKLLM_ABI": "1.3"}),
    "wrong-abi-too": Case("1.3", settings={"RKLLM_ABI": "1.2"}),
    "unknown-abi": Case("1.3", settings={"RKLLM_ABI": "1.4"}),
    "older": Case("1.2.0"),
    "newer": Case("odd AT=100"),
    "kills": Case("odd AT_13 DIES"),
    "no-library": Case("none"),
    "empty-model": Case(prepare=lambda folder: (folder / "model.rkllm").write_bytes(b"")),
}


@dataclass
class CaseResult(Done):
    """The result of a case, with the library functions that it called."""

    calls: list[str]

    def error(self) -> str:
        """Return the error of a failed run; the library must not have crashed or refused a call."""
        assert not {"crash", "refused"} & set(self.calls)
        return super().error()


class Runner:
    """Runs CASES on demand, each once."""

    def __init__(self, folder: Path, libraries: Path, hosts_of: Callable[[int], list[int]]) -> None:
        self._folder = folder
        self._built = libraries
        self._hosts_of = hosts_of
        self._libraries: dict[str, Path] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _library(self, name: str) -> Path:
        if name not in self._libraries:
            kind, *defines = name.split()
            path = self._folder / "none.so"
            if kind == "odd":
                path = build_odd(self._folder / name.replace(" ", "-"), *defines)
            elif kind != "none":
                path = build(kind, self._built)
            self._libraries[name] = path
        return self._libraries[name]

    @outlives_test()
    def _start(self, name: str) -> None:
        case, folder = CASES[name], self._folder / name
        (folder / "home").mkdir(parents=True)
        write_script(folder / "model.rkllm", f"context 8192\n{SCRIPT}")
        case.prepare(folder)
        settings = {
            "ENGINE": "rkllm",
            "RKLLM_LIB_PATH": str(self._library(case.library)),
            "MODEL_PATH": "model.rkllm",
            "VALIDATION_RULES": str(SMALL_RULES),
            "FAKE_RKLLM_LOG": str(folder / "calls.log"),
            **case.settings,
        }
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "handler", "--test_input", json.dumps({"input": case.job})],
                env=clean_environment(folder / "home", settings),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def __call__(self, name: str) -> CaseResult:
        """Wait for the end of a case, and check that no process is left."""
        if name not in self._processes:
            self._start(name)
        process, folder = self._processes[name], self._folder / name
        code = process.wait(WAIT_S)
        assert self._hosts_of(process.pid) == []
        log = folder / "calls.log"
        calls = [call.name for call in read_log(log)] if log.exists() else []
        return CaseResult(
            code, (folder / "stdout").read_text(), (folder / "stderr").read_text(), calls
        )

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory,
    fake_rkllm_folder: Path,
    hosts_of: Callable[[int], list[int]],
) -> Iterator[Runner]:
    """A function that returns the result of a case, by its name."""
    runner = Runner(tmp_path_factory.mktemp("rkllm"), fake_rkllm_folder, hosts_of)
    yield runner
    runner.kill()


@pytest.mark.long_except("1.3")
@pytest.mark.parametrize("name", ["1.2", "1.3", "thread"])
def test_job_is_answered_up_to_its_stop(run: Runner, name: str) -> None:
    # R4, R11, R26, R44-R46
    done = run(name)
    assert done.code == 0, done.stderr
    output = done.result
    (choice,) = output["choices"]
    assert choice["text"] == "one two three "
    assert "".join(choice["deltas"]) == choice["text"]
    assert choice["tokens"] == choice["deltas"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "four")
    assert (output["usage"]["output"], output["streaming"]) == (5, True)
    # R49, R58: a job has the defaults that 1.2 is loaded with, and the prompt is a user turn.
    assert "warnings" not in output
    assert done.calls.count("rkllm_init") == done.calls.count("rkllm_destroy") == 1


def test_chat_goes_through_the_models_own_template(run: Runner) -> None:
    # R38
    output = run("rendered").result
    model_input = json.loads(output["choices"][0]["text"])
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHé?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert text_of([int(word) for word in model_input["prompt"].split()]) == text
    assert (model_input["input_type"], model_input["prompt_tokens"]) == (
        "token",
        output["usage"]["input"],
    )
    assert output.get("warnings", []) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prompt-in-template", "<|im_start|>user\nHé?<|im_end|>\n<|im_start|>assistant\n"),
        ("prompt-with-tokens", "<|im_start|>user\nHé?<|im_end|>"),
        ("prompt-raw", "Hé?"),
    ],
)
def test_prompt_is_a_user_turn_unless_it_is_rendered_or_raw(
    run: Runner, name: str, text: str
) -> None:
    # R58
    output = run(name).result
    model_input = json.loads(output["choices"][0]["text"])
    sent = text_of([int(word) for word in model_input["prompt"].split()])
    # A plain prompt begins as the tokenizer begins one.
    assert sent.endswith(text)
    assert sent.count("<|im_start|>") == text.count("<|im_start|>")
    assert "warnings" not in output


@pytest.mark.long
def test_raw_prompt_without_tokenizer_files_is_a_turn_with_a_warning(run: Runner) -> None:
    # R38, R58: the runtime's own template cannot be kept away.
    output = run("raw-without-tokenizer").result
    assert json.loads(output["choices"][0]["text"])["prompt"] == "Hé?"
    (warning,) = output["warnings"]
    assert warning.startswith("prompt was rendered with the model's chat template")


@pytest.mark.long
def test_chat_without_tokenizer_files_is_one_turn_with_a_warning(run: Runner) -> None:
    # R38
    output = run("one-turn").result
    model_input = json.loads(output["choices"][0]["text"])
    assert model_input["prompt"] == "System: Be brief.\n\nUser: Hé?\n\nAssistant:"
    (warning,) = output["warnings"]
    assert warning.startswith("messages were given to the rkllm engine as the text of one turn")


@pytest.mark.long
def test_different_sampling_reloads_the_model(run: Runner) -> None:
    # R9: and the timings say so.
    done = run("reload")
    output = done.result
    assert json.loads(output["choices"][0]["text"])["sampling"]["temperature"] == 1.5
    assert output["timings"]["reload_ms"] > 0
    assert "warnings" not in output
    assert done.calls.count("rkllm_init") == done.calls.count("rkllm_destroy") == 2


@pytest.mark.long_except(
    "no-library-RKLLM_LIB_PATH: there is no file -github.com/airockchip/rknn-llm",
)
@pytest.mark.parametrize(
    ("name", "start", "part"),
    [
        ("wrong-abi", "RKLLM_ABI is 1.3, and the library is 1.2: ", "Set RKLLM_ABI=auto or 1.2"),
        ("wrong-abi-too", "RKLLM_ABI is 1.2, and the library is 1.3: ", "Set RKLLM_ABI=auto or"),
        ("older", "", "is older than 1.2.1, it has no rkllm_get_kv_cache_size: install"),
        ("newer", "the ABI of ", "install librkllmrt.so 1.2.3 or 1.3.1, or set"),
        (
            "kills",
            "",
            "the process that read them was killed by SIGSEGV: E RKNN: failed to open rknpu module",
        ),
        ("no-library", "RKLLM_LIB_PATH: there is no file ", "github.com/airockchip/rknn-llm"),
        ("empty-model", "MODEL_PATH: ", "model.rkllm is empty"),
    ],
)
def test_refusal_is_one_clear_sentence(run: Runner, name: str, start: str, part: str) -> None:
    # R50, R54
    error = run(name).error()
    assert error.startswith(start)
    assert part in error


def test_abi_that_is_no_setting(run: Runner) -> None:
    done = run("unknown-abi")
    assert done.code == 2
    assert done.stderr.splitlines()[-1].startswith("RKLLM_ABI: ")
    assert "Traceback" not in done.stderr
    assert done.calls == []
