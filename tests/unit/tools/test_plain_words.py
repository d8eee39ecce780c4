"""The check of names and prose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.plain_words import check, is_vague, main

PYTHON = '''\
"""{docstring}"""

# {comment}
{name} = 1
'''


def python_file(
    folder: Path,
    docstring: str = "Count jobs.",
    comment: str = "The client retries.",
    name: str = "count",
) -> Path:
    path = folder / "module.py"
    path.write_text(PYTHON.format(docstring=docstring, comment=comment, name=name))
    return path


@pytest.mark.parametrize(
    "name", ["told", "_told_s", "jobSeen", "MOST_BYTES", "GivenName", "not_found_told"]
)
def test_is_vague_finds_a_word_in_any_spelling(name: str) -> None:
    assert is_vague(name)


@pytest.mark.parametrize(
    "name",
    ["jobs", "toldo", "not_found", "ModelNotFound", "almost", "batch_tries", "_WEBHOOK_TRIES"],
)
def test_is_vague_allows_public_and_longer_names(name: str) -> None:
    assert not is_vague(name)


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "def told() -> None: ...",
        "async def f(*, told: int) -> None: ...",
        "class Told: ...",
        "self.told = 1",
        "for told in (): ...",
    ],
)
def test_check_finds_names_wherever_they_are_defined(tmp_path: Path, source: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    [finding] = check([tmp_path])
    assert finding.text.lower() == "told"
    assert finding.line == 1


def test_check_ignores_uses_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("print(library.told, told(given=1))\n")
    assert check([path]) == []


def test_check_finds_phrases_in_docstrings_and_comments(tmp_path: Path) -> None:
    path = python_file(tmp_path, docstring="Wait.\n\nNobody waits.", comment="The job is told of.")
    assert [(each.line, each.text) for each in check([path])] == [(3, "Nobody"), (5, "is told")]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("What begins a job.", "What begins"),
        ("Waits: whoever asks.", "whoever"),
        ("It waits for ever.", "for ever"),
        ("Those left over.", "Those"),
        ("It tells whether a job waits.", "tells whether"),
    ],
)
def test_check_finds_each_kind_of_phrase(tmp_path: Path, text: str, phrase: str) -> None:
    assert [finding.text for finding in check([python_file(tmp_path, docstring=text)])] == [phrase]


@pytest.mark.parametrize(
    "text", ["Return what it has.", "What is checked: `nobody`.", "The value is kept forever."]
)
def test_check_accepts_plain_sentences(tmp_path: Path, text: str) -> None:
    assert check([python_file(tmp_path, docstring=text)]) == []


def test_check_reads_the_prose_of_pages_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```sh\necho nobody\n```\n\nThe user `nobody` is\n\nnobody.\n")
    [finding] = check([tmp_path])
    assert (finding.line, finding.text) == (9, "nobody")


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile", "pyproject.toml", "install.sh", "run"])
def test_check_reads_comments_and_messages_of_build_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(
        "#!/usr/bin/env bash\n# The client\n# nobody waits for.\n\necho 'It runs anew.'\n"
    )
    assert [(each.line, each.text) for each in check([path])] == [(2, "nobody"), (5, "anew")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("test: .venv ## the suite, for whoever asks", "whoever"),
        ("\t@echo 'Installing anew' >&2", "anew"),
        ('\t\techo "Nobody is there." >&2; exit 1; }', "Nobody"),
        ("    printf '== anew: %s\\n' \"$name\"", "anew"),
        ('ignore = ["S603"]  # The rule would have it.', "would have it"),
        ("    # Indented: for ever.", "for ever"),
    ],
)
def test_check_finds_phrases_in_each_kind_of_text_of_a_makefile(
    tmp_path: Path, line: str, text: str
) -> None:
    path = tmp_path / "Makefile"
    path.write_text(f"first:\n{line}\n")
    assert [(each.line, each.text) for each in check([path])] == [(2, text)]


@pytest.mark.parametrize(
    "line", ["user = nobody", "key = 'a # nobody'", "${each#*nobody}", "# The user is `nobody`."]
)
def test_check_ignores_commands_and_values_of_a_makefile(tmp_path: Path, line: str) -> None:
    path = tmp_path / "Makefile"
    path.write_text(f"{line}\n")
    assert check([path]) == []


@pytest.mark.parametrize("name", ["notes.txt", "run"])
def test_check_ignores_other_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("# nobody\n")
    assert check([tmp_path]) == []


def test_main_prints_findings_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = python_file(tmp_path, name="told")
    assert main([str(path)]) == 1
    expected = f"{path}:4: 'told': name the thing it holds or the action it takes\n"
    assert capsys.readouterr().out == expected
    assert main([str(python_file(tmp_path))]) == 0


def test_check_leaves_out_installed_packages(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "package"
    package.mkdir(parents=True)
    (package / "README.md").write_text("Nobody waits.\n")
    assert check([tmp_path]) == []
