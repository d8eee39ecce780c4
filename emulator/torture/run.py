"""Run a client against all shapes of its API, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emulator.torture.answer import ANSWER, ARGUMENTS, is_same_answer
from emulator.torture.client_process import ClientCommand
from emulator.torture.server import ShapedServer, client_variables
from emulator.torture.shape import Api, Shape, list_shapes
from emulator.torture.shaped_app import ShapedRequests
from emulator.torture.verdict import ClientRun, Judgement, Verdict, judge

_MAX_OUTPUT_CHARS = 2_000


class ClientNotUsable(Exception):
    """The client does not print the answer of a stream without a fault, so nothing is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A client that printed the answer of a stream without a fault: its API and that answer."""

    command: ClientCommand
    api: Api
    is_call: bool

    @property
    def answer(self) -> str:
        """The text that an honest client prints."""
        return ARGUMENTS if self.is_call else ANSWER

    def shapes(self) -> Sequence[Shape]:
        """The shapes for the client's API."""
        return list_shapes(self.api, is_call=self.is_call)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeResult:
    """A shape, the client's run against it, and the verdict."""

    shape: Shape
    run: ClientRun
    judgement: Judgement

    @property
    def is_right(self) -> bool:
        """Whether the client did what an honest client can do."""
        return self.judgement.is_right


async def examine_client(command: ClientCommand, server: ShapedServer) -> Subject:
    """Run the client once without a fault, and return which API it uses.

    Raises ClientNotUsable if it does not print the answer, with what it printed.
    """
    requests = ShapedRequests()
    run = await _run(command, server, server.ports[0], requests)
    api = _choose_api(requests.apis)
    if api is None:
        raise ClientNotUsable(
            "the client requested no answer: it must send its request to OPENAI_BASE_URL, "
            "ANTHROPIC_BASE_URL, OLLAMA_HOST or RUNPOD_ENDPOINT_BASE_URL, which are set in its "
            f"environment{_describe_output(run)}"
        )
    if run.exit_code is None:
        raise ClientNotUsable(
            f"the client had not ended after {command.timeout_s:g} s, on a stream without a fault"
            f"{_describe_output(run)}"
        )
    if run.exit_code != 0:
        raise ClientNotUsable(
            f"the client failed with code {run.exit_code} on a stream without a fault"
            f"{_describe_output(run)}"
        )
    is_call = requests.has_tools and is_same_answer(run.printed, ARGUMENTS, is_call=True)
    if not is_call and not is_same_answer(run.printed, ANSWER, is_call=False):
        hint = (
            "the arguments of the call of the tool report" if requests.has_tools else "the answer"
        )
        expected = ARGUMENTS if requests.has_tools else ANSWER
        raise ClientNotUsable(
            f"the client must print exactly {hint}, which is {expected!r}, and it printed "
            f"{run.printed[:_MAX_OUTPUT_CHARS]!r}"
        )
    return Subject(command=command, api=api, is_call=is_call)


async def run_shapes(
    subject: Subject,
    shapes: Sequence[Shape],
    server: ShapedServer,
    on_start: Callable[[Shape], None],
    on_result: Callable[[ShapeResult], None],
) -> list[ShapeResult]:
    """Run the client against shapes, one at a time on each port, and return the results in order.

    `on_result` is called as the runs end, which is another order.
    """
    results: dict[str, ShapeResult] = {}
    remaining = iter(shapes)

    async def use_port(port: int) -> None:
        # The iterator is shared: each port takes the next shape when it is free.
        for shape in remaining:
            on_start(shape)
            requests = ShapedRequests(faults=shape.faults, api=subject.api)
            run = await _run(subject.command, server, port, requests)
            judgement = judge(shape, run, subject.answer, is_call=subject.is_call)
            if run.requests == 0 and judgement.verdict is not Verdict.HUNG:
                detail = "it sent no request"
                judgement = Judgement(verdict=Verdict.CRASHED, detail=detail)
            results[shape.name] = ShapeResult(shape=shape, run=run, judgement=judgement)
            on_result(results[shape.name])

    async with asyncio.TaskGroup() as group:
        for port in server.ports:
            group.create_task(use_port(port))
    return [results[shape.name] for shape in shapes]


async def _run(
    command: ClientCommand, server: ShapedServer, port: int, requests: ShapedRequests
) -> ClientRun:
    server.begin(port, requests)
    return await command.run(client_variables(port), requests)


def _choose_api(apis: Sequence[Api]) -> Api | None:
    """Return the API of a client: of its stream if it has one, even after other requests."""
    for api in (Api.POLLS, Api.JOB_EVENTS):
        if api in apis:
            return api
    streamed = (api for api in apis if api not in (Api.JSON, Api.JOB))
    return next(streamed, next(iter(apis), None))


def _describe_output(run: ClientRun) -> str:
    output = (run.errors.strip() or run.printed.strip())[-_MAX_OUTPUT_CHARS:]
    return f". It printed:\n{output}" if output else ""
