"""The report and the claims page for every reader: by axe-core, at 360 px, by keyboard alone; what they hand out."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import browser
import pandas as pd
import pytest
from conftest import write_yaml
from test_site import CLAIM, IDS, SHOWN, settings

from clusterfl.claims import scale
from clusterfl.cli import main

LOOKS = [(width, scheme) for width in (1200, 360) for scheme in ("light", "dark")]
REPORT, CLAIMS = "results/beside/report.html", "results/claims.html"
FOUR = "claims?search=table2 LCFL it60"  # the address of a view that shows four numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a study was run, its figures drawn, and both pages written."""
    if browser.find() is None:
        pytest.skip(f"none of {', '.join(browser.NAMES)} is installed")
    place = tmp_path_factory.mktemp("access")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        shipped = write_yaml(place / "config.yaml", settings())
        patch.setattr(scale, "file", lambda paper: shipped)
        assert main(["run"]) == 0
        assert main(["site"]) == 0
    return place


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.window(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def show(page: browser.Browser, path: Path, width: int = 1200, scheme: str = "light", details: bool = False) -> None:
    """Open a page again, with its details opened where asked."""
    page.look(width, scheme)
    page.call("Page.navigate", url="about:blank")
    page.problems.clear()
    page.call("Page.navigate", url=path.as_uri())
    page.until("document.readyState === 'complete' && document.querySelector('main') !== null")
    if path.name != "report.html":
        page.until("document.querySelector('nav a[aria-current]') !== null")
    if details:
        page.run("for (const details of document.querySelectorAll('details')) details.open = true")


def turn(page: browser.Browser, view: str) -> None:
    """Show a view of the claims page; what its script draws later is there."""
    address, _, asked = view.partition("?")
    page.run(
        f"location.hash = {json.dumps('#' + quote(address, safe='') + ('?' + quote(asked, '=&') if asked else ''))}"
    )
    page.until(f"{SHOWN} === {json.dumps('claim' if address.startswith('claim/') else address)}")
    if address in ("claims", "orderings"):
        page.until(f"document.querySelector('#{address}-table .tabulator-col[tabindex]') !== null")
        page.until(f"document.querySelectorAll('#{address}-table .tabulator-row').length > 0")


def richest(page: browser.Browser) -> list[str]:
    """Return a view of each kind, that with the most in it, and the page of a number that was measured."""
    views: list[tuple[str, int]] = page.run(
        "[...document.querySelectorAll('.view')].map((view) => [view.dataset.view, view.querySelectorAll('*').length])"
    )
    kinds = {view.partition("/")[0]: view for view, _ in sorted(views, key=lambda one: one[1])}
    assert {"overview", "claims", "orderings", "table", "figure", "method", "federation", "claim"} <= set(kinds)
    return [*(view for kind, view in kinds.items() if kind != "claim"), f"claim/{CLAIM}"]


def faults(page: browser.Browser, views: list[str]) -> list[str]:
    """Return what keeps a reader out of any of the views, each finding with its view; of a report the view is ''."""
    found = []
    for view in views:
        if view:
            turn(page, view)
        found += [f"view '{view}': {fault}" for fault in page.faults()]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
@pytest.mark.parametrize("name", [REPORT, CLAIMS])
def test_axe_finds_nothing_serious(window: browser.Browser, folder: Path, name: str, width: int, scheme: str) -> None:
    show(window, folder / name, width, scheme, details=True)
    found = faults(window, [""] if name == REPORT else richest(window))
    assert not found, "\n".join(found)
    assert window.problems == []


@pytest.mark.slow
def test_axe_would_find_it(window: browser.Browser, folder: Path, tmp_path: Path) -> None:
    """Copies of both pages, each with faults put in: they are found, each in its place, and nothing else is."""
    text = (folder / REPORT).read_text(encoding="utf-8")
    broken, count = re.subn('aria-label="Round, [^"]*"', "", text)
    assert count == 1  # the slider's label is gone
    picture = '<img id="mute" src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">'
    (tmp_path / "report.html").write_text(broken.replace("<main>", f"<main>{picture}"), encoding="utf-8")
    show(window, tmp_path / "report.html", details=True)
    found = faults(window, [""])
    assert sorted(line.split(": ")[1] for line in found) == ["critical image-alt", "critical label"]
    assert any("#mute" in line for line in found) and any('type="range"' in line for line in found)

    text = (folder / CLAIMS).read_text(encoding="utf-8")
    place = '<section class="view" data-view="methods" hidden>'
    assert text.count(place) == 1
    broken = text.replace(place, f'{place}<button type="button" id="mute"></button><p style="color: #ccc">pale</p>')
    (tmp_path / "claims.html").write_text(broken, encoding="utf-8")
    show(window, tmp_path / "claims.html")
    found = faults(window, ["tables", "methods", "federations"])
    assert sorted(line.split(": ")[1] for line in found) == ["critical button-name", "serious color-contrast"]
    assert all(line.startswith("view 'methods': ") for line in found)


def test_axe_is_the_pinned_one() -> None:
    place = browser.AXE.parent
    pins = dict(re.findall(r"^\| `([^`]+)` .*`([0-9a-f]{64})` \|$", (place / "README.md").read_text(), re.MULTILINE))
    assert set(pins) == {path.name for path in place.iterdir()} - {"README.md"}
    for name, digest in pins.items():
        assert hashlib.sha256((place / name).read_bytes()).hexdigest() == digest, name
    head = browser.AXE.read_text(encoding="utf-8")[:600]
    version = re.search(r"\| axe-core [^|]*\| ([0-9.]+) \|", (place / "README.md").read_text())
    assert version is not None and f"axe v{version[1]}\n" in head and "Mozilla Public\n * License, v. 2.0" in head


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 390, 560, 574, 1200])
def test_the_report_fits_and_says_which_figures_scroll(window: browser.Browser, folder: Path, width: int) -> None:
    show(window, folder / REPORT, width, details=True)
    assert window.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    figures = window.run(
        "[...document.querySelectorAll('figure')].map((figure) => { const card = figure.querySelector('.card');"
        "return [figure.closest('.grid') !== null, card.scrollWidth > card.clientWidth,"
        "getComputedStyle(figure.querySelector('figcaption'), '::before').content]; })"
    )
    assert {small for small, _, _ in figures} == {True, False}
    for small, scrolls, hint in figures:
        assert scrolls == (not small and width < 570), (small, width)
        assert hint == ('"The figure scrolls sideways. "' if scrolls else "none")


