"""The sanitiser must not change thousands of real texts from installed packages."""

import ast
import gzip
import os
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
# The lengths of passages, in turn; short files and docstrings are not split.
SIZES = (200, 500, 1_200, 2_500)
# The maximum number of passages of each kind.
LONG_COUNTS = {"readme": 1_200, "text": 400, "docstring": 1_600, "code": 1_600, "debian": 2_400}
SHORT_COUNTS = {"readme": 1_000, "text": 400, "docstring": 500, "code": 500, "debian": 300}
# Passages of prose that a rule rightly changes. Debian's documentation differs between machines,
# so the sample may lack them.
TRUE_POSITIVES = {
    "Summer of Code project!!!!!": "five exclamation marks behind a sentence of release notes"
}

T = TypeVar("T")


class Passage(NamedTuple):
    kind: str
    source: Path
    text: str


def sample_evenly(items: Sequence[T], count: int) -> list[T]:
    """Return `count` items at equal distances, starting with the first."""
    if len(items) <= count:
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]


def read(path: Path) -> str:
    """Return the text of a file, or an empty text if it is not UTF-8."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, UnicodeDecodeError, gzip.BadGzipFile):
        return ""


def passages(text: str) -> Iterator[str]:
    """Yield a short text as a whole, and texts in groups of paragraphs."""
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
def list_tree(root: Path) -> list[Path]:
    paths: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [each for each in folders if each != "__pycache__"]
        paths += [Path(folder, name) for name in names]
    return sorted(paths)


def list_files(root: Path, *endings: str) -> list[Path]:
    return [path for path in list_tree(root) if path.name.endswith(endings) and path.is_file()]


def passages_of_kind(kind: str, file_count: int) -> Iterator[tuple[Path, Iterable[str]]]:
    """Yield an even sample of the files of a kind, with their passages."""
    if kind == "readme":
        for path in list_files(SITE, "METADATA"):
            yield path, passages(read(path).partition("\n\n")[2])
    elif kind == "text":
        for path in list_files(SITE, ".md", ".rst", ".txt"):
            yield path, passages(read(path))
    elif kind == "debian":
        papers = [path for path in list_files(DEBIAN, "") if ".html" not in path.suffixes]
        for path in sample_evenly(papers, file_count):
            yield path, passages(read(path))
    else:
        library = [path for path in list_files(LIBRARY, ".py") if "site-packages" not in path.parts]
        for path in sample_evenly([*list_files(SITE, ".py"), *library], file_count):
            yield path, (docstrings if kind == "docstring" else passages)(read(path))


@pytest.fixture(scope="module")
def sample_passages(scale: int) -> list[Passage]:
    counts, file_count = (SHORT_COUNTS, 150) if scale == 1 else (LONG_COUNTS, 600)
    sample = []
    for kind, count in counts.items():
        all_ = [
            Passage(kind, path, text)
            for path, texts in passages_of_kind(kind, file_count)
            for text in texts
        ]
        sample += sample_evenly(all_, count)
    return sample


@pytest.fixture(scope="module")
def sanitizer() -> Sanitizer:
    return Sanitizer(load_rules().sanitizer)


def test_real_passages_are_unchanged(sample_passages: list[Passage], sanitizer: Sanitizer) -> None:
    counts = Counter(passage.kind for passage in sample_passages)
    size = sum(len(passage.text) for passage in sample_passages)
    print(f"{len(sample_passages)} passages, {size} characters: {dict(counts)}")  # noqa: T201
    # Debian's passages do not count, because the machine may have none of them.
    assert len(sample_passages) - counts["debian"] >= 2_000
    assert all(counts[kind] >= 100 for kind in SHORT_COUNTS if kind != "debian")
    changed = []
    for kind, source, text in sample_passages:
        cleaned, removals = sanitizer.clean(text, "How does this work?", "You are an assistant.")
        is_expected = any(words in text for words in TRUE_POSITIVES)
        # Six empty lines are too many wherever they come from, and some package has them.
        kept = [removal for removal in removals if removal.rule != "blank_lines"]
        if removals and not kept:
            continue
        if (cleaned != text or removals) and not is_expected:
            changed.append((kind, source.name, [(r.rule, text[r.start : r.end]) for r in removals]))
    assert changed == []


@pytest.mark.long
def test_tokens_around_real_passages_are_removed(
    sample_passages: list[Passage], sanitizer: Sanitizer
) -> None:
    changed = []
    for kind, source, text in sample_passages:
        passage = text.strip()
        # The same as without tokens: of some package's texts, six blank lines become one.
        passage, _ = sanitizer.clean(passage)
        cleaned, _ = sanitizer.clean(f"<|im_start|>assistant\n{passage}<|im_end|>\n")
        # A text about such tokens keeps them all, and some package documents them.
        is_expected = "<|" in text or any(words in text for words in TRUE_POSITIVES)
        if cleaned != passage and not is_expected:
            changed.append((kind, source.name, passage[:80], passage[-80:], cleaned[-80:]))
    assert changed == []
