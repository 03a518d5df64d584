"""The site that `make docs` builds: no warning, no dead link, nothing from a network, and what it says of the code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import browser
import pytest

import clusterfl
from clusterfl.cli.program import _parser
from clusterfl.clustering import CLUSTERERS
from clusterfl.clustering.distances import METRICS
from clusterfl.config.study import Study
from clusterfl.data import DATASETS, PARTITIONS
from clusterfl.engine.training import Training
from clusterfl.methods import METHODS
from clusterfl.models import MODELS
from clusterfl.simulation.method import Method

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # all need the site, whose build takes 16 s of a core

WITHOUT = """
import socket, sys
def refuse(*_): raise OSError("the site is built without a network")
socket.socket.connect = refuse
from sphinx.cmd.build import main
sys.exit(main(sys.argv[1:]))
"""


class Page(HTMLParser):
    """Where a page links to, what it loads, and the anchors that it has."""

    LOADS: ClassVar = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        load = found.get(self.LOADS.get(tag, ""))
        if load and not load.startswith("#"):
            self.loads.append(load)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it as `make docs` does, an older version's folder beside it, with every connection refused."""
    folder = tmp_path_factory.mktemp("site")
    older = folder / "0.0.9/index.html"
    older.parent.mkdir()
    older.write_text("older")
    line = re.search(r"^\tsphinx-build (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    words = line[1].replace("$(VERSION)", clusterfl.__version__).replace('"', "").split()
    arguments = [re.sub(r"^site/", f"{folder}/", word) for word in words]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()
    return folder / clusterfl.__version__


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # Pages of `claims` and others that are copied as they are have tests of their own.
    ours = [path for path in site.rglob("*.html") if path.name != "claims.html"]
    return {path: Page(path.read_text(encoding="utf-8")) for path in [*ours, site.parent / "index.html"]}


def test_every_link_leads_to_a_file_and_an_anchor(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 60
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("https", "mailto"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                dead.append((path.name, link, "no such file"))
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                dead.append((path.name, link, "no such anchor"))
    assert not dead, dead


def test_nothing_comes_from_a_network(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for load in page.loads:
            assert not urlsplit(load).scheme or load.startswith("data:"), (path, load)
            assert not load.startswith("//"), (path, load)
            assert (path.parent / urlsplit(load).path).is_file(), (path, load)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def words(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def documented() -> Iterator[tuple[str, str]]:
    """Yield what must be found where: an anchor or a word of a page."""
    for table, page in ((PARTITIONS, "data"), (DATASETS, "data"), (MODELS, "models"), (METRICS, "distances")):
        for name in table:
            yield page, name
    yield from (("distances", name) for name in CLUSTERERS)
    yield from (("settings", name) for name in [*Study.model_fields, *Training.model_fields])
    yield from (("method", name) for name in vars(Method) if not name.startswith("_"))
    (commands,) = (action for action in _parser()._actions if action.dest == "command")
    assert isinstance(commands.choices, dict)
    yield from (("commands", f"usage: clusterfl {name}") for name in commands.choices)
    yield from (("notebook", f"clusterfl.api.{name}") for name in ("load", "run", "Result"))


def test_the_reference_has_every_part_setting_hook_and_command(site: Path) -> None:
    texts = {page: words(site / f"docs/api/{page}.html") for page in {page for page, _ in documented()}}
    missing = [
        (page, name)
        for page, name in documented()
        if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", texts[page])
    ]
    assert not missing


def test_every_method_is_in_the_side_bar_and_the_search(site: Path) -> None:
    front = (site / "README.html").read_text(encoding="utf-8")
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    listed = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["docnames"]
    for name in METHODS:
        assert f'href="docs/methods/{name}.html"' in front, name
        assert f"docs/methods/{name}" in listed, name


def test_it_says_which_version_and_where_the_others_are(site: Path) -> None:
    assert f"Version {clusterfl.__version__}" in words(site / "docs/methods/ifca.html")
    rows = re.findall(r'<li><a href="([^"]+)">', (site.parent / "index.html").read_text(encoding="utf-8"))
    assert rows == [f"{clusterfl.__version__}/index.html", "0.0.9/index.html"]
    assert 'url=README.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_formulas_are_mathml_and_code_can_be_copied(site: Path) -> None:
    text = (site / "docs/methods/fedpac.html").read_text(encoding="utf-8")
    assert text.count("<math") > 10 and "$$" not in words(site / "docs/methods/fedpac.html")
    assert "copybutton.js" in text


@pytest.fixture
def window(tmp_path: Path) -> Iterator[browser.Browser]:
    if browser.find() is None:
        pytest.skip(f"none of {', '.join(browser.NAMES)} is installed")
    opened = browser.Browser(tmp_path)
    yield opened
    opened.close()


def test_the_search_finds_without_a_server(site: Path, window: browser.Browser) -> None:
    window.call("Page.navigate", url=f"{(site / 'search.html').as_uri()}?q=nnls+shares")
    window.until("document.querySelector('#search-results a[href*=\"docs/methods/fedpac.html\"]') !== null")
    assert all(url.startswith(("file:", "data:", "about:")) for url in window.requests)


@pytest.mark.parametrize("page", ["README", "docs/methods/fedpac", "docs/api/settings", "docs/notebooks/compare"])
def test_a_page_fits_a_telephone(page: str, site: Path, window: browser.Browser) -> None:
    """What is wider than the window scrolls by itself."""
    window.look(360, "dark")
    window.call("Page.navigate", url=(site / f"{page}.html").as_uri())
    window.until("document.readyState == 'complete' && document.querySelector('article h1') !== null")
    assert window.run("document.documentElement.scrollWidth") <= 360
    assert not window.problems


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1200, "dark")])
def test_axe_finds_nothing_serious(site: Path, window: browser.Browser, width: int, scheme: str) -> None:
    """Pages of each kind: prose, wide tables, code, formulas, a notebook, reference."""
    window.look(width, scheme)
    found, scrolling = [], 0
    for name in ("README", "docs/performance", "docs/methods/clove", "docs/notebooks/compare", "docs/api/method"):
        window.call("Page.navigate", url="about:blank")
        window.call("Page.navigate", url=(site / f"{name}.html").as_uri())
        window.until("document.readyState === 'complete' && document.querySelector('article h1') !== null")
        scrolling += window.run("document.querySelectorAll('[role=region][tabindex=\"0\"]').length")
        found += [f"{name}: {fault}" for fault in window.faults()]
    assert not found, "\n".join(found)
    assert scrolling or width > 360  # what scrolls on a telephone is reached by keyboard
