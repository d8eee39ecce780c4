"""mkdocs hooks that add the files outside of docs/ to which pages link as pages of the site.

A link such as `../validation/rules.yaml` then works on the site as it does in the repository, and
the strict build reports broken links.
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
    """Add all decisions to the navigation in order, so that new ones need no change there."""
    docs = Path(config.docs_dir)
    decisions = sorted(path.relative_to(docs).as_posix() for path in docs.glob("decisions/*.md"))
    for entry in config.nav or []:
        if "Decisions" in entry:
            entry["Decisions"] = decisions
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of docs/ that a page links to, directly or indirectly."""
    root = Path(config.docs_dir).parent
    pending = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while pending:
        uri, text = pending.pop()
        for path in _linked(_path(uri), text, root):
            page_uri = _uri(path)
            if files.get_file_from_path(page_uri) is None:
                content = _as_page(path, (root / path).read_text(encoding="utf-8"))
                page = File.generated(
                    config, page_uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV
                )
                files.append(page)
                if path.endswith(".md"):
                    pending.append((page_uri, content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links to files outside of docs/ to their pages, and links from those pages back."""
    page_path = _path(page.file.src_uri)

    def redirect_link(match: re.Match[str]) -> str:
        uri = _uri(posixpath.normpath(posixpath.join(posixpath.dirname(page_path), match[1])))
        if files.get_file_from_path(uri) is None:
            return match[0]
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri))

    return _LINK.sub(redirect_link, markdown)


def _linked(page_path: str, text: str, root: Path) -> Iterator[str]:
    """Yield the repository paths of the files outside of docs/ that a page links to."""
    for target in _LINK.findall(text):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page_path), target))
        if not path.startswith(("../", "docs/")) and (root / path).is_file():
            yield path


def _path(uri: str) -> str:
    """Return a page's path in the repository."""
    folder, _, rest = uri.partition("/")
    return rest if folder == FOLDER else f"docs/{uri}"


def _uri(path: str) -> str:
    """Return the page URI of a file in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{FOLDER}/{path}" if path.endswith(".md") else f"{FOLDER}/{path}.md"


def _as_page(path: str, text: str) -> str:
    """Return a file's text as Markdown; other formats become a code block."""
    if path.endswith(".md"):
        return text
    suffix = posixpath.splitext(path)[1]
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    language = _LANGUAGES.get(suffix, suffix.removeprefix("."))
    return f"# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"
