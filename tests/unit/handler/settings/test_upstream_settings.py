"""The settings of servers with OpenAI's API."""

from __future__ import annotations

import httpx2
import pytest

from common.setting_error import SettingError
from handler.settings.shared_settings import read_settings
from handler.settings.upstream_models import resolve_upstream_models
from handler.settings.worker_settings import WorkerSettings


def read(monkeypatch: pytest.MonkeyPatch, **environment: str) -> WorkerSettings:
    values = {"ENGINE": "openai", "UPSTREAM_URL": "http://a:8000"} | environment
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return read_settings(WorkerSettings)


@pytest.mark.parametrize(
    "url",
    [
        "http://a:8000,http://[::1]:8000/v1/",
        "https://user:password@a/api/v1",
    ],
)
def test_addresses_of_servers_are_accepted(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert read(monkeypatch, UPSTREAM_URL=url).upstream_url == url


@pytest.mark.parametrize(
    "url",
    [
        "a:8000",
        "http://a:99999",
        "http://a/openai/v1?api-version=1",
        "http://a/v1/chat/completions",
        "http://a/v1/models/",
        "http://a,http://",
    ],
)
def test_other_addresses_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, UPSTREAM_URL=url)
    assert "UPSTREAM_URL: Value error, must" in capsys.readouterr().err


def test_refused_address_is_shown_without_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, UPSTREAM_URL="http://user:password@a/v1?key=x")
    message = capsys.readouterr().err
    assert "http://***@a/v1" in message
    assert "password" not in message


def test_line_end_of_a_key_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, UPSTREAM_KEY="secret\n").upstream_secret == "secret"
    assert read(monkeypatch, UPSTREAM_KEY=" ").upstream_secret is None


@pytest.mark.parametrize("key", ["sec\nret", "s\u00e9cret"])
def test_key_that_fits_no_header_is_refused_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    with pytest.raises(SystemExit):
        read(monkeypatch, UPSTREAM_KEY=key)
    message = capsys.readouterr().err
    assert "UPSTREAM_KEY: Value error, must" in message
    assert "cret" not in message


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (httpx2.Response(401), "http://\\*\\*\\*@a/v1/models refuses UPSTREAM_KEY"),
        (httpx2.Response(308, headers={"location": "https://a/"}), "redirects to https://a/"),
    ],
)
def test_server_that_will_never_list_its_models_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, answer: httpx2.Response, expected: str
) -> None:
    def get(url: str, **_: object) -> httpx2.Response:
        answer.request = httpx2.Request("GET", url)
        return answer

    settings = read(monkeypatch, UPSTREAM_URL="http://user:password@a")
    monkeypatch.setattr(httpx2, "get", get)
    with pytest.raises(SettingError, match=expected):
        resolve_upstream_models(settings)
