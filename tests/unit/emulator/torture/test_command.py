"""The options of `worker-rkllm torture`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from common.setting_error import SettingError
from emulator.torture import command
from emulator.torture.shape import Api, list_shapes


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the reason for which the command refuses arguments with code 2."""
    try:
        code = command.main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else -1
    assert code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "--client is needed: the command that runs the client"),
        (("--client", "  "), "--client is needed: the command that runs the client"),
        (("--client", "x", "--timeout", "0"), "the timeout must be from 1 to 3600 seconds"),
        (("--client", "x", "--timeout", "soon"), "the timeout must be from 1 to 3600 seconds"),
        (("--client", "x", "--clients", "0"), "the number must be from 1 to 32"),
        (("--client", "x", "--clients", "all"), "the number must be from 1 to 32"),
        (("--client", "x", "--jsn", "x"), "unrecognized arguments: --jsn (did you mean --json?)"),
        (("--client", "x", "--json", "no/a.json"), "--json: there is no folder no"),
        (("--client", "x", "--json", "."), "--json: . is a folder"),
        (("--client", "x", "--junit-xml", "no/a.xml"), "--junit-xml: there is no folder no"),
    ],
)
def test_wrong_use_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: Sequence[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reason in refuse(capsys, *arguments)


def test_list_needs_no_client(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert capsys.readouterr().out.startswith("plain\n  The stream without a fault.\n")


def test_selected_shapes_are_those_with_the_names() -> None:
    shapes = list_shapes(Api.CHAT)
    assert command._select_shapes(shapes, None) is shapes
    selected = command._select_shapes(shapes, " bom, ,plain,bom")
    assert [each.name for each in selected] == ["bom", "plain"]
    with pytest.raises(SettingError, match='--shapes: "bon" is not a shape of the client\'s API'):
        command._select_shapes(shapes, "bon")
    with pytest.raises(SettingError, match="--shapes must name a shape"):
        command._select_shapes(shapes, ",")
