"""Folders, files and disks that are not as the server expects them, with real servers."""

# Nothing else runs in the event loops of these tests, so they may block.
# ruff: noqa: ASYNC220, ASYNC240

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from common.temporary_folders import ScratchFolder
from tests.conftest import ScriptFactory
from tests.integration.batch.runs import call
from tests.integration.emulator.processes import (
    ROOT,
    build_environment,
    run_emulator,
    server_command,
)
from tests.security.data_servers import (
    LIMIT_S,
    children,
    modes,
    refusal,
    running,
    status,
    submit,
    tree,
    upload,
)
from tests.waiting import poll_until, wait_until, wait_until_blocking

# From the end of the program's imports to its exit, as for other refusals.
REFUSED_S = 1.0
DIGITS = "0123456789abcdef0123456789ab"


# -- folders of other programs


@pytest.mark.parametrize("kind", ["files", "documents"])
def test_batch_folder_with_a_users_own_files_is_refused_and_untouched(
    settings: dict[str, str], tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "mine"
    (folder / kind).mkdir(parents=True)
    (folder / kind / "thesis.pdf").write_text("three years of work")
    before = tree(folder)
    sentence = refusal(settings | {"BATCH_DIR": str(folder)})
    assert sentence == (
        f"the batch folder {folder} (BATCH_DIR) is refused: it was not created by this program and "
        "is not empty, so files in it could be lost: use a new or an empty folder"
    )
    assert tree(folder) == before
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.long
async def test_foreign_file_in_a_folder_of_ours_survives_every_start(
    settings: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    settings |= {"BATCH_DIR": str(folder)}
    async with running(settings):
        pass
    notes = folder / "files" / "notes.txt"
    notes.write_text("mine")
    left = folder / "files" / f"file-{DIGITS}"
    left.write_text("bytes without a record")
    async with running(settings) as server:
        assert notes.read_text() == "mine"
        assert not left.exists()
        assert "is not a file of this server and is left alone" in server.stderr


def test_database_of_another_program_is_refused_and_untouched(
    settings: dict[str, str],
) -> None:
    path = Path(settings["JOB_DB"])
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE jobs (wages REAL)")
        database.execute("INSERT INTO jobs VALUES (1.0)")
    before = path.read_bytes()
    assert "another program created it" in refusal(settings)
    assert path.read_bytes() == before


# -- modes


@pytest.mark.long_except("0")
@pytest.mark.parametrize("umask", [0o000, 0o277])
async def test_files_with_content_are_private_whatever_the_umask(
    settings: dict[str, str], tmp_path: Path, umask: int
) -> None:
    old_umask = os.umask(umask)
    try:
        async with running(settings) as server:
            await submit(server)
            async with server.client() as client:
                file = (await upload(client)).json()
                body = {
                    "input_file_id": file["id"],
                    "endpoint": "/v1/completions",
                    "completion_window": "24h",
                }
                batch = (await client.post("/v1/batches", json=body)).json()
                folder = Path(f"{settings['JOB_DB']}.batches")

                async def is_completed() -> bool:
                    answer = await client.get(f"/v1/batches/{batch['id']}")
                    return bool(answer.json()["status"] == "completed")

                await poll_until(is_completed, LIMIT_S)
            mode_of = modes(tmp_path / "data")
    finally:
        os.umask(old_umask)
    mode_of.pop(str(tmp_path / "data"))
    assert {name.rpartition("jobs.sqlite3")[2] for name in mode_of} >= {
        "",
        "-wal",
        "-shm",
        ".lock",
    }
    assert len(list((folder / "files").iterdir())) == 4
    wrong = {
        name: oct(mode)
        for name, mode in mode_of.items()
        if mode != (0o700 if Path(name).is_dir() else 0o600)
    }
    assert wrong == {}


@pytest.mark.long
async def test_files_that_others_could_read_are_corrected_at_the_start(
    settings: dict[str, str], tmp_path: Path
) -> None:
    async with running(settings) as server:
        await submit(server)
        async with server.client() as client:
            await upload(client)
        server.process.kill()
    for path in [*(tmp_path / "data").rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    async with running(settings) as server:
        await submit(server)
        mode_of = modes(tmp_path / "data")
    mode_of.pop(str(tmp_path / "data"))
    assert set(mode_of.values()) == {0o600, 0o700}


def test_batch_run_leaves_a_private_journal_and_an_output_by_the_umask(
    script: ScriptFactory, tmp_path: Path
) -> None:
    model = script({"when": "hang", "pieces": ["a", {"hang_s": 3600}]}, {})
    (tmp_path / "in.jsonl").write_text(
        json.dumps(call("one", "p")) + "\n" + json.dumps(call("two", "hang")) + "\n"
    )
    journal, output = tmp_path / "out.jsonl.partial", tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "batch", "run", "-i", "in.jsonl", "-o", "out.jsonl"]
    environment = build_environment({"MODEL_PATH": str(model), "ENGINE_ISOLATION": "thread"})
    old_umask = os.umask(0o022)
    try:
        with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
            wait_until_blocking(
                lambda: journal.exists() and b"one" in journal.read_bytes(), LIMIT_S
            )
            process.kill()
        assert stat.S_IMODE(journal.stat().st_mode) == 0o600
        model.write_text("{}")
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=LIMIT_S)
    finally:
        os.umask(old_umask)
    assert stat.S_IMODE(output.stat().st_mode) == 0o644
    assert not journal.exists()


# -- one server per database


@contextmanager
def bind_mounted(source: Path, target: Path) -> Iterator[None]:
    if subprocess.run(["mount", "--bind", source, target], check=False).returncode:
        # Only root may do it; the other paths are tested without.
        raise PermissionError("no mounts")
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


def another_path(kind: str, database: Path, stack: contextlib.ExitStack) -> str:
    """Return another path of a database that exists."""
    folder = database.parent.parent / "other"
    folder.mkdir()
    other = folder / "other.sqlite3"
    if kind == "symbolic link":
        other.symlink_to(database)
    elif kind == "hard link":
        other.hardlink_to(database)
    elif kind == "dots":
        return str(folder / ".." / database.parent.name / "." / database.name)
    elif kind == "linked folder":
        (folder / "data").symlink_to(database.parent)
        return str(folder / "data" / database.name)
    elif kind == "descriptor":
        # The server inherits it.
        fd = os.open(database, os.O_RDWR)
        stack.callback(os.close, fd)
        os.set_inheritable(fd, True)
        return f"/proc/self/fd/{fd}"
    else:
        other.touch()
        stack.enter_context(bind_mounted(database, other))
    return str(other)


PATHS = ["symbolic link", "hard link", "dots", "linked folder", "descriptor"]
if os.geteuid() == 0:
    PATHS.append("bind mount")


def import_s() -> float:
    """Return how long a process takes that only imports what the checks need."""
    began = time.monotonic()
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import emulator.startup.preflight, emulator.autoscaling.worker_process, "
            "handler.logs.configuration",
        ],
        env=build_environment({}),
        cwd=ROOT,
        check=True,
        timeout=LIMIT_S,
    )
    return time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("kind", PATHS)
