"""How engine processes are started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.hosts.child_process import start_process, thread_wait_env


def test_thread_wait_env_keeps_known_variables() -> None:
    passive = {"OMP_WAIT_POLICY": "PASSIVE"}
    assert thread_wait_env({"PATH": "/bin"}) == passive | {"GOMP_SPINCOUNT": "300"}
    assert thread_wait_env({"GOMP_SPINCOUNT": "7"}) == passive
    assert thread_wait_env({"OMP_WAIT_POLICY": "ACTIVE"}) == {}


@pytest.mark.parametrize(
    ("known", "expected"), [({}, "PASSIVE 300"), ({"GOMP_SPINCOUNT": "7"}, "PASSIVE 7")]
)
def test_start_process_sets_the_thread_wait_env(
    known: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    program = "import os; print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'])"
    (tmp_path / "telling.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start_process("telling", folder=str(tmp_path), stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=30)[0].decode().strip() == expected
