"""`/docs` over HTTP: the page, its files, its security policy and the document."""

from __future__ import annotations

import gzip

import pytest

from emulator.http.public_files import DOCS_PATHS
from tests.integration.emulator.conftest import Serve

FILES = sorted(DOCS_PATHS - {"/docs", "/openapi.json"})


async def test_docs_page_allows_only_this_server(serve: Serve) -> None:
    server = await serve()
    async with server.client() as client:
        response = await client.get("/docs")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    policy = dict(
        each.strip().split(" ", 1)
        for each in response.headers["content-security-policy"].split(";")
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


@pytest.mark.parametrize("path", FILES)
async def test_docs_file_is_compressed_and_revalidated(serve: Serve, path: str) -> None:
    server = await serve()
    async with server.client() as client:
        plain = await client.get(path, headers={"accept-encoding": "identity"})
        async with client.stream("GET", path, headers={"accept-encoding": "gzip"}) as response:
            compressed = b"".join([part async for part in response.aiter_raw()])
        revalidated = await client.get(
            path,
            headers={"accept-encoding": "gzip", "if-none-match": response.headers["etag"]},
        )
    kind = "text/css" if path.endswith(".css") else "text/javascript"
    assert plain.headers["content-type"] == f"{kind}; charset=utf-8"
    assert plain.headers["x-content-type-options"] == "nosniff"
    assert plain.headers["cache-control"] == "no-cache"
    assert response.headers["content-encoding"] == "gzip"
    assert gzip.decompress(compressed) == plain.content
    assert (revalidated.status_code, revalidated.content) == (304, b"")


async def test_docs_need_no_key_and_the_document_has_its_scheme(serve: Serve) -> None:
    server = await serve(api_keys="secret-key")
    async with server.client() as client:
        for path in DOCS_PATHS:
            assert (await client.get(path)).status_code == 200, path
        document = (await client.get("/openapi.json")).json()
        assert (await client.get("/v1/models")).status_code == 401
    scheme = document["components"]["securitySchemes"]["key"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert document["components"]["securitySchemes"]["header"]["name"] == "x-api-key"
    assert document["security"] == [{"key": []}, {"header": []}]
    assert "secret-key" not in str(document)