async def test_second_server_by_another_path_of_the_database_is_refused(
    settings: dict[str, str], kind: str
) -> None:
    database = Path(settings["JOB_DB"])
    with contextlib.ExitStack() as stack:
        async with running(settings) as server:
            acknowledged = await submit(server, 5)
            path = another_path(kind, database, stack)
            sentence = refusal(settings | {"JOB_DB": path}, close_fds=False)
            assert "in use by another server" in sentence
            assert "stop it or choose another one with --db or JOB_DB" in sentence
            acknowledged += await submit(server)
            server.process.kill()
    async with running(settings) as server:
        assert [await status(server, job_id) for job_id in acknowledged] == [200] * 6


@pytest.mark.timing
async def test_second_server_is_refused_in_a_second(settings: dict[str, str]) -> None:
    async with running(settings):
        imports_s = import_s()
        began = time.monotonic()
        # Another interpreter, as `import_s` measures it, and no fork of one.
        assert "in use by another server" in refusal(settings, close_fds=False)
        assert time.monotonic() - began - imports_s < REFUSED_S


@pytest.mark.long
async def test_hard_link_of_a_killed_servers_database_is_refused_because_its_log_is_elsewhere(
    settings: dict[str, str], tmp_path: Path
) -> None:
    async with running(settings) as server:
        acknowledged = await submit(server, 3)
        server.process.kill()
    link = tmp_path / "link.sqlite3"
    link.hardlink_to(settings["JOB_DB"])
    sentence = refusal(settings | {"JOB_DB": str(link)})
    assert "it is a hard link, and its log of recent jobs is beside another of its 2" in sentence
    assert not link.with_name("link.sqlite3.lock").exists()
    # The database can be used by its own name in spite of the link.
    async with running(settings) as server:
        assert [await status(server, job_id) for job_id in acknowledged] == [200] * 3