STOPS = (
    "[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]')]"
    ".filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility())"
)


def tour(page: browser.Browser) -> int:
    """Go through the page with Tab: it must stop, visibly, at each control in the order of reading; return how many."""
    page.run(
        f"window.stops = {STOPS}; document.body.tabIndex = -1; document.body.focus();"
        "document.body.removeAttribute('tabindex')"
    )
    count: int = page.run("stops.length")
    for number in range(count):
        page.press("Tab")
        found = page.run(
            # The box of a searched table's rows shows its focus around the table: rows would cover it.
            "(() => { const one = document.activeElement, around = one.matches('.tabulator-tableholder');"
            "const style = getComputedStyle(around ? one.closest('.tabulator') : one);"
            "return [stops.indexOf(one), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0,"
            "one.outerHTML.slice(0, 200)]; })()"
        )
        expected = page.run(f"stops[{number}].outerHTML.slice(0, 200)")
        assert found[:2] == [number, True], f"after {number} stops: at {found}, expected {expected}"
    page.press("Tab")
    assert page.run("stops.includes(document.activeElement)") is False or page.run(
        "stops[0] === document.activeElement"
    )
    return count


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_the_report_by_keyboard(window: browser.Browser, folder: Path, width: int) -> None:
    page = window
    show(page, folder / REPORT, width)
    closed = tour(page)
    for number in range(page.run("document.querySelectorAll('summary').length")):
        before = page.run(f"[...document.querySelectorAll('details')][{number}].open")
        page.run(f"document.querySelectorAll('summary')[{number}].focus()")
        page.press(" " if number % 2 else "Enter")
        assert page.run(f"[...document.querySelectorAll('details')][{number}].open") is not before
        if before:
            page.press("Enter")
    assert tour(page) > closed
    said = "document.querySelector('.steps output').textContent"
    canvas = "document.querySelector('.strips div:last-child canvas').getAttribute('aria-label')"
    assert page.run(said) == "round 60"
    last = page.run(canvas)
    page.on(".steps button", "Enter")
    assert page.run(said) == "round 59"
    page.press(" ")
    assert page.run(said) == "round 58"
    page.on(".steps input", "ArrowLeft")
    assert page.run(said) == "round 57"
    assert page.run("document.querySelector('.steps input').getAttribute('aria-valuetext')") == "round 57"  # read aloud
    for _ in range(3):
        page.on(".steps button:last-of-type", "Enter")
    assert page.run(said) == "round 60" and page.run(canvas) == last
    assert page.run("document.querySelector('.steps button:last-of-type').disabled")
    page.on("nav a[href='#run']", "Enter")
    page.until("location.hash === '#run'")


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_every_control_of_the_claims_page_is_reached(window: browser.Browser, folder: Path, width: int) -> None:
    show(window, folder / CLAIMS, width)
    short = {"claims": FOUR, "orderings": "orderings?paper=fedgwc&scale=paper"}  # of 1452 rows each has a stop
    views = [short.get(view, view) for view in richest(window)]
    for view in views:
        turn(window, view)
        if view == FOUR:
            window.until(f"{IDS}.length === 4")
        assert tour(window) > 8, view


