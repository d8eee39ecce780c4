"""Format the doctor's report from given findings, without an engine."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from engine import BackendConfig, EngineConfig
from engine.backends.options import OpenAIOptions, RkllmOptions, options_to_wire
from engine.doctor.examiner import BEGINS, FAILED
from handler.doctor import command
from handler.doctor.examination import _describe_exit, _first_and_last_lines
from handler.doctor.report import (
    ASSUMPTIONS,
    INTERRUPTED,
    Examination,
    Finding,
    format_report,
)

RKLLM = BackendConfig.from_wire(
    "rkllm", {"model_path": "/m/q.rkllm", "model_name": "q", "tokenizer": None}
)
MARK = "**not as assumed**"
# The only home folder of a Linux machine that is not named after a person.
ADMINS = str(Path("/", "root"))
AS_ASSUMED: dict[str, Any] = {
    "callbacks on the calling thread": True,
    "callbacks beyond the runtime's count": 1,
    "callbacks beyond the limit": 0,
    "tokens reused": 45,
    "prefill interrupted": False,
    "growth over these runs, MB": 0.3,
}
OTHERWISE: dict[str, list[Any]] = {
    "callbacks on the calling thread": [False],
    "callbacks beyond the runtime's count": [-1, 2],
    "callbacks beyond the limit": [1],
    "tokens reused": [0],
    "prefill interrupted": [True],
    "growth over these runs, MB": [12.0],
}


def assumed(**changed: Any) -> list[Finding]:
    values = AS_ASSUMED | changed
    return [(each.step, each.name, values[each.name]) for each in ASSUMPTIONS]


def page(
    findings: list[Finding] | None = None, *, backend: BackendConfig = RKLLM, **fields: Any
) -> str:
    return format_report(backend, Examination(findings or [], **fields))


def section(markdown: str, title: str) -> str:
    return markdown.split(f"## {title}\n\n")[1].split("\n\n## ")[0].rstrip()


def test_keys_and_passwords_of_servers_are_left_out() -> None:
    options = OpenAIOptions(
        model_name="m", model_id="m", urls=("http://user:password@a/v1",), key="secret"
    )
    made = page(backend=BackendConfig(options))
    assert "http://***@a/v1" in made
    assert "password" not in made
    assert "secret" not in made


def test_settings_steps_and_the_end_have_sections() -> None:
    made = page([("machine", BEGINS, False), ("machine", "CPUs", 8), ("loading", "seconds", 2.5)])
    assert [line for line in made.splitlines() if line.startswith("#")] == [
        "# What the doctor found",
        "## Settings",
        "## Machine",
        "## Loading",
        "## What is assumed of RKLLM",
        "## What failed",
    ]
    settings = "- ENGINE: `rkllm`\n- model_path: `/m/q.rkllm`\n- model_name: `q`\n"
    version, _, others = section(made, "Settings").partition("\n")
    assert version.startswith("- version: `")
    assert others.startswith(settings)
    assert section(made, "Machine") == "- CPUs: 8"
    assert section(made, "What failed") == "Nothing: every step was done."
    assert made.endswith("\n")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "yes"),
        (False, "no"),
        (None, "not seen"),
        (7, "7"),
        (0.8999999761581421, "0.9"),
        ("", "`nothing`"),
        ("a_b_*c* @you #1", "`a_b_*c* @you #1`"),
        ("one\ntwo\x1b[1mbold", r"`one\ntwobold`"),
        ("`tick", "`` `tick ``"),
        ({}, "`none`"),
        ({"top_p": 0.9, "top_k": 50}, "`top_p 0.9, top_k 50`"),
    ],
)
def test_values(value: Any, expected: str) -> None:
    assert section(page([("step", "name", value)]), "Step") == f"- name: {expected}"


def test_what_is_as_assumed_has_no_mark() -> None:
    made = page(assumed())
    assert MARK not in made
    table = section(made, "What is assumed of RKLLM")
    assert table.count("| so |") == len(ASSUMPTIONS)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OTHERWISE.items() for value in values]
)
def test_finding_that_contradicts_an_assumption_is_marked(name: str, value: Any) -> None:
    made = page(assumed(**{name: value}))
    (marked,) = [line for line in made.splitlines() if MARK in line]
    assert marked.startswith(f"- {name}: ")
    table = section(made, "What is assumed of RKLLM")
    assert table.count("| so |") == len(ASSUMPTIONS) - 1
    assert table.count("| **not so** |") == 1


def test_every_assumption_has_a_value_that_breaks_it() -> None:
    assert {each.name for each in ASSUMPTIONS} == set(AS_ASSUMED) == set(OTHERWISE)


def test_assumption_without_a_finding_is_neither_true_nor_false() -> None:
    made = page(assumed(**dict.fromkeys(AS_ASSUMED)))
    assert MARK not in made
    table = section(made, "What is assumed of RKLLM")
    assert "so |" not in table
    assert table.count("not seen") == len(ASSUMPTIONS)


def test_report_of_other_engines_has_no_assumptions() -> None:
    changed = {name: values[0] for name, values in OTHERWISE.items()}
    made = page(assumed(**changed), backend=BackendConfig.from_wire("scripted"))
    assert MARK not in made
    assert "assumed" not in made


def test_failures_come_last() -> None:
    failures: list[Finding] = [
        ("first run", FAILED, "BackendFailed: out of luck"),
        ("closing", FAILED, "KeyError: 'x'"),
    ]
    made = page(failures)
    assert section(made, "First run") == "- failed: `BackendFailed: out of luck`"
    assert section(made, "What failed").splitlines() == [
        "- first run: `BackendFailed: out of luck`",
        "- closing: `KeyError: 'x'`",
    ]


def test_an_early_end_has_its_step_and_its_last_words() -> None:
    began: list[Finding] = [("first run", BEGINS, True)]
    made = page(began, ended="it was killed", printed=["I rkllm: hello", "```", "last words"])
    assert section(made, "What failed") == (
        "- first run: it was killed\n\n"
        "What was printed, the last lines at the end:\n\n"
        "````text\nI rkllm: hello\n```\nlast words\n````"
    )
    assert "## What was printed" not in made


def test_an_end_before_any_step() -> None:
    assert section(page(ended="it was killed"), "What failed") == "- start: it was killed"


def test_report_has_the_printed_lines_without_a_failure() -> None:
    made = page(printed=["\x1b[32mI rkllm: version\x1b[0m"])
    assert section(made, "What was printed") == "```text\nI rkllm: version\n```"
    assert section(made, "What failed") == "Nothing: every step was done."


def test_examination_succeeds_without_failures() -> None:
    assert Examination([("closing", BEGINS, True)]).succeeded
    assert not Examination([("closing", FAILED, "x")]).succeeded
    assert not Examination(ended="it was killed").succeeded


@pytest.mark.parametrize(
    ("home", "text", "expected"),
    [
        ("/people/me", "/people/me/models/q.rkllm", "~/models/q.rkllm"),
        ("/people/me", "/people/mean/q.rkllm", "/people/mean/q.rkllm"),
        ("/people/me", "File /home/alice/lib.so, line 3", "File ~/lib.so, line 3"),
        ("/people/me", f"{ADMINS}/q.rkllm and {ADMINS}less", f"~/q.rkllm and {ADMINS}less"),
        ("/", "/usr/lib/librkllmrt.so", "/usr/lib/librkllmrt.so"),
    ],
)
def test_home_folders_are_abbreviated(
    home: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    made = page([("step", "name", text)], printed=[text])
    assert section(made, "Step") == f"- name: `{expected}`"
    assert section(made, "What was printed") == f"```text\n{expected}\n```"


def test_home_behind_a_link_is_abbreviated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    made = page([("step", "name", f"{tmp_path}/real/q and {tmp_path}/link/q")])
    assert section(made, "Step") == "- name: `~/q and ~/q`"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, ""),
        (3, "the process exited with code 3"),
        (-11, "the process was killed by SIGSEGV"),
        (-9, "the process was killed by SIGKILL, as the kernel does when memory runs out"),
        (-99, "the process was killed by signal 99"),
    ],
)
def test_deaths(code: int, expected: str) -> None:
    assert _describe_exit(code) == expected


@pytest.mark.parametrize("width", [1, 100, 100_000])
def test_first_and_last_lines_of_long_output_are_kept(width: int) -> None:
    lines = [f"{number} {'x' * width}" for number in range(100)]
    kept = _first_and_last_lines(BytesIO("\n\n".join(lines).encode()))
    assert len(kept) <= 41
    assert kept[0].startswith("0 x")
    assert "..." in kept
    assert kept[-1].endswith("x")
    if width <= 100:
        assert kept == [*lines[:20], "...", *lines[-20:]]


def test_of_little_all_is_kept() -> None:
    assert _first_and_last_lines(BytesIO(b"one\n \ntwo")) == ["one", "two"]
    assert _first_and_last_lines(BytesIO()) == []


@pytest.mark.parametrize(
    ("ended", "examined"), [("", 3), ("it crashed", 3), (INTERRUPTED, 2)], ids=str
)
def test_every_copy_of_every_model_has_a_report_unless_the_user_interrupts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: str, examined: int
) -> None:
    domains: list[object] = []

    def examine(backend: BackendConfig, *rest: object, **options: object) -> Examination:
        domains.append(options_to_wire(backend.options)["base_domain_id"])
        return Examination(ended=ended if len(domains) == 2 else "")

    monkeypatch.setattr(command, "examine", examine)
    monkeypatch.setattr(command, "run_trials", lambda *rest: [])
    first, second, other = (
        BackendConfig(RkllmOptions(model_path=path, model_name="m", base_domain_id=domain))
        for domain, path in enumerate(["/m/a.rkllm", "/m/a.rkllm", "/m/b.rkllm"])
    )
    configs = [EngineConfig(backend=first, copies=(second,)), EngineConfig(backend=other)]
    code = command.main(configs)
    assert (domains, code) == ([0, 1, 2][:examined], 1 if ended else 0)
    out = capsys.readouterr().out
    assert (out.count("a.rkllm"), out.count("b.rkllm")) == (2, examined - 2)
