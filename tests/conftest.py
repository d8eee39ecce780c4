"""Fixtures for all tests (the model, scripts, engines) and the option `--long`."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings

from engine import BackendConfig, Engine, EngineConfig, Timeouts
from engine.hooks import Hook
from handler.models.default_model import DEFAULT_MODEL_PATH
from tests import cpu_budget, leftovers, session_guard, virtual_time
from tests.fork_server import client as fork_client
from tests.models.llama import write_llama_model
from validation.rules import DEFAULT_RULES
from validation.rules_validator import RulesValidator

# Two intents, `weather` and `general`; one token and one label to remove; one check.
SMALL_RULES = Path(__file__).with_name("data") / "small_rules.yaml"
LONG_SCALE = 5
SHORT_EXAMPLES, LONG_EXAMPLES = 40, 500
LONG_TIMEOUT_S = 900
# Clients whose start takes seconds, and beside which others of their kind run in `make test`.
_LONG_CLIENTS = ("litellm", "langchain", "openai-python-async", "llama-index", "instructor")
UNFREEZE = gc.unfreeze
# `make test` runs these with the newest interface of RKLLM's library only; others run with both.
_NEWEST_ABI_FILES = frozenset(
    f"test_rkllm_{name}.py"
    for name in ("constrained", "embeddings", "images", "n_batch", "profile", "tools", "pool")
)
_OLD_ABI = "abi1.2"
_FOLDERS = ("image", "long", "acceptance", "security", "integration", "property", "unit", "arm64")

settings.register_profile(
    "default",
    deadline=None,
    max_examples=SHORT_EXAMPLES,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("default"), max_examples=LONG_EXAMPLES)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long forms of tests")
    parser.addoption("--timing", action="store_true", help="run only the tests about speed")
    parser.addoption(
        "--cpu", action="store_true", help="list the tests that cost the most CPU time"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: only `make test-long` runs this test")
    config.addinivalue_line(
        "markers", "timing: it measures durations, and only `make test-long PART=timing` runs it"
    )
    config.addinivalue_line(
        "markers",
        "long_except(*ids): `make test` runs only these cases of a parametrized test, and "
        "`make test-long` runs all of them",
    )
    config.addinivalue_line(
        "markers",
        "timing: the test measures a duration: only `make test-long PART=timing` runs it, alone",
    )
    config.pluginmanager.register(leftovers, "leftovers")
    _cache_rules(config)
    config.pluginmanager.register(virtual_time, "virtual_time")
    session_guard.install(config)
    fork_client.install(config)
    # A shell ignores SIGINT for its background jobs, and the event loop cannot restore that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    long = config.getoption("--long")
    settings.load_profile("long" if long else "default")
    if long and config.option.timeout is None:
        config.option.timeout = LONG_TIMEOUT_S
    is_ci = os.environ.get("CI") == "true"
    budget = cpu_budget.CpuBudget(enforced=is_ci and not long and not config.getoption("--timing"))
    config.pluginmanager.register(budget, "cpu-budget")
    if is_ci:
        config.pluginmanager.register(EveryTestRuns(), "every-test-runs")


def _cache_rules(config: pytest.Config) -> None:
    """Read the usual rules once: that takes longer than most tests, and none changes a validator.

    A file that a test has written, and so may write again, is read each time.
    """
    read_rules = RulesValidator.from_file
    cached = functools.cache(read_rules)

    def from_file(path: Path = DEFAULT_RULES) -> RulesValidator:
        return cached(path) if path in (DEFAULT_RULES, SMALL_RULES) else read_rules(path)

    patches = pytest.MonkeyPatch()
    patches.setattr(RulesValidator, "from_file", from_file)
    config.add_cleanup(patches.undo)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collection: thousands of test objects are made, and all are kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # A server that a test starts would let each later collection look at them again.
        gc.unfreeze = lambda: None
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the suite; with `--long`, keep only what `make test` does not run.

    The slowest folders come first: otherwise all workers but one would wait at the end.
    """
    if config.getoption("--timing"):
        items[:] = [item for item in items if item.get_closest_marker("timing") is not None]
        return
    items[:] = [item for item in items if item.get_closest_marker("timing") is None]
    if config.getoption("--long"):
        items[:] = [item for item in items if _is_long_only(item) or _has_long_form(item)]
    else:
        chosen = [item for item in items if not _is_long_only(item)]
        _check_cases_exist(items, chosen)
        items[:] = chosen
    items.sort(key=lambda item: _FOLDERS.index(_folder(item)))


def _has_long_form(item: pytest.Item) -> bool:
    if _folder(item) in ("property", "long", "image"):
        return True
    return "scale" in getattr(item, "fixturenames", ())


