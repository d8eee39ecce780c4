"""A model whose engine is never started, for tests that only read bodies."""

from __future__ import annotations

from engine import BackendConfig, Engine, EngineConfig
from handler.models.registry import ResolvedModel
from handler.pipeline import Pipeline

TINY = ResolvedModel(
    Pipeline(Engine(EngineConfig(backend=BackendConfig.from_wire("scripted", {}))), "tiny")
)
