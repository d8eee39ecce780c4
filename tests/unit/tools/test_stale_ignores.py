"""The check for exceptions of ruff that no file needs."""

from __future__ import annotations

from pathlib import Path

from tools.stale_ignores import find_stale_ignores

PROJECT = """\
[tool.ruff.lint]
select = ["E7", "F", "T20"]
[tool.ruff.lint.per-file-ignores]
"code/**" = ["F401", "E711"]
"**/__main__.py" = ["T20"]
"other/**" = ["F"]
"""


def test_find_stale_ignores_names_the_rules_that_find_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for folder in ("code", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "code" / "unused.py").write_text("import os\n")
    (tmp_path / "code" / "__main__.py").write_text("print(1)\n")
    (tmp_path / "other" / "clean.py").write_text("a = None\n")
    assert list(find_stale_ignores(tmp_path)) == [
        'pyproject.toml: "code/**" ignores E711, which finds nothing there',
        'pyproject.toml: "other/**" ignores F, which finds nothing there',
    ]
