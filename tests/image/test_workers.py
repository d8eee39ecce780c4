"""Workers in containers: one that RunPod's SDK connects to a server, and a handler in a mount."""

from __future__ import annotations

from pathlib import Path

from tests.image.containers import JOB, KEY, Containers, Server
from tests.waiting import wait_until_blocking

ENDPOINT = "mine"
HANDLER = """
import runpod


def handler(job):
    return {{"greeting": "{greeting} " + job["input"]["name"]}}


runpod.serverless.start({{"handler": handler}})
"""
RELOAD_S = 20.0


def test_worker_in_a_container_takes_jobs_of_a_server_in_another(
    image: str, containers: Containers
) -> None:
    server = containers.start_server(image, LOCAL_WORKER="off")
    server.wait_until_ready()
    url = f"http://127.0.0.1:{server.port}/v2/{ENDPOINT}"
    worker = containers.start(
        image,
        options=("--network", "host"),
        RUNPOD_WEBHOOK_GET_JOB=f"{url}/job-take/$ID?gpu=none",
        RUNPOD_WEBHOOK_POST_OUTPUT=f"{url}/job-done/$RUNPOD_POD_ID/$ID?gpu=none",
        RUNPOD_WEBHOOK_POST_STREAM=f"{url}/job-stream/$RUNPOD_POD_ID/$ID?gpu=none",
        RUNPOD_WEBHOOK_PING=f"{url}/ping/$RUNPOD_POD_ID?gpu=none",
        RUNPOD_AI_API_KEY=KEY,
        RUNPOD_POD_ID="pod",
    )
    job = server.call(f"/v2/{ENDPOINT}/run", JOB).json()["id"]
    ended = server.wait_for_job(job, endpoint=ENDPOINT)
    assert ended["status"] == "COMPLETED", worker.logs()
    assert ended["workerId"] == "pod"
    worker.stop()
    assert worker.state()["ExitCode"] == 0, worker.logs()


def test_handler_in_a_mounted_folder_is_loaded_again_after_an_edit(
    image: str, containers: Containers, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    file = tmp_path / "handler.py"
    file.write_text(HANDLER.format(greeting="Hello"))
    options = ("--volume", f"{tmp_path}:/project:ro")
    server = containers.start_server(image, "--handler", "/project/handler.py", options=options)
    server.wait_until_ready()
    assert greet(server) == "Hello Ada"
    file.write_text(HANDLER.format(greeting="Welcome"))
    wait_until_blocking(lambda: greet(server) == "Welcome Ada", RELOAD_S, gap_s=0.2)


def greet(server: Server) -> str:
    greeting = server.run_job({"input": {"name": "Ada"}})["output"]["greeting"]
    assert isinstance(greeting, str)
    return greeting
