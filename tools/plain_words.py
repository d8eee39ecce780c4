"""`python tools/plain_words.py PATH...`: report vague names and hard-to-read phrases.

Checks names, docstrings and comments of Python files, the prose of Markdown files, and comments and
printed messages of makefiles, Dockerfiles, TOML files and shell scripts. The lists are short: a
word is on them because it once stood for several things in this project, and readers had to guess
which. docs/glossary.md has the terms to use instead.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Words that say how a value came instead of what it is.
VAGUE_WORDS = frozenset(
    "told tells said says asked given found heard seen shown whole over begun gone had most least "
    "tries again anew apart beside elsewhere meant wants wanted twins tidy looking looks".split()
)
# Usual terms that contain such a word.
USUAL_TERMS = re.compile(r"not_found|last_seen|at_most|at_least|most_likely|whole_seconds")
# Settings are public: their names stay.
SETTING_NAME = re.compile(r"(?:batch|webhook)_tries|BATCH_TRIES|WEBHOOK_TRIES")

# A pattern of prose, and what to write instead.
ODD_PHRASES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"(?i:\b(?:nobody|somebody|whoever)\b)", "name the role: client, worker, caller"),
        (r"(?i:\bthose (?:that|who|which)\b)", "name the things"),
        (r"\b(?:is|are|was|were|be|been) (?:told|said|heard)\b", "use send, log, return or notify"),
        (r"\b(?:tells?|says?|hears?) (?:of|whether)\b", "use return, report or log"),
        (
            r"(?i:\bin the same breath\b|\bfor ever\b|\banew\b|\bwould have it\b"
            r"|\bnothing any more\b|\bspeaks? on std)",
            "use the usual words",
        ),
        (
            r"(?:^|[.:;] )What (?!is|are|does|do|happens|if|to|it|you|a |an |the )\w+",
            "start with a verb",
        ),
        (r"(?:^|[.:;] )(?:Those|Whose)\b", "start with a verb or the subject"),
    )
)

_CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
# A comment behind code; the code before it has no open quote.
_TRAILING_COMMENT = re.compile(r"""^(?:[^"'#]|"[^"]*"|'[^']*')*\s#+\s+(.*)""")
_MESSAGE = re.compile(r"""\b(?:echo|printf)\s+(["'])(.*?)\1""")


@dataclass(frozen=True)
class Finding:
    """One name or phrase to change, and the advice for it."""

    path: Path
    line: int
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: {self.advice}"


def words_of(name: str) -> list[str]:
    """Split an identifier into its lower-case words."""
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().strip("_").split("_")


def is_vague(name: str) -> bool:
    """Return whether an identifier uses a word of the list."""
    if SETTING_NAME.search(name):
        return False
    words = USUAL_TERMS.sub("", "_".join(words_of(name))).split("_")
    return not VAGUE_WORDS.isdisjoint(words)


def defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of everything that a module defines or assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def comments_and_docstrings(source: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring and of each block of comments."""
    for node in ast.walk(tree):
        documented = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text
    yield from join_blocks(
        (token.start[0], token.string.lstrip("#: ").rstrip())
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )


def comments_and_messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment block and message of a file with `#` comments.

    A message is a quoted text behind `echo` or `printf`.
    """
    comments: list[tuple[int, str]] = []
    for line, text in enumerate(source.splitlines(), start=1):
        if text.lstrip().startswith("#"):
            if not text.startswith("#!"):
                comments.append((line, text.lstrip("#\t ").rstrip()))
            continue
        if comment := _TRAILING_COMMENT.match(text):
            yield line, comment[1]
        for message in _MESSAGE.finditer(text):
            yield line, message[2]
    yield from join_blocks(comments)


def join_blocks(comments: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join comments on consecutive lines; each block has the number of its first line."""
    block: list[str] = []
    last = first = 0
    for line, text in comments:
        if line != last + 1 and block:
            yield first, " ".join(block)
            block = []
        if not block:
            first = line
        block.append(text)
        last = line
    if block:
        yield first, " ".join(block)


def check_prose(path: Path, first_line: int, text: str) -> Iterator[Finding]:
    """Yield the odd phrases of a text; code in backticks is not prose."""
    # Same length, so that positions still give the line.
    prose = _INLINE_CODE.sub(lambda code: "`" * len(code[0]), text)
    for pattern, advice in ODD_PHRASES:
        for match in pattern.finditer(prose):
            line = first_line + prose.count("\n", 0, match.start())
            yield Finding(path, line, match[0].strip(".:; "), advice)


def check_python(path: Path) -> Iterator[Finding]:
    """Yield the findings in a Python file. Raises SyntaxError."""
    source = path.read_text()
    tree = ast.parse(source, str(path))
    for line, name in defined_names(tree):
        if is_vague(name):
            yield Finding(path, line, name, "name the thing it holds or the action it takes")
    for line, text in comments_and_docstrings(source, tree):
        yield from check_prose(path, line, text)


def check_markdown(path: Path) -> Iterator[Finding]:
    """Yield the findings in the prose of a Markdown file."""
    text = path.read_text()
    # Blocks of code leave their line breaks.
    prose = _CODE_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    yield from check_prose(path, 1, prose)


def has_hash_comments(path: Path) -> bool:
    """Return whether a file is a makefile, a Dockerfile, a TOML file or a shell script."""
    if path.name in ("Makefile", "Dockerfile") or path.suffix in (".toml", ".sh"):
        return True
    if path.suffix or not path.is_file():
        return False
    with path.open("rb") as file:
        return re.fullmatch(rb"#!.*\b(?:ba)?sh\s*", file.readline()) is not None


def check_configuration(path: Path) -> Iterator[Finding]:
    """Yield the findings in the comments and messages of a file with `#` comments."""
    for line, text in sorted(comments_and_messages(path.read_text())):
        yield from check_prose(path, line, text)


def check(roots: list[Path]) -> list[Finding]:
    """Return the findings below some files and folders, in order."""
    findings: list[Finding] = []
    for root in roots:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if "node_modules" in path.parts:
                continue
            if path.suffix == ".py":
                findings.extend(check_python(path))
            elif path.suffix == ".md":
                findings.extend(check_markdown(path))
            elif has_hash_comments(path):
                findings.extend(check_configuration(path))
    return findings


def main(arguments: list[str]) -> int:
    """Print the findings, one a line. Return 1 if there are any, else 0."""
    findings = check([Path(argument) for argument in arguments])
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
