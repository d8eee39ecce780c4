"""Thousands of real texts that the sanitiser must not change, read from what is installed."""

import ast
import gzip
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from validation.rules import load_rules
from validation.sanitizer import Sanitizer

SITE = Path(sysconfig.get_path("purelib"))
LIBRARY = Path(sysconfig.get_path("stdlib"))
DEBIAN = Path("/usr/share/doc")
LONGEST = 4_000
# How long passages are, in turn; whole files and docstrings are as long as they are.
SIZES = (200, 500, 1_200, 2_500)
# How many of each kind, at most.
WANTED = {"readme": 1_200, "text": 400, "docstring": 1_600, "code": 1_600, "debian": 2_400}
# Passages which have in prose just what a rule is for. Debian's documentation is another one on
# every machine, so a passage may be among the chosen or not.
MEANT = {"Summer of Code project!!!!!": "five exclamation marks behind a sentence of release notes"}

T = TypeVar("T")


class Passage(NamedTuple):
    kind: str
    source: Path
    text: str


def spaced(items: Sequence[T], wanted: int) -> list[T]:
    """As many as wanted, the first one and then at equal distances."""
    if len(items) <= wanted:
        return list(items)
    return [items[number * len(items) // wanted] for number in range(wanted)]


def read(path: Path) -> str:
    """A file's text, nothing if it is none."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, UnicodeDecodeError, gzip.BadGzipFile):
        return ""


def passages(text: str) -> Iterator[str]:
    """A text as a whole if it is short, and in pieces of whole paragraphs."""
    if 200 <= len(text) <= LONGEST:
        yield text
    piece, number = "", 0
    for paragraph in re.split(r"(?<=\n)(?=\n)", text):
        piece += paragraph
        if len(piece) >= SIZES[number % len(SIZES)]:
            if len(piece) <= LONGEST:
                yield piece.strip("\n")
            piece, number = "", number + 1
    if len(piece) >= 200:
        yield piece[:LONGEST]


def docstrings(source: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if 100 <= len(text) <= LONGEST:
                yield text


@cache
def tree(root: Path) -> list[Path]:
    paths = (path for path in root.rglob("*") if "__pycache__" not in path.parts)
    return sorted(path for path in paths if path.is_file())


def files(root: Path, *endings: str) -> list[Path]:
    return [path for path in tree(root) if path.name.endswith(endings)]


def of_kind(kind: str) -> Iterator[tuple[Path, Iterable[str]]]:
    """The files of a kind, evenly chosen where there are too many to read, with their passages."""
    if kind == "readme":
        for path in files(SITE, "METADATA"):
            yield path, passages(read(path).partition("\n\n")[2])
    elif kind == "text":
        for path in files(SITE, ".md", ".rst", ".txt"):
            yield path, passages(read(path))
    elif kind == "debian":
        papers = [path for path in files(DEBIAN, "") if ".html" not in path.suffixes]
        for path in spaced(papers, 600):
            yield path, passages(read(path))
    else:
        library = [path for path in files(LIBRARY, ".py") if "site-packages" not in path.parts]
        for path in spaced([*files(SITE, ".py"), *library], 400):
            yield path, (docstrings if kind == "docstring" else passages)(read(path))


@pytest.fixture(scope="module")
def chosen() -> list[Passage]:
    found = []
    for kind, wanted in WANTED.items():
        all_ = [Passage(kind, path, text) for path, texts in of_kind(kind) for text in texts]
        found += spaced(all_, wanted)
    return found


@pytest.fixture(scope="module")
def sanitizer() -> Sanitizer:
    return Sanitizer(load_rules().sanitizer)


def test_nothing_changes_in_thousands_of_real_passages(
    chosen: list[Passage], sanitizer: Sanitizer
) -> None:
    counts = Counter(passage.kind for passage in chosen)
    size = sum(len(passage.text) for passage in chosen)
    print(f"{len(chosen)} passages, {size} characters: {dict(counts)}")  # noqa: T201
    # What Debian brings is on top: the machine may have none of it.
    assert len(chosen) - counts["debian"] >= 2_000
    assert all(counts[kind] >= 100 for kind in WANTED if kind != "debian")
    changed = []
    for kind, source, text in chosen:
        cleaned, removals = sanitizer.clean(text, "How does this work?", "You are an assistant.")
        is_meant = any(words in text for words in MEANT)
        # Six empty lines are too many wherever they come from, and some package has them.
        kept = [removal for removal in removals if removal.rule != "blank_lines"]
        if removals and not kept:
            continue
        if (cleaned != text or removals) and not is_meant:
            changed.append((kind, source.name, [(r.rule, text[r.start : r.end]) for r in removals]))
    assert changed == []


def test_tokens_around_real_passages_go_and_the_passages_stay(
    chosen: list[Passage], sanitizer: Sanitizer
) -> None:
    changed = []
    for kind, source, text in chosen:
        passage = text.strip()
        # The same as without tokens: of some package's texts, six blank lines become one.
        passage, _ = sanitizer.clean(passage)
        cleaned, _ = sanitizer.clean(f"<|im_start|>assistant\n{passage}<|im_end|>\n")
        # A text about such tokens keeps them all, and some package documents them.
        is_meant = "<|" in text or any(words in text for words in MEANT)
        if cleaned != passage and not is_meant:
            changed.append((kind, source.name, passage[:80], passage[-80:], cleaned[-80:]))
    assert changed == []
