"""Trace one job and print the functions of the handler that it runs, for docs/architecture.md.

`python -m tools.docs.job_path` writes two tables between its two marks on that page: the path that
a reader follows, and everything else that the job calls.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from engine import Engine
from handler.composition import build_services, build_validation
from handler.settings.engine_configs import build_engine_config
from handler.settings.worker_settings import WorkerSettings
from handler.worker.runpod_worker import make_handler

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- job path: written by tools/docs/job_path.py -->"
END = "<!-- end of the job path -->"
_HANDLER = ROOT / "handler"
# The functions that hand the job on to each other. The others check, measure and log it.
PATH = (
    "handler",
    "JobHandler.run_encoded",
    "parse_job",
    "OutputGenerator.generate",
    "Pipeline.run",
    "ActiveGeneration.collect_answer",
    "validate",
    "encode_answer",
    "ResultDelivery.deliver",
    "JobHandler.sdk_output",
)


async def trace_job() -> list[CodeType]:
    """Return the functions of the handler that a warm job calls from other modules, in order."""
    settings = WorkerSettings(engine="scripted")
    engine = Engine(build_engine_config(settings))
    services = build_services(settings, engine, build_validation(settings))
    handler = make_handler(services.jobs, engine, None)
    job = {"id": "job", **json.loads((ROOT / "test_input.json").read_bytes())}
    codes: dict[CodeType, None] = {}

    def record(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and _is_listed(frame):
            codes.setdefault(frame.f_code)

    try:
        await engine.ready()
        await handler(job)
        sys.setprofile(record)
        await handler(job)
    finally:
        sys.setprofile(None)
        await engine.close()
    return list(codes)


def _is_listed(frame: FrameType) -> bool:
    """Return whether a call enters a module of the handler from another module."""
    code, caller = frame.f_code, frame.f_back
    if code.co_name.startswith(("<", "__")) or _HANDLER not in Path(code.co_filename).parents:
        return False
    return caller is None or caller.f_code.co_filename != code.co_filename


def build_tables(codes: list[CodeType]) -> Iterator[str]:
    """Yield the lines of both tables.

    The table of the other functions has those of a module that follow each other in one row.

    Raises:
        ValueError: a function of the path was not called.
    """
    if missing := set(PATH) - {_name(code) for code in codes}:
        raise ValueError(f"a job does not call {', '.join(sorted(missing))}: change PATH")
    yield "| module | function | what it does |"
    yield "|---|---|---|"
    for code in codes:
        if _name(code) in PATH:
            yield _row([code])
    yield ""
    yield "The job also calls these functions, which check, measure and log it:"
    yield ""
    yield "| module | functions | what the first one does |"
    yield "|---|---|---|"
    others = [code for code in codes if _name(code) not in PATH]
    for _, functions in groupby(others, key=_module):
        yield _row(list(functions))


def _name(code: CodeType) -> str:
    return code.co_qualname.split(".<locals>.")[-1]


def _module(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(ROOT).as_posix()


def _row(functions: list[CodeType]) -> str:
    names = ", ".join(f"`{_name(code)}`" for code in functions)
    return f"| `{_module(functions[0])}` | {names} | {_summary(functions)} |"


def _summary(functions: list[CodeType]) -> str:
    """Return the first sentence of the first docstring among some functions, or nothing."""
    for code in functions:
        node = _definitions(code.co_filename).get(code.co_firstlineno)
        text = ast.get_docstring(node) if node is not None else None
        if text is not None:
            sentence = inspect.cleandoc(text).split("\n\n")[0].replace("\n", " ")
            return sentence.split(". ")[0].rstrip(".").replace("|", "\\|")
    return ""


@cache
def _definitions(path: str) -> dict[int, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a file by the line at which their code objects begin."""
    functions = [
        node
        for node in ast.walk(ast.parse(Path(path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): node
        for node in functions
    }


def page(text: str, codes: list[CodeType]) -> str:
    """Return the page with the tables of these functions between the marks."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return "\n".join([f"{before}{BEGIN}", "", *build_tables(codes), "", f"{END}{after}"])


if __name__ == "__main__":
    traced = asyncio.run(trace_job())
    PAGE.write_text(page(PAGE.read_text(), traced))
    modules = {code.co_filename for code in traced}
    print(f"{len(traced)} functions in {len(modules)} modules")