TOOL = "#claims-tools label:nth-child({}) {}"  # search, paper, verdict, method, ...
COUNT = "document.querySelector('#claims-count').textContent"
TABLE = "#claims-table .tabulator-"


@pytest.mark.slow
def test_numbers_are_filtered_sorted_and_opened_by_keyboard(window: browser.Browser, folder: Path) -> None:
    page, table = window, pd.read_parquet(folder / "results/claims.parquet")
    show(page, folder / CLAIMS, 360)
    page.on("nav a[href='#claims']", "Enter")
    page.until(f"{SHOWN} === 'claims' && document.activeElement.textContent === 'Numbers'")  # read aloud
    page.until(f"document.querySelector('{TABLE}col[tabindex]') !== null")
    page.on(TOOL.format(3, "select"), "ArrowDown")
    verdict = page.until(f"document.querySelector('{TOOL.format(3, 'select')}').value")
    count = (table["verdict"] == verdict).sum()
    assert 0 < count < len(table)
    page.until(f"{COUNT} === '{count} of {len(table)} numbers'")
    assert (
        page.run(f"[...new Set([...document.querySelectorAll('{TABLE}row .v')].map((v) => v.className))].length") == 1
    )
    turn(page, FOUR)
    page.until(f"{IDS}.length === 4")
    for key in ("Enter", " "):  # once from A to Z, once from Z to A
        page.on(f"{TABLE}col[tabulator-field=claim_id]", key)
        page.until(f"{IDS}.join() === {IDS}.sort(){'.reverse()' if key == ' ' else ''}.join()")
    hidden = f"document.querySelector('{TABLE}row {TABLE.split()[1]}responsive-collapse').checkVisibility()"
    assert page.run(hidden) is False
    page.on(f"{TABLE}responsive-collapse-toggle", "Enter")
    page.until(hidden)
    page.press(" ")
    page.until(f"!{hidden}")
    page.on(f"{TABLE}row .id a", "Enter")
    page.until(f"{SHOWN} === 'claim' && document.activeElement.textContent.startsWith('lcfl/table2/')")


