"""What mkdocs.yml's site has beside docs/: the files elsewhere that its pages link to, as pages.

So a link such as `../validation/rules.yaml` leads to the file on the site as it does in the
repository, and the strict build finds those that lead nowhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

FOLDER = "repository"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")
_LANGUAGES = {".mjs": "javascript", ".sh": "bash", ".yml": "yaml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put all decisions into the navigation, in their order: each new one would be forgotten."""
    docs = Path(config.docs_dir)
    found = sorted(path.relative_to(docs).as_posix() for path in docs.glob("decisions/*.md"))
    for entry in config.nav or []:
        if "Decisions" in entry:
            entry["Decisions"] = found
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of docs/ that a page links to, and that those link to."""
    root = Path(config.docs_dir).parent
    waiting = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        uri, text = waiting.pop()
        for path in _linked(_path(uri), text, root):
            added = _uri(path)
            if files.get_file_from_path(added) is None:
                content = _as_page(path, (root / path).read_text(encoding="utf-8"))
                page = File.generated(
                    config, added, content=content, inclusion=InclusionLevel.NOT_IN_NAV
                )
                files.append(page)
                if path.endswith(".md"):
                    waiting.append((added, content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to the pages that stand for those files, and back."""
    here = _path(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        uri = _uri(posixpath.normpath(posixpath.join(posixpath.dirname(here), match[1])))
        if files.get_file_from_path(uri) is None:
            return match[0]
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))

    return _LINK.sub(led, markdown)


def _linked(here: str, text: str, root: Path) -> Iterator[str]:
    """Find the files outside of docs/ that a page links to, by their paths in the repository."""
    for target in _LINK.findall(text):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        if not path.startswith(("../", "docs/")) and (root / path).is_file():
            yield path


def _path(uri: str) -> str:
    """Return a page's path in the repository."""
    folder, _, rest = uri.partition("/")
    return rest if folder == FOLDER else f"docs/{uri}"


def _uri(path: str) -> str:
    """Return the page that stands for a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{FOLDER}/{path}" if path.endswith(".md") else f"{FOLDER}/{path}.md"


def _as_page(path: str, text: str) -> str:
    """Return a file as Markdown: what is none is shown as code."""
    if path.endswith(".md"):
        return text
    suffix = posixpath.splitext(path)[1]
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    language = _LANGUAGES.get(suffix, suffix.removeprefix("."))
    return f"# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"
