import ast
import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

import httpcore2
import httpx2
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from emulator.http import library_internals
from emulator.http.library_internals import missing_methods, set_network_backend

ROOT = Path(__file__).parents[4]
MODULE = Path(library_internals.__file__)
PACKAGES = ("engine", "handler", "validation", "jobs", "emulator", "batch", "common")


def test_installed_libraries_have_every_method_that_is_used() -> None:
    assert missing_methods(library_internals._UVICORN_METHODS) == []


def test_installed_uvicorn_has_every_attribute_of_a_request_that_is_used() -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(MODULE.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self.cycle"
    }
    assert "message_event" in used
    set_by_uvicorn = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(RequestResponseCycle)))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }
    assert used - set_by_uvicorn == set()


def test_missing_methods_are_named_with_their_class() -> None:
    class Renamed:
        kept = staticmethod(print)

    assert missing_methods({Renamed: ("kept", "gone")}) == ["Renamed.gone"]


def test_import_fails_with_one_sentence_if_uvicorn_has_renamed_a_method() -> None:
    program = (
        "from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as protocol\n"
        "del protocol._start_asgi_task\n"
        "import emulator.http.library_internals\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert run.returncode == 1
    last_line = run.stderr.splitlines()[-1]
    assert "has no HttpToolsProtocol._start_asgi_task: install a version" in last_line


def test_set_network_backend_makes_a_client_connect_through_it() -> None:
    class RefusingBackend(httpcore2.AsyncMockBackend):
        async def connect_tcp(self, host: str, *_: object, **__: object) -> None:  # type: ignore[override]
            raise httpcore2.ConnectError(f"refused {host}")

    async def get() -> None:
        transport = httpx2.AsyncHTTPTransport()
        set_network_backend(transport, RefusingBackend([]))
        async with httpx2.AsyncClient(transport=transport) as client:
            await client.get("http://example.test/")

    with pytest.raises(httpx2.ConnectError, match=r"refused example\.test"):
        asyncio.run(get())


def test_set_network_backend_fails_if_httpx_has_renamed_the_attribute() -> None:
    class Pool:
        __slots__ = ()

    transport = httpx2.AsyncHTTPTransport()
    transport._pool = Pool()  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="_network_backend"):
        set_network_backend(transport, httpcore2.AsyncMockBackend([]))


@pytest.mark.parametrize("name", ["_start_asgi_task", "_unset_keepalive_if_required", "._pool."])
def test_undocumented_members_are_used_by_no_other_module(name: str) -> None:
    users = [
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if name in path.read_text()
    ]
    assert users == [MODULE]