@pytest.mark.slow
def test_the_csv_has_the_rows_shown_and_no_others(window: browser.Browser, folder: Path, tmp_path: Path) -> None:
    page = window
    show(page, folder / CLAIMS)
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    columns = list(pd.read_parquet(folder / "results/claims.parquet").columns)
    turn(page, FOUR)
    page.until(f"{IDS}.length === 4")
    page.on(f"{TABLE}col[tabulator-field=printed]", "Enter")
    page.until(f"{IDS}[0].endsWith('local/it60')")  # the lowest first
    rows = downloaded(page, "#claims-take button", "Enter", tmp_path / "claims.csv")
    assert rows[0] == columns and {len(row) for row in rows} == {len(columns)}
    assert [row[columns.index("claim_id")] for row in rows[1:]] == page.run(IDS)
    found = pd.read_parquet(folder / "results/claims.parquet").set_index("claim_id").loc[page.run(IDS)]
    for name in ("printed", "ours"):
        assert [float(row[columns.index(name)] or "nan") for row in rows[1:]] == pytest.approx(
            list(found[name]), nan_ok=True
        )
    for name in ("verdict", "paper", "where", "method", "reason"):
        assert [row[columns.index(name)] for row in rows[1:]] == list(found[name].fillna(""))

    turn(page, "orderings?paper=fedgwc&scale=paper")
    orderings = pd.read_parquet(folder / "results/orderings.parquet")
    shown = orderings[(orderings["paper"] == "fedgwc") & (orderings["scale"] == "paper")]
    page.until(f"document.querySelector('#orderings-count').textContent.startsWith('{len(shown)} of ')")
    first, *rest = downloaded(page, "#orderings-take button", " ", tmp_path / "orderings.csv")
    assert 0 < len(shown) < len(orderings) and first == list(orderings.columns)
    assert [row[first.index("statement")] for row in rest] == list(shown["statement"])


def downloaded(page: browser.Browser, button: str, key: str, path: Path) -> list[list[str]]:
    """Press a button, wait for its file and return its rows."""
    page.on(button, key)
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{button} and {key!r} gave no {path.name}, but {list(path.parent.iterdir())}"
        time.sleep(0.05)
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.slow
def test_parquet_of_all_rows_by_keyboard(window: browser.Browser, folder: Path, tmp_path: Path) -> None:
    show(window, folder / CLAIMS)
    window.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for name in ("claims", "orderings"):
        turn(window, name)
        window.on(f"#{name}-take a[download]", "Enter")
        wanted, path, end = (
            (folder / f"results/{name}.parquet").read_bytes(),
            tmp_path / f"{name}.parquet",
            time.monotonic() + 20,
        )
        while not (path.exists() and path.read_bytes() == wanted):
            assert time.monotonic() < end, f"no {path.name}, but {list(tmp_path.iterdir())}"
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["Enter", " "])
@pytest.mark.parametrize("allowed", [True, False])
def test_what_is_copied(window: browser.Browser, folder: Path, allowed: bool, key: str) -> None:
    """Each copy button copies its text, or shows it, selected, where the browser refuses."""
    page = window
    show(page, folder / CLAIMS)
    write = (
        "window.copied = text; return Promise.resolve();" if allowed else "return Promise.reject(new Error('refused'));"
    )
    page.run(f"Object.defineProperty(navigator, 'clipboard', {{ value: {{ writeText: (text) => {{ {write} }} }} }}); 0")
    federation = "federation/beside/digits"
    offered = {
        FOUR: {"#claims-take .copier": "location.href"},
        f"claim/{CLAIM}": {
            "#claim .copier:has(+ p + #commands)": "document.querySelector('#commands').textContent",
            "#claim .copier:has(+ p + #settings)": "document.querySelector('#settings').textContent",
        },
        federation: {
            f"[data-view='{federation}'] .copier": "document.querySelector('.view:not([hidden]) pre').textContent"
        },
    }
    for view, buttons in offered.items():
        turn(page, view)
        assert page.run("document.querySelectorAll('.view:not([hidden]) .copier').length") == len(buttons)
        for copier, text in buttons.items():
            page.on(f"{copier} button", key)
            page.until(
                f"document.querySelector({json.dumps(copier)}).querySelector('[role=status]').textContent !== ''"
            )
            if allowed:
                assert page.run(f"window.copied === {text}"), view
            else:
                field = f"document.querySelector({json.dumps(copier)}).querySelector('textarea')"
                assert page.run(f"{field}.value === {text} && {field}.selectionEnd === {text}.length"), view
