"""Static files: ETags, the compressed form, revalidation."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from starlette.requests import Request

from emulator.http.static_files import Asset, load_asset, send_asset


def request(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/x", "headers": pairs})


@pytest.fixture
def asset(tmp_path: Path) -> Asset:
    path = tmp_path / "page.css"
    path.write_text("body { margin: 0 }\n" * 100)
    return load_asset(path, compress=True)


def test_load_asset_has_the_content_type_of_the_suffix(asset: Asset) -> None:
    assert asset.content_type == "text/css; charset=utf-8"


def test_load_asset_is_the_same_for_the_same_bytes(tmp_path: Path, asset: Asset) -> None:
    copy = tmp_path / "copy.css"
    copy.write_bytes(asset.body)
    assert load_asset(copy, compress=True) == asset
    copy.write_bytes(asset.body + b"\n")
    assert load_asset(copy).etag != asset.etag


def test_send_asset_compresses_for_clients_that_accept_it(asset: Asset) -> None:
    plain = send_asset(request(), asset, {})
    compressed = send_asset(request(accept_encoding="br, gzip"), asset, {})
    assert plain.body == asset.body
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(bytes(compressed.body)) == asset.body
    assert len(compressed.body) < len(plain.body)
    assert plain.headers["vary"] == compressed.headers["vary"] == "accept-encoding"


def test_send_asset_has_an_etag_for_each_form(asset: Asset) -> None:
    plain = send_asset(request(), asset, {})
    compressed = send_asset(request(accept_encoding="gzip"), asset, {})
    assert plain.headers["etag"] != compressed.headers["etag"]


@pytest.mark.parametrize("accepted", ["", "gzip"])
@pytest.mark.parametrize("weak", ["", "W/"])
def test_send_asset_answers_304_when_the_client_has_the_form(
    asset: Asset, accepted: str, weak: str
) -> None:
    etag = send_asset(request(accept_encoding=accepted), asset, {}).headers["etag"]
    known = request(accept_encoding=accepted, if_none_match=f'"other", {weak}{etag}')
    second = send_asset(known, asset, {"x-content-type-options": "nosniff"})
    assert second.status_code == 304
    assert second.body == b""
    assert second.headers["etag"] == etag
    assert second.headers["x-content-type-options"] == "nosniff"


def test_send_asset_sends_the_file_when_the_client_has_another(asset: Asset) -> None:
    assert send_asset(request(if_none_match='"other"'), asset, {}).status_code == 200
