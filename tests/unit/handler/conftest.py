"""Fixtures: pipelines and job handlers over the scripted engine in this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Protocol

import pytest

from engine import BackendConfig, Engine, GenerationRequest, Slot, TokenStream
from engine.hooks import EngineEvent, RequestEnded, RequestStarted
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline
from tests.conftest import EngineFactory, ScriptFactory
from validation import Issue, Options, Subject, Validator, Verdict


class RunRecorder:
    """Records the runs that have started and the runs that have ended and released their slot."""

    def __init__(self) -> None:
        self.events: list[RequestEnded] = []
        self.started = asyncio.Event()
        self._happened = asyncio.Event()

    def __call__(self, event: EngineEvent) -> None:
        if isinstance(event, RequestStarted):
            self.started.set()
        if isinstance(event, RequestEnded):
            self.events.append(event)
            self._happened.set()

    async def wait_for_end(self) -> RequestEnded:
        async with asyncio.timeout(30):
            await self._happened.wait()
        return self.events[0]


class ExclamationValidator:
    """A validator that removes and reports exclamation marks, and records its subjects."""

    def __init__(self) -> None:
        self.subjects: list[Subject] = []

    def check_request(self, prompt: str, conversation: str, options: Options) -> Verdict | None:
        for blocker in options.blockers:
            if issue := blocker.find_block(conversation, "general"):
                return Verdict(text="", intent="general", issues=(issue,))
        return None

    def validate(self, subject: Subject, options: Options) -> Verdict:
        self.subjects.append(subject)
        quiet = subject.text.replace("!", "")
        issues = () if quiet == subject.text else (Issue("shouting", "somebody shouted"),)
        return Verdict(text=quiet, intent="general", issues=issues, retry=bool(issues))


class PipelineFactory(Protocol):
    def __call__(
        self, *answers: dict[str, Any], validator: Validator | None = None, **config: Any
    ) -> Pipeline: ...


class JobHandlerFactory(Protocol):
    def __call__(
        self, *answers: dict[str, Any], validator: Validator | None = None, **options: Any
    ) -> JobHandler: ...


@pytest.fixture
def pipeline_of(script: ScriptFactory, engine_factory: EngineFactory) -> PipelineFactory:
    """Builds pipelines from scripted answers; without answers the engine echoes the prompt."""

    def build(
        *answers: dict[str, Any], validator: Validator | None = None, **config: Any
    ) -> Pipeline:
        of_script = {
            name: config.pop(name)
            for name in ("slots", "context_length", "load_error", "load_ms", "capabilities")
            if name in config
        }
        path = str(script(*answers, **of_script))
        engine = engine_factory(
            BackendConfig.from_wire("scripted", {"model_path": path}),
            **{"isolation": "thread", **config},
        )
        return Pipeline(engine, "scripted", validator)

    return build


@pytest.fixture
def job_handler_of(pipeline_of: PipelineFactory) -> JobHandlerFactory:
    """Builds job handlers; takes options of `JobHandler`, of the script and of the engine."""

    def build(
        *answers: dict[str, Any], validator: Validator | None = None, **options: Any
    ) -> JobHandler:
        of_jobs = {
            name: options.pop(name)
            for name in ("options", "max_tokens", "validation", "interval_s")
            if name in options
        }
        return JobHandler(pipeline_of(*answers, validator=validator, **options), **of_jobs)

    return build


class RecordingGenerate:
    """Replaces `Engine.generate`: records each request and appends its number to the prompt."""

    def __init__(self, engine: Engine) -> None:
        self.requests: list[GenerationRequest] = []
        self._generate = engine.generate

    async def __call__(
        self, request: GenerationRequest, slot: Slot | None = None, *, buffered: bool = False
    ) -> TokenStream:
        self.requests.append(request)
        numbered = replace(request, prompt=f"{request.prompt} try {len(self.requests)}")
        return await self._generate(numbered, slot, buffered=buffered)