def _is_long_only(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) is not None for name in ("long", "timing")):
        return True
    if any(client in _case_id(item) for client in _LONG_CLIENTS):
        return True
    if item.path.name in _NEWEST_ABI_FILES and _OLD_ABI in _case_id(item):
        return True
    marker = item.get_closest_marker("long_except")
    return marker is not None and _case_id(item) not in marker.args


def _case_id(item: pytest.Item) -> str:
    return item.name.partition("[")[2].removesuffix("]")


def _check_cases_exist(items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    """Raise UsageError for a `long_except` that names a case which does not exist."""
    found = {item.nodeid.partition("[")[0]: set[str]() for item in items}
    for item in items:
        found[item.nodeid.partition("[")[0]].add(_case_id(item))
    for item in chosen:
        marker = item.get_closest_marker("long_except")
        cases = found[item.nodeid.partition("[")[0]]
        if marker is not None and len(cases) > 1 and (missing := set(marker.args) - cases):
            raise pytest.UsageError(f"long_except of {item.nodeid} names no case: {missing}")


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


class EveryTestRuns:
    """Fails a session in which a test was skipped or deselected, on CI."""

    def __init__(self) -> None:
        self.not_run: list[str] = []

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.not_run += [f"deselected: {item.nodeid}" for item in items]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.not_run.append(f"skipped: {report.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            how = "expected to fail" if hasattr(report, "wasxfail") else "skipped"
            self.not_run.append(f"{how}: {report.nodeid}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        # Each worker of xdist collects and deselects by itself.
        reported = getattr(node, "workeroutput", {}).get("not_run", ())
        self.not_run += [each for each in reported if each not in self.not_run]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["not_run"] = self.not_run
        if self.not_run and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.not_run:
            terminalreporter.section("CI: every test must run, and these did not", red=True)
            for line in self.not_run:
                terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def scale(pytestconfig: pytest.Config) -> int:
    """The factor for the amount of work in a test: 1, or more with `--long`."""
    return LONG_SCALE if pytestconfig.getoption("--long") else 1


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The path of the built-in model, for promises about its text; without it, tests fail."""
    if not DEFAULT_MODEL_PATH.is_file():
        pytest.fail(
            "the default model is not there: `python -m handler.models.default_model` fetches it",
            pytrace=False,
        )
    return DEFAULT_MODEL_PATH


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a generated model, which answers with random words a hundred times as fast."""
    return write_llama_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def fake_rkllm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for builds of the fake librkllmrt.so, shared by all workers."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "fake_rkllm"
    folder.mkdir(exist_ok=True)
    return folder


class ScriptFactory(Protocol):
    def __call__(self, *answers: dict[str, Any], **fields: Any) -> Path: ...


@pytest.fixture
def script(tmp_path: Path) -> ScriptFactory:
    """A factory of files for the scripted backend: answers, and other fields by name."""
    numbers = itertools.count(1)

    def write(*answers: dict[str, Any], **fields: Any) -> Path:
        path = tmp_path / f"script-{next(numbers)}.json"
        path.write_text(json.dumps({"answers": list(answers), **fields} if answers else fields))
        return path

    return write


class EngineFactory(Protocol):
    def __call__(
        self, backend: BackendConfig, hooks: Sequence[Hook] = (), **config: Any
    ) -> Engine: ...


@pytest.fixture
async def engine_factory() -> AsyncIterator[EngineFactory]:
    """A factory of engines from keywords of `EngineConfig` and `Timeouts`; closes them."""
    engines: list[Engine] = []
    before: list[int] | None = None
    of_clocks = {field.name for field in fields(Timeouts)}

    def build(backend: BackendConfig, hooks: Sequence[Hook] = (), **config: Any) -> Engine:
        nonlocal before
        if before is None and config.get("isolation", "process") == "process":
            before = engine_hosts(os.getpid())
        clocks = {name: config.pop(name) for name in of_clocks & config.keys()}
        engine = Engine(EngineConfig(backend=backend, timeouts=Timeouts(**clocks), **config), hooks)
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        await engine.close()
    assert before is None or set(engine_hosts(os.getpid())) <= set(before)


@pytest.fixture(scope="session")
def hosts_of() -> Callable[[int], list[int]]:
    """A function that returns the running engine host processes of a process."""
    return engine_hosts


def engine_hosts(parent: int) -> list[int]:
    hosts = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        if b"engine.hosts.child" in arguments and arguments[-1] == str(parent).encode():
            hosts.append(int(entry.parent.name))
    return hosts