def _namespace() -> list[str]:
    """Return the words that run a command among process ids of its own, where that is allowed."""
    for user in ([], ["--user", "--map-root-user"]):
        words = ["unshare", *user, "--pid", "--fork", "--mount-proc"]
        if shutil.which(words[0]) and not subprocess.run([*words, "true"], check=False).returncode:
            return words
    return []


CONTAINER = _namespace()


@pytest.mark.long
async def test_second_server_in_another_container_is_refused(settings: dict[str, str]) -> None:
    async with running(settings):
        assert "in use by another server" in refusal(settings, [*CONTAINER, *server_command()])


def test_temporary_folder_of_another_container_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers that share /tmp do not see each other's processes."""
    program = (
        "from common.temporary_folders import ScratchFolder\nwith ScratchFolder(): print('made')"
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ScratchFolder() as folder:
        (folder.path / "engine.sock").touch()
        subprocess.run(
            [*CONTAINER, sys.executable, "-c", program],
            env={**build_environment({}), "TMPDIR": str(tmp_path)},
            check=True,
            timeout=LIMIT_S,
        )
        assert (folder.path / "engine.sock").exists()


@pytest.mark.long
async def test_temporary_folders_of_killed_commands_are_removed_at_the_next_start(
    settings: dict[str, str], script: ScriptFactory, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    hanging = script({"pieces": ["a", {"hang_s": 3600}]})
    (tmp_path / "in.jsonl").write_text(json.dumps(call("one", "p")) + "\n")
    here = {"TMPDIR": str(temporary), "MODEL_PATH": str(hanging), "ENGINE_ISOLATION": "process"}
    with (
        (tmp_path / "in.jsonl").open() as requests,
        subprocess.Popen(
            [sys.executable, "-m", "batch", "run", "-i", "-", "-o", "-"],
            cwd=tmp_path,
            env=build_environment(here),
            stdin=requests,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        await wait_until(lambda: len(list(temporary.glob("worker-rkllm-tmp-*"))) >= 2)
        await wait_until(lambda: any(temporary.glob("*/input")))
        process.kill()
    abandoned = list(temporary.glob("worker-rkllm-tmp-*"))
    # A server that needs no temporary folder itself also removes them.
    async with running(settings | {"TMPDIR": str(temporary)}):
        assert not any(folder.exists() for folder in abandoned)
    memory = settings | {"JOB_DB": ":memory:", "TMPDIR": str(temporary)}
    async with running(memory) as server:
        server.process.kill()
    assert any(temporary.iterdir())
    async with running(memory) as server:
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait_for_exit() == 0
    assert list(temporary.glob("worker-rkllm-*")) == []


# -- disks that are full or damaged


@pytest.mark.long
@pytest.mark.parametrize("kind", ["new", "with jobs"])
async def test_server_starts_on_a_full_disk_and_takes_jobs_when_there_is_space(
    settings: dict[str, str], kind: str
) -> None:
    acknowledged: list[str] = []
    if kind == "with jobs":
        async with running(settings) as server:
            acknowledged = await submit(server, 3)
            server.process.kill()
    # The limit of a file's size is 0, and children inherit it.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        process = run_emulator(settings)
        server = await process.__aenter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    try:
        await server.wait_until_listening()
        assert [await status(server, job_id) for job_id in acknowledged] == [200] * len(
            acknowledged
        )
        async with server.client() as client:
            health = await client.get("/health")
            assert (health.status_code, health.json()["status"]) == (200, "degraded")
            assert (await client.post("/v2/far/run", json={"input": 1})).status_code == 503
            assert (await upload(client)).status_code == 507
            # Requests that need no disk are still served.
            answer = await client.post("/v1/completions", json={"prompt": "x"})
            assert answer.status_code == 200
            for pid in [server.pid, *children(server.pid)]:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

            async def is_accepted() -> bool:
                response = await client.post("/v2/far/run", json={"input": 1})
                return response.status_code != 503

            await poll_until(is_accepted, LIMIT_S)
            assert (await upload(client)).status_code == 200
            assert (await client.get("/health")).json()["status"] == "ok"
        acknowledged += await submit(server)
        server.process.kill()
    finally:
        await process.__aexit__(None, None, None)
    async with running(settings) as server:
        assert {await status(server, job_id) for job_id in acknowledged} == {200}


async def test_one_damaged_row_and_record_are_set_aside_and_the_rest_is_served(
    settings: dict[str, str],
) -> None:
    async with running(settings) as server:
        good, bad = await submit(server, 2)
        async with server.client() as client:
            files = [(await upload(client)).json()["id"] for _ in range(2)]
        server.process.send_signal(signal.SIGTERM)
        await server.wait_for_exit()
    with contextlib.closing(sqlite3.connect(settings["JOB_DB"])) as database, database:
        database.execute("UPDATE jobs SET state = '{' WHERE id = ?", (bad,))
    record = Path(f"{settings['JOB_DB']}.batches") / "files" / f"{files[0]}.json"
    record.write_bytes(record.read_bytes()[:20])
    async with running(settings) as server:
        assert [await status(server, job_id) for job_id in (good, bad)] == [200, 404]
        async with server.client() as client:
            listed = (await client.get("/v1/files")).json()["data"]
            assert [file["id"] for file in listed] == [files[1]]
            health = (await client.get("/health")).json()
        assert health["jobs"]["set_aside"] == [bad]
        assert health["batches"]["set_aside"] == [files[0]]
        assert f"job {bad} (row 2) is damaged and set aside" in server.stderr
    assert record.exists()
    assert record.with_suffix("").exists()


async def test_damaged_database_is_refused_with_a_remedy_and_left_as_it_is(
    settings: dict[str, str], tmp_path: Path
) -> None:
    async with running(settings) as server:
        await submit(server, 50)
        server.process.kill()
    path = Path(settings["JOB_DB"])
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # A log that a repair needs as well.
        database.execute("PRAGMA user_version = 2")
        raw = bytearray(path.read_bytes())
        log = Path(f"{path}-wal").read_bytes()
    for page in range(2, len(raw) // 4096):
        raw[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    path.write_bytes(raw)
    Path(f"{path}-wal").write_bytes(log)
    before = {
        name: tree(tmp_path / "data")[name][1] for name in ("jobs.sqlite3", "jobs.sqlite3-wal")
    }
    sentence = refusal(settings)
    assert "it is damaged" in sentence
    assert "nothing was changed: restore a copy, or save what can be read with" in sentence
    after = tree(tmp_path / "data")
    assert {name: after[name][1] for name in before} == before


# -- a database that goes away


@pytest.mark.long_except("replaced")
@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "without its log", "cleaned"])
async def test_database_that_goes_away_in_mid_run_is_noticed_before_a_job_is_acknowledged(
    settings: dict[str, str], how: str
) -> None:
    path = Path(settings["JOB_DB"])
    async with running(settings) as server:
        running_job, other = await submit(server, 2)
        aside = path.with_name("aside")
        if how == "removed":
            path.unlink()
        elif how == "moved":
            path.rename(aside)
        elif how == "replaced":
            shutil.copy(path, aside)
            aside.replace(path)
        elif how == "without its log":
            Path(f"{path}-wal").unlink()
        else:
            for each in path.parent.iterdir():
                each.unlink() if each.is_file() else shutil.rmtree(each)
        async with server.client() as client:
            for _ in range(3):
                answer = await client.post("/v2/far/run", json={"input": 1})
                assert answer.status_code == 503
                assert "was removed or replaced while the server was running" in answer.text
            # Jobs that were acknowledged before are still known.
            assert await status(server, running_job) == 200
            health = await client.get("/health")
            assert health.json()["status"] == "degraded"
            # Requests that need no disk are still served.
            assert (await client.post("/runsync", json={"input": {"prompt": "x"}})).json()[
                "status"
            ] == "COMPLETED"
            assert "was removed or replaced" in server.stderr
            if how == "moved":
                aside.rename(path)

                async def is_accepted() -> bool:
                    return not (await client.post("/v2/far/run", json={"input": 1})).is_error

                await poll_until(is_accepted, LIMIT_S)
        server.process.kill()
    if how in ("moved", "without its log"):
        async with running(settings) as server:
            assert [await status(server, job_id) for job_id in (running_job, other)] == [200] * 2


@pytest.mark.long
async def test_store_process_that_is_replaced_does_not_begin_with_an_empty_database(
    settings: dict[str, str],
) -> None:
    async with running(settings) as server:
        await submit(server)
        Path(settings["JOB_DB"]).unlink()
        [store] = [
            pid
            for pid in children(server.pid)
            if b"jobs.sqlite.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(store, signal.SIGKILL)
        async with server.client() as client:
            for _ in range(3):
                assert (await client.post("/v2/far/run", json={"input": 1})).status_code == 503
        assert not Path(settings["JOB_DB"]).exists()


# -- batches


def test_damaged_record_of_a_batch_journal_costs_that_line_alone(
    script: ScriptFactory, tmp_path: Path
) -> None:
    lines = 20
    model = script({"when": "hang", "pieces": ["a", {"hang_s": 3600}]}, {})
    requests = [call(f"id {number}", f"p {number}") for number in range(lines - 1)]
    requests.append(call("last", "hang"))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests))
    journal = tmp_path / "out.jsonl.partial"
    command = [sys.executable, "-m", "batch", "run", "-i", "in.jsonl", "-o", "out.jsonl"]
    environment = build_environment({"MODEL_PATH": str(model), "ENGINE_ISOLATION": "thread"})
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
        wait_until_blocking(
            lambda: journal.exists() and journal.read_bytes().count(b"\n") == lines, LIMIT_S
        )
        process.kill()
    damaged = journal.read_bytes().replace(b'"id 7"', b'"id \xff"')
    journal.write_bytes(damaged)
    model.write_text("{}")
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert result.returncode == 0, result.stderr
    assert f"resuming: {lines - 2} of {lines} lines are answered" in result.stderr
    assert "1 line will be answered again" in result.stderr
    assert "1 line answered again: the records were damaged" in result.stderr
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["custom_id"] for each in answers] == [each["custom_id"] for each in requests]


@pytest.mark.long
async def test_uploads_at_the_same_time_cannot_exceed_the_store_together(
    settings: dict[str, str],
) -> None:
    """Each upload would fit; together they may never exceed the limit on disk, even briefly."""
    settings |= {"BATCH_STORE_MB": "4", "BATCH_MAX_MB": "3"}
    folder = Path(f"{settings['JOB_DB']}.batches") / "files"
    line = (json.dumps(call("x", "y" * 1000)) + "\n").encode()
    piece = line * (500_000 // len(line))
    head = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' + (
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    arrived = asyncio.Event()
    max_bytes = 0

    def stored_bytes() -> int:
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())

    async with running(settings) as server, server.client() as client:

        async def body() -> AsyncIterator[bytes]:
            nonlocal max_bytes
            yield head
            for _ in range(6):
                yield piece
                await asyncio.sleep(0.05)
                max_bytes = max(max_bytes, stored_bytes())
            arrived.set()
            yield b"\r\n--b--\r\n"

        async def send(*, is_declared: bool) -> int:
            headers = {"content-type": "multipart/form-data; boundary=b"}
            if is_declared:
                length = len(head) + 6 * len(piece) + len(b"\r\n--b--\r\n")
                headers["content-length"] = str(length)
            try:
                answer = await client.post("/v1/files", content=body(), headers=headers)
            except (httpx2.WriteError, httpx2.ReadError):
                # The server answered and closed while the client still sent.
                return 507
            return answer.status_code

        for is_declared in (True, False):
            answers = await asyncio.gather(*(send(is_declared=is_declared) for _ in range(4)))
            assert set(answers) <= {400, 507}, answers
            assert answers.count(507) >= 3
            assert max_bytes <= 4_000_000
        # The space of the refused uploads was released.
        assert (await upload(client, 10)).status_code == 200
