"""The documentation's site loads nothing from other servers, and its build refuses dead links."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The attributes that a browser fetches automatically, unlike links.
FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("use", "href")}
CONFIG = """
INHERIT: {root}/mkdocs.yml
docs_dir: docs
site_dir: site
hooks: ["{root}/tools/site.py"]
nav: [{{Decisions: []}}, page.md]
"""


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            str(Path(sys.executable).with_name("mkdocs")),
            "build",
            "-f",
            str(config),
            "-d",
            str(site),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    return folder


class FetchedAddresses(HTMLParser):
    """Collects the addresses that a page makes the browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "link" and dict(attrs).get("rel") in ("canonical", "prev", "next"):
            return
        self.addresses += [value or "" for name, value in attrs if (tag, name) in FETCHED]


def fetched(site: Path) -> Iterator[tuple[str, str]]:
    for path in site.rglob("*.html"):
        page = FetchedAddresses()
        page.feed(path.read_text(encoding="utf-8"))
        yield from ((path.name, address) for address in page.addresses)


@pytest.mark.long
def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    addresses = list(fetched(site))
    assert len(addresses) > 100
    assert [each for each in addresses if "//" in each[1]] == []


@pytest.mark.long
def test_no_page_has_a_diagram_whose_program_would_be_fetched(site: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert not any('class="mermaid"' in page for page in pages)


@pytest.mark.long
def test_a_file_outside_of_the_folder_is_a_page_where_one_links_to_it(site: Path) -> None:
    rules = (site / "repository" / "validation" / "rules.yaml.html").read_text(encoding="utf-8")
    assert "template_token" in rules
    assert 'href="repository/validation/rules.yaml.html"' in (site / "validation.html").read_text()


@pytest.mark.long
def test_every_decision_is_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    for path in (ROOT / "docs" / "decisions").glob("*.md"):
        assert f'href="decisions/{path.stem}.html"' in index


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "refusal"),
    [
        ("[There](../there.md) and [here](#here)\n\n## Here", ""),
        ("[nowhere](nowhere.md)", "nowhere.md"),
        ("[nowhere](../nowhere.yaml)", "../nowhere.yaml"),
        ("[nowhere](page.md#nowhere)", "#nowhere"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(page: str, refusal: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(f"# Page\n\n{page}\n")
    (tmp_path / "there.md").write_text("# There\n")
    (tmp_path / "mkdocs.yml").write_text(CONFIG.format(root=ROOT))

    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")

    assert built.returncode == (1 if refusal else 0), built.stderr
    assert refusal in built.stderr
    if not refusal:
        addresses = [address for _, address in fetched(tmp_path / "site")]
        assert len(addresses) > 10
        assert [each for each in addresses if "//" in each] == []
