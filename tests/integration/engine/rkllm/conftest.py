"""Fixtures: the fake librkllmrt.so, compiled once, and drivers for scripts."""

from __future__ import annotations

import functools
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from engine import BackendConfig, Engine
from engine.backends.lora_adapters import parse_adapters
from engine.backends.options import RkllmOptions
from engine.backends.rkllm.abi import detect
from engine.backends.rkllm.abi.abi import ABI_12, ABIS, Abi
from engine.backends.rkllm.board.profile import Profile, write_profile
from tests import fake_rknnlite
from tests.conftest import EngineFactory
from tests.fake_rkllm import build, write_script
from tests.fake_rkllm.tokenizer import write_tokenizer
from tests.integration.engine.rkllm.driver import Driver
from tests.integration.engine.rkllm.processes import ProcessForker, ProgramResult


class DriverFactory(Protocol):
    def __call__(self, script: str, **param: Any) -> Driver: ...


class ProcessFactory(Protocol):
    def __call__(self, script: str, program: str = "d.run()", **param: Any) -> ProgramResult: ...


class RkllmMaker(Protocol):
    def __call__(self, script: str | Path, **options: Any) -> Engine: ...


class OptionsMaker(Protocol):
    def __call__(self, script: str, *, tokenizer: bool = False, **fields: Any) -> RkllmOptions: ...


# The options of the rkllm backend; all others belong to the engine.
_BACKEND_OPTIONS = {
    "abi",
    "base_domain_id",
    "context_length",
    "cpu_mask",
    "device_lock",
    "device_path",
    "encoder_lock",
    "kv_reuse",
    "lib_path",
    "lora",
    "mode",
    "model_name",
    "n_batch",
    "pooling",
    "profile",
    "record",
    "record_text",
    "sampling",
    "tokenizer",
    "vision",
    "vision_cores",
    "vision_size",
    "vision_tokens",
}


# Of the six pairs of an ABI and an isolation, `make test` runs the first of these that a test has,
# and `make test-long` runs all.
_SHORT_PAIRS = (("1.3.1", "process"), ("1.2", "thread"))
# The same for tests with one isolation: 1.3 differs from 1.3.1 in the input of a run alone.
_SHORT_ABIS = {"1.2", "1.3.1"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the other pairs as long."""
    pairs: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for item in items:
        if (pair := _pair_of(item)) is not None:
            pairs[_function_of(item)].add(pair)
    for item in items:
        if (pair := _pair_of(item)) is None:
            continue
        if pair[1]:
            found = [each for each in _SHORT_PAIRS if each in pairs[_function_of(item)]]
            is_short = pair in found[:1]
        else:
            is_short = pair[0] in _SHORT_ABIS
        if not is_short:
            item.add_marker(pytest.mark.long)


def _pair_of(item: pytest.Item) -> tuple[str, str] | None:
    """Return the ABI and the isolation of a test, which is empty if the test has none."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    abi = params.get("abi")
    return (abi.name, params.get("isolation", "")) if isinstance(abi, Abi) else None


def _function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


_examined = functools.cache(detect.inspect_library)


@pytest.fixture
def examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect each library only once, so that not every engine starts a process for it."""
    monkeypatch.setattr(detect, "inspect_library", _examined)


@pytest.fixture(scope="session")
def fake_library(fake_rkllm_folder: Path) -> Callable[[str], Path]:
    """Return a function that builds the fake library of a version once."""
    return lambda abi: build(abi, fake_rkllm_folder)


@pytest.fixture(scope="session")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessForker]:
    """A process that forks child processes for programs."""
    made = ProcessForker(tmp_path_factory.mktemp("forker"))
    yield made
    made.close()


@pytest.fixture(params=ABIS.values(), ids=lambda abi: f"abi{abi.name}")
def abi(request: pytest.FixtureRequest) -> Abi:
    """Run a test once with each ABI."""
    chosen: Abi = request.param
    return chosen


@pytest.fixture(autouse=True)
def quick_load_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat a failed first load soon."""
    monkeypatch.setattr("engine.hosts.losses.restart_policy.LOAD_RETRY_PAUSE_S", 0.1)


@pytest.fixture
def library(abi: Abi, fake_library: Callable[[str], Path]) -> Path:
    return fake_library(abi.name)


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a script to a model file."""
    numbers = itertools.count(1)
    return lambda script: write_script(tmp_path / f"model-{next(numbers)}.rkllm", script)


@pytest.fixture
def driver(library: Path, abi: Abi, model: Callable[[str], Path]) -> Iterator[DriverFactory]:
    """Return a function that creates drivers for scripts; destroy the remaining handles."""
    drivers: list[Driver] = []

    def make(script: str, **param: Any) -> Driver:
        drivers.append(Driver(library, abi, model(script), **param))
        return drivers[-1]

    yield make
    for made in drivers:
        if made.handle:
            made.destroy()


@pytest.fixture
def process(
    forker: ProcessForker, library: Path, abi: Abi, model: Callable[[str], Path]
) -> ProcessFactory:
    """Return a function that runs a program with a script in a child process, which may crash."""

    def make(script: str, program: str = "d.run()", **param: Any) -> ProgramResult:
        return forker.run(library, abi.name, model(script), program, **param)

    return make


@pytest.fixture
def call_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls.log"
    monkeypatch.setenv("FAKE_RKLLM_LOG", str(path))
    return path


@pytest.fixture
def rkllm_of(
    engine_factory: EngineFactory,
    library: Path,
    abi: Abi,
    model: Callable[[str], Path],
    isolation: str,
    fast_restarts: None,
) -> RkllmMaker:
    """Return a function that builds an engine; keywords are backend or engine options."""

    def make(script: str | Path, **options: Any) -> Engine:
        path = script if isinstance(script, Path) else model(script)
        of_backend = {name: options.pop(name) for name in _BACKEND_OPTIONS & options.keys()}
        fields: dict[str, Any] = {"model_path": str(path), "model_name": "fake"}
        if "profile" not in of_backend and os.path.isfile(path):
            # As the doctor would find out: otherwise each load would try it, in runs of its own.
            of_backend["profile"] = str(profile := path.with_suffix(".profile.json"))
            reuses_prefix = abi is not ABI_12 and b"prefix_reuse off" not in path.read_bytes()
            outcomes = Profile(prefix_reuse=reuses_prefix, logits_with_history=True)
            write_profile(profile, Path(of_backend.get("lib_path", library)), path, outcomes)
        adapters = parse_adapters(of_backend.pop("lora", ""))
        fields |= {"lib_path": str(library), **of_backend, "adapters": adapters}
        config = BackendConfig(RkllmOptions(**fields))
        return engine_factory(config, **{"isolation": isolation, **options})

    return make


@pytest.fixture
def options_of(
    examined_once: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    library: Path,
    model: Callable[[str], Path],
) -> OptionsMaker:
    """Return a function that makes options from a script; the calls of its engine are recorded."""
    fake_rknnlite.install(monkeypatch)

    def make(script: str, *, tokenizer: bool = False, **fields: Any) -> RkllmOptions:
        folder = str(write_tokenizer(tmp_path / "tokenizer")) if tokenizer else None
        path = model(script)
        if "mode" in fields:
            # Without it, logits mode is refused with ABI 1.2.
            fields["profile"] = str(tmp_path / "profile.json")
            write_profile(Path(fields["profile"]), library, path, Profile(logits_with_history=True))
        return RkllmOptions(
            model_path=str(path),
            model_name="fake",
            lib_path=str(library),
            tokenizer=folder,
            context_length=512,
            record=str(tmp_path / "board.jsonl"),
            **fields,
        )

    return make
