"""The file that a project's image starts, in the forms of public Dockerfiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.autoscaling.program.dockerfile import ImageStart, read_image_start


def started_file(project: Path, dockerfile: str, *files: str) -> str | None:
    """Return the file that the Dockerfile of a project with these files starts."""
    for name in files:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    (project / "Dockerfile").write_text(dockerfile)
    start = read_image_start(project)
    assert start is not None
    return None if start.file is None else str(start.file.relative_to(project))


@pytest.mark.parametrize(
    "command",
    [
        'CMD ["python3", "-u", "/app/worker.py"]',
        'CMD [ "python", "worker.py" ]',
        "CMD\tpython -u worker.py",
        "cmd exec python -u /app/worker.py --port 1",
        'CMD ["python", \\\n  # unbuffered\n  "-u", \\\n\n  "worker.py"]',
        'CMD ["bash", "-lc", "cd /app && python download.py && python -u worker.py"]',
        "CMD python download.py && python worker.py",
        'ENTRYPOINT ["python", "-u", "worker.py"]',
        'ENTRYPOINT ["/usr/bin/tini", "--"]\nCMD ["python", "worker.py"]',
        'CMD ["python", "download.py"]\nCMD ["python", "worker.py"]',
        'CMD ["python", "worker.py"]\nHEALTHCHECK --interval=9s \\\n  CMD python download.py',
        "CMD python worker.py\nRUN <<EOF\nCMD python download.py\nEOF\nRUN cat <<< CMD",
    ],
)
def test_command_in_any_form_names_the_file(tmp_path: Path, command: str) -> None:
    text = f"FROM python:3.12\nWORKDIR /app\nCOPY . .\n{command}\n"
    assert started_file(tmp_path, text, "worker.py", "download.py") == "worker.py"


@pytest.mark.parametrize(
    ("copies", "path", "files", "expected"),
    [
        ("ADD src .", "/main.py", ["main.py", "src/main.py"], "src/main.py"),
        ("COPY --chown=1:1 src/ /app/", "/app/main.py", ["src/main.py"], "src/main.py"),
        ("COPY src/main.py /", "/main.py", ["main.py", "src/main.py"], "src/main.py"),
        ("COPY src/*.py /w/", "/w/main.py", ["main.py", "src/main.py"], "src/main.py"),
        ("COPY a/main.py /start.py", "/start.py", ["a/main.py"], "a/main.py"),
        ('COPY ["a/main.py", "/w/"]', "/w/main.py", ["a/main.py"], "a/main.py"),
        ("WORKDIR /w\nCOPY a/main.py x/", "x/main.py", ["a/main.py"], "a/main.py"),
        ("COPY a /w\nCOPY b /w", "/w/main.py", ["a/main.py", "b/main.py"], "b/main.py"),
        ("COPY --from=base a /w", "/w/main.py", ["a/main.py", "main.py"], "main.py"),
        ("COPY ../main.py /", "/main.py", ["main.py"], "main.py"),
        ("", "/app/src/main.py", ["main.py", "src/main.py"], "src/main.py"),
        ("WORKDIR $ROOT", "main.py", ["main.py"], "main.py"),
        ("", "$ROOT/main.py", ["main.py"], "main.py"),
        ("", "/app/main.py", [], None),
    ],
)
def test_path_in_the_image_is_resolved_in_the_project(
    tmp_path: Path, copies: str, path: str, files: list[str], expected: str | None
) -> None:
    text = f'FROM scratch\n{copies}\nCMD ["python", "{path}"]\n'
    assert started_file(tmp_path, text, *files) == expected


def test_last_stage_counts_and_inherits_from_its_base(tmp_path: Path) -> None:
    text = """\
FROM python AS base
WORKDIR /app
COPY src /app
CMD python main.py
FROM node AS pages
CMD python pages.py
FROM --platform=linux/amd64 BASE as last
"""
    assert started_file(tmp_path, text, "src/main.py", "main.py", "pages.py") == "src/main.py"


def test_dockerfile_in_runpods_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / ".runpod").mkdir()
    (tmp_path / ".runpod" / "Dockerfile").write_text("COPY a.py /\nCMD python /a.py")
    assert started_file(tmp_path, "CMD python b.py", "a.py", "b.py") == "a.py"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ('CMD ["/start.sh"]', ImageStart("/start.sh", None)),
        ("CMD python  -m my.worker", ImageStart("python -m my.worker", None)),
        (f"CMD {'x' * 200}", ImageStart("x" * 99 + "…", None)),
        ("FROM base", None),
        ("CMD", None),
        ("\\", None),
        ("COPY\nFROM\nCMD []", None),
        ("CMD " + "[" * 100_000, ImageStart("[" * 99 + "…", None)),
        ("CMD python 'x", ImageStart("python 'x", None)),
    ],
)
def test_command_without_a_file_is_reported(
    tmp_path: Path, text: str, start: ImageStart | None
) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    assert read_image_start(tmp_path) == start
    assert (start is not None and start.is_script) is text.endswith('.sh"]')


def test_folder_without_a_dockerfile_has_no_start(tmp_path: Path) -> None:
    assert read_image_start(tmp_path) is None
