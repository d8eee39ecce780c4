"""Arguments of `test` and `reset`: wrong use is one sentence and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emulator.__main__ import main
from emulator.handler_tests import command, reset
from tests.ports import free_port

TESTS = json.dumps({"tests": [{"name": "a", "input": {}}]})


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("a.py --handler b.py", "PATH and --handler are the same; give one of them"),
        ("--command x --python y", "--python has no effect on --command"),
        ("--command ''", "the command is empty"),
        ("--timeout 0", "must be a number of seconds up to 86,400"),
        ("--timeout x", "must be a number of seconds up to 86,400"),
        ("--save x", "--save needs --job"),
        ("--server http://x", "--server needs --job"),
        ("--api-key x", "--api-key needs --job"),
        ("--job x --command y", "--command has no effect on --job"),
        ("--job x --volume y", "--volume has no effect on --job"),
        ("--job x --junit-xml y", "--junit-xml has no effect on --job"),
        ("--job x --tests y", "--tests has no effect on --job without --save"),
        ("--job x --save ''", "--save needs a name"),
        ("--image a --image b", "--image may be used once"),
        ("--tets x", "did you mean --tests?"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: str, sentence: str
) -> None:
    words = [word.replace("''", "") for word in arguments.split()]
    with pytest.raises(SystemExit) as caught:
        main(["test", *words])
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: python -m emulator test ")
    assert sentence in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--handler: the folder . has none of handler.py, rp_handler.py"),
        (["missing.py"], "--handler: there is no file missing.py"),
        (["--handler", "missing.py"], "--handler: there is no file missing.py"),
        (["mine.py"], "has none of .runpod/tests.json, tests.json and test_input.json"),
        (["mine.py", "--tests", "missing.json"], "missing.json cannot be read: No such file"),
        (["mine.py", "--tests", "bad.json"], "bad.json: tests is empty"),
        (["mine.py", "--tests", "good.json", "--python", "missing"], "--python: the program"),
        (
            ["mine.py", "--tests", "good.json", "--junit-xml", "missing/r.xml"],
            "--junit-xml: there is no folder missing",
        ),
        (["mine.py", "--volume", "missing"], "--volume (VOLUME_DIR): there is no folder missing"),
        (["--command", "run"], "there is no tests file"),
        (["--job", "x", "--save", "y", "missing"], "there is no file or folder missing"),
        (["--job", "x", "--server", "localhost"], "--server must be an http or https URL"),
    ],
)
def test_wrong_use_is_one_sentence_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    Path("mine.py").touch()
    Path("bad.json").write_text('{"tests": []}')
    Path("good.json").write_text(TESTS)
    assert command.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_server_that_does_not_run_is_one_sentence_and_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = f"http://127.0.0.1:{free_port()}"
    assert command.main(["--job", "x", "--server", server]) == 2
    assert reset.main(["--server", server, "--endpoint", "e"]) == 2
    assert main(["reset", "--server", server]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(f"the server {server}")


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        ([], "tests.json"),
        ([".runpod/x"], ".runpod/tests.json"),
        ([".runpod/x", "tests.json"], "tests.json"),
        (["src/handler.py"], "tests.json"),
        (["src/handler.py", ".runpod/tests.json", "tests.json"], ".runpod/tests.json"),
    ],
)
def test_kept_job_is_saved_in_the_file_that_tests_are_read_from(
    tmp_path: Path, existing: list[str], expected: str
) -> None:
    for name in existing:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    path = ["src/handler.py"] if "src/handler.py" in existing else []
    options = command._parse(["--job", "x", "--save", "y", *path], "test")
    assert command._find_save_file(options) == tmp_path / expected


def test_python_of_the_environment_runs_the_handler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.py").touch()
    Path("good.json").write_text(TESTS)
    monkeypatch.setenv("WORKER_PYTHON", "not-there")
    assert command.main(["mine.py", "--tests", "good.json"]) == 2
    assert "the program not-there" in capsys.readouterr().err
