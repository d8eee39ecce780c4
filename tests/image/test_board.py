"""The image for boards, with the stand-in for Rockchip's library."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.fake_rkllm import write_script
from tests.image.containers import JOB, Containers, Server
from tests.waiting import wait_until_blocking

SCRIPT = """
    answer
      say "word " times=8 us=20000
"""
KILLS = 4
# Prints the ids of the engine's processes, and then the states of all processes.
_LIST = """
import pathlib
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    command = (folder / "cmdline").read_bytes().decode()
    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    print(folder.name, state, command.replace("\\0", " ").replace("\\n", " "))
"""
_KILL = "import os, sys; os.kill(int(sys.argv[1]), 9)"


def test_engine_that_is_killed_below_pid_1_starts_again_and_leaves_no_zombie(
    board_image: str, containers: Containers, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    write_script(tmp_path / "model.rkllm", SCRIPT)
    server = containers.start_server(
        board_image,
        options=("--volume", f"{tmp_path}:/models:ro"),
        MODEL_PATH="/models/model.rkllm",
    )
    server.wait_until_ready()
    for _ in range(KILLS):
        assert server.run_job(JOB)["status"] == "COMPLETED"
        [engine] = engines(server)
        server.execute("python", "-c", _KILL, str(engine))
        wait_until_blocking(partial(has_another_engine, server, engine), gap_s=0.1)
    assert server.run_job(JOB)["status"] == "COMPLETED"
    wait_until_blocking(lambda: not zombies(server), gap_s=0.1)
    assert server.stop() < 10
    assert server.state()["ExitCode"] == 0


def processes(server: Server) -> list[tuple[int, str, str]]:
    """Return id, state and command line of each process in a container."""
    lines = server.execute("python", "-c", _LIST).splitlines()
    fields = [line.split(" ", 2) for line in lines]
    return [(int(pid), state, command) for pid, state, command in fields]


def zombies(server: Server) -> list[tuple[int, str, str]]:
    """Return the processes that have ended, and that their parent has not waited for."""
    return [process for process in processes(server) if process[1] == "Z"]


def engines(server: Server) -> list[int]:
    """Return the ids of the processes that run the library."""
    return [pid for pid, _, command in processes(server) if "engine.hosts" in command]


def has_another_engine(server: Server, killed: int) -> bool:
    """Return whether another process of the engine runs than one that was killed."""
    return bool(engines(server)) and killed not in engines(server)
