"""The page over all studies: of a study that was run, read as text and clicked through in a browser."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import math
import re
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import browser
import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import put, tiny, undrawn, write_yaml

from clusterfl.claims import gather, scale
from clusterfl.claims.discrepancies import compare, words
from clusterfl.claims.pages import printed, site, site_parts
from clusterfl.claims.printed import claims
from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json

pytestmark = pytest.mark.slow  # all pages of all papers are drawn

HOSTILE = "<script>window.hacked = 1</script>"
IMAGE = "<img src=x onerror='window.hacked = 1'>"
CLAIM = "lcfl/table2/rotmnist-1200/lcfl/it60"
SIZE, SECONDS = 5_000_000, 2.0  # what the page may weigh and take to open


def settings() -> dict[str, Any]:
    study = tiny() | {"study": "beside", "title": HOSTILE, "seeds": {"runs": [0, 1]}}
    study["training"] |= {"rounds": 60, "evaluate_every": 5}
    study["engine"]["backend"] = "auto"
    for name in ("lcfl-diffnorm", "local"):
        del study["methods"][name]
    sides = {
        "released": {"federation": "digits", "method": "ifca"},
        "paper": {"federation": "digits", "method": "fedavg"},
    }
    study["claims"] = {
        "paper": "lcfl",
        "cells": {"mnist/rotated-1200": {"federation": "digits"}},
        "absent": {"femnist/*": f"FEMNIST {IMAGE}"},
        "scores": {"*/fedavg": {"split": "train"}},
        "figures": {
            "Fig. 3": {
                "shows": f"three lines {HOSTILE}",
                "draw": "curves",
                "of": {IMAGE: "digits/lcfl", "IFCA": "digits/ifca", "FedAvg": "digits/fedavg"},
            }
        },
        "discrepancies": {
            IMAGE: {"about": f"one {HOSTILE}", "source": IMAGE, **sides},
            "same": {"about": "nothing", "source": "here", "released": sides["paper"], "paper": sides["paper"]},
            "split": {
                "about": "no such split",
                "source": "x",
                **sides,
                "paper": sides["paper"] | {"score": {"split": "validation"}},
            },
        },
    }
    return study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a study was run and the page was written."""
    place = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        shipped = write_yaml(place / "config.yaml", settings())
        patch.setattr(scale, "file", lambda paper: shipped)
        with patch.context() as inner:
            undrawn(inner)  # the study's own report, of which nothing is on the page
            assert main(["run"]) == 0
        assert main(["site"]) == 0
        yield place


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "results/claims.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def data(text: str) -> Any:
    found = re.search(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>', text)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


class Elements(HTMLParser):
    """Every element with its attributes, and how often it begins."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_asks_for_nothing_and_nothing_in_it_is_markup_by_chance(text: str) -> None:
    assert len(text.encode()) < SIZE
    elements = Elements()
    elements.feed(text)
    tags = [tag for tag, _ in elements.found]
    assert tags.count("script") == 4  # two libraries, the data, the page's own
    assert not {"img", "link", "iframe", "object"} & set(tags)
    assert not [a for _, a in elements.found if any(name.startswith("on") or name == "src" for name in a)]
    links = [a["href"] or "" for tag, a in elements.found if tag == "a"]
    assert {link for link in links if not link.startswith("#")} == {
        "beside/report.html",
        "claims.parquet",
        "orderings.parquet",
    }
    assert HOSTILE not in text and IMAGE not in text
    assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in text


def test_every_link_inside_leads_to_a_view_that_is_there(text: str, data: Any) -> None:
    elements = Elements()
    elements.feed(text)
    views = {a["data-view"] for _, a in elements.found if "data-view" in a}
    ids = {claim["claim_id"] for claim in data["claims"]}
    for tag, attributes in elements.found:
        link = attributes.get("href") or ""
        if tag == "a" and link.startswith("#"):
            name = unquote(link[1:].partition("?")[0])
            assert name in views or name.removeprefix("claim/") in ids, link
    for claim in data["claims"]:
        assert f"table/{claim['paper']}/{claim['table']}" in views and f"method/{claim['method']}" in views


def test_every_number_is_there_with_its_verdict(text: str, data: Any) -> None:
    table = pd.read_parquet("results/claims.parquet")
    assert len(data["claims"]) == len(claims()) == len(table)
    assert [row["verdict"] for row in data["claims"]] == list(table["verdict"])
    for name, count in table[table["paper"] == "lcfl"]["verdict"].value_counts().items():
        assert re.search(rf"<b>{count}</b> {name}</a>", text)
    assert len(data["orderings"]) == 160


def test_a_number_leads_to_settings_commands_partition_and_curve(data: Any) -> None:
    row = next(row for row in data["claims"] if row["claim_id"] == CLAIM)
    assert (row["printed_text"], row["round"], row["curve"], row["seeds"]) == ("97.90 ± 0.08", 60, "accuracy", 2)
    run = data["runs"]["beside/digits/lcfl"]
    plan = Plan.from_files([Path("results/beside/settings.json")])
    job = plan.job("federate", "digits", 0, "lcfl")
    assert run["commands"][-2] == job.command and run["settings_digest"] == job.settings_digest
    assert [command.split()[1] for command in run["commands"]] == [
        "download", "partition", "warmup", "distance", "cluster", "federate", "run",
    ]  # fmt: skip
    said = yaml.safe_load(run["settings"])
    assert said["training"]["learning_rate"] == job.settings["training"]["learning_rate"] == 0.1
    assert said["warmups"] == {"short": {"rounds": 1, "training": {}}} and said["model"]["options"] == {"hidden": [4]}
    for seed, part in enumerate(run["partitions"]):
        path = plan.job("partition", "digits", seed).outputs["partition"]
        assert part["digest"] == read_json(manifest_path(path))["files"][path.name]["sha256"]
        assert part["digest"] == hashlib.sha256(path.read_bytes()).hexdigest()
    rounds, mean, low, high = data["curves"]["beside/digits"]["lcfl"]["accuracy"]
    summary = pd.read_parquet("results/beside/summary.parquet").set_index("method").loc["lcfl"]
    assert rounds[-1] == 60 and mean[-1] == pytest.approx(100 * summary["accuracy_mean"], abs=0.01)
    assert low[-1] <= mean[-1] <= high[-1]
    assert row["ours"] == pytest.approx(100 * summary["accuracy_mean"])


def test_the_commands_end_with_the_number(data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """They are sound: those that run find their work done, and the last one prints the number."""
    row = next(row for row in data["claims"] if row["claim_id"] == CLAIM)
    settings, kept = Path("results/beside/settings.json"), Path("kept.json")
    settings.rename(kept)  # the stages alone leave none; with evidence they lie beside it
    for command in data["runs"]["beside/digits/lcfl"]["commands"][1:]:
        assert main(shlex.split(command.replace(str(settings), str(kept)))[1:]) == 0
    assert read_json(settings) == read_json(kept)
    capsys.readouterr()
    assert main(shlex.split(row["command"])[1:]) == 0
    printed_rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("lcfl/")]
    assert {line[0] for line in printed_rows} == {
        claim.claim_id
        for claim in claims()
        if (claim.paper, claim.where, claim.method, claim.cell) == ("lcfl", "Table II", "lcfl", "mnist/rotated-1200")
    }
    (found,) = (line for line in printed_rows if line[0] == CLAIM)
    assert found[1:4] == ["97.9", "±", "0.08"] and float(found[4]) == pytest.approx(row["ours"], abs=0.005)


def test_a_number_comes_with_the_score_that_it_is_read_by(data: Any) -> None:
    """Print's where that is another one than the study's (`claims: scores`)."""
    own = {row["method"]: row for row in data["claims"] if row["claim_id"].startswith("lcfl/table2/rotmnist-1200/") and
           row["claim_id"].endswith("/it60") and "study" in row}  # fmt: skip
    assert {method: row["read"] for method, row in own.items()} == {
        "lcfl": "aggregated/test/samples of round 60",
        "ifca": "aggregated/test/samples of round 60",
        "fedavg": "aggregated/train/samples of round 60",
    }
    run = data["runs"]["beside/digits/fedavg"]
    assert yaml.safe_load(run["score"])["score"]["split"] == "test" and not own["lcfl"]["score"]
    assert yaml.safe_load(own["fedavg"]["score"])["score"] == yaml.safe_load(run["score"])["score"] | {"split": "train"}
    assert own["fedavg"]["score"].startswith("# This number is read by this score; the study's own is aggregated/test/")
    assert "score" not in yaml.safe_load(run["settings"])  # what is shown has one, the number's
    history = pd.read_parquet("results/beside/digits/seed0/methods/fedavg/history.parquet")
    last = history.query("round == 60 and split == 'train' and evaluation == 'aggregated'")
    assert own["fedavg"]["values"].startswith(f"0: {100 * last['correct'].sum() / last['n'].sum()}"[:9])


def test_scores_and_costs_are_those_of_the_studys_summary(text: str) -> None:
    """They are made from the runs, which may be evidence alone."""
    table = text[text.index('aria-label="Scores and costs of digits"') :].split("</table>")[0]
    shown = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)]
    summary = pd.read_parquet("results/beside/summary.parquet")
    assert [cells[0] for cells in shown if cells] == summary["method"].tolist()
    for cells, row in zip((cells for cells in shown if cells), summary.to_dict("records"), strict=True):
        assert cells[1] == str(row["seeds"])
        assert cells[2] == f"{100 * row['accuracy_mean']:.2f} ± {100 * row['accuracy_std']:.2f}"
        assert cells[3] == f"{row['loss_mean']:.3f} ± {row['loss_std']:.3f}"
        assert cells[-2] == f"{(row['bytes_down'] + row['bytes_up']) / 1e6:,.1f}"
        assert cells[-1] == f"{row['local_steps']:,.0f}"


def test_discrepancies_are_measured(data: Any) -> None:
    table = pd.read_parquet("results/consequences.parquet").set_index("name")
    assert list(table.index) == [IMAGE, "same", "split"]
    scores = pd.read_csv("results/beside/tables/scores.csv").pivot(index="seed", columns="method", values="accuracy")
    gaps = 100 * (scores["ifca"] - scores["fedavg"])
    one = table.loc[IMAGE]
    assert one["difference"] == pytest.approx(gaps.mean())
    assert one["error"] == pytest.approx(gaps.std(ddof=1) / math.sqrt(2))
    assert one["released"] == pytest.approx(100 * scores["ifca"].mean()) and one["seeds"] == 2
    assert table.loc["same"]["consequence"] == "none: both have the same accuracy, mean of 2 seeds"
    assert table.loc["split"]["consequence"].startswith("not run: text: no validation score")


def test_a_discrepancy_that_some_studies_measured_is_shown_of_those(folder: Path) -> None:
    """Of one that none measured the first study says why."""
    table = pd.read_parquet("results/consequences.parquet")
    lines = table.set_index("name").loc[["same", "same", "same", "split", "split"]].reset_index()
    lines["study"], lines["seeds"] = list("abcde"), [0, 2, 3, 0, 0]
    found = {"claims": pd.read_parquet("results/claims.parquet"), "consequences": lines}
    page = site.Site(found, gather.studies(), printed.printed(found["claims"]))
    assert [(row["name"], row["study"]) for row in page._discrepancies()] == [
        ("same", "b"),
        ("same", "c"),
        ("split", "d"),
    ]


def test_what_a_difference_says() -> None:
    found = compare("accuracy", {0: 90.0, 1: 92.0, 2: 5.0}, "accuracy", {0: 88.0, 1: 89.0}, 1)
    assert (found["difference"], found["error"], found["seeds"]) == (2.5, 0.5, 2)
    assert (found["released"], found["text"]) == (91.0, 88.5)
    assert found["consequence"] == "accuracy 2.50 points higher with the released code, 5.0 standard errors"
    assert words("loss", -0.25, 0.2, 3).endswith(
        "0.25 lower with the released code, 1.2 standard errors: not distinguishable from zero with these seeds"
    )
    assert (
        words("accuracy", 1.0, math.nan, 1)
        == "accuracy 1.00 points higher with the released code, of one seed: no standard error"
    )
    assert compare("accuracy", {0: 1.0}, "accuracy", {1: 1.0}, 1) == {"consequence": "not comparable: no seed has both"}
    assert (
        compare("accuracy", {0: 1.0}, "loss", {0: 1.0}, 1)["consequence"]
        == "not comparable: one has accuracy, the other loss"
    )


@pytest.mark.parametrize(
    "place, value, message",
    [
        ("federation", "digit", "claims.discrepancies.x.paper.federation: .*'digit'.*did you mean 'digits'"),
        ("method", "ifc", "claims.discrepancies.x.paper.method: .*'ifc'.*did you mean 'ifca'"),
        ("score", {"split": "tests"}, "claims.discrepancies.x.paper.score.split: found 'tests'"),
        ("score", {"splits": "test"}, "claims.discrepancies.x.paper.score.splits"),
    ],
)
def test_a_discrepancy_names_what_is_there(place: str, value: Any, message: str) -> None:
    study = settings()
    block = study["claims"]["discrepancies"].pop("same")
    study["claims"]["discrepancies"] = {"x": block | {"paper": dict(block["paper"])}}
    with pytest.raises(UserError, match=message):
        Plan.from_settings(put(study, f"claims.discrepancies.x.paper.{place}", value))


def rows(**columns: list[Any]) -> pd.DataFrame:
    count = len(columns["method"])
    plain = {
        "claim_id": [f"made/{i}" for i in range(count)],
        "paper": "lcfl",
        "where": "Table 9 & more",
        "dataset": "mnist",
    }
    plain |= {"setting": "one", "metric": "accuracy", "at": "final", "printed": 1.5, "printed_std": math.nan}
    plain |= {"ours": 2.25, "ours_std": 0.5, "verdict": "differs", "reason": "r"}
    return pd.DataFrame(plain | columns, index=range(count))


def test_tables_in_the_papers_form() -> None:
    nan = math.nan
    (table,) = printed.printed(
        rows(method=["a_b", "c", "a_b"], at=["5", "5", "10"], ours=[2.25, nan, 3.0], ours_std=[0.5, nan, nan],
             verdict=["differs", "not run", "reproduced"])
    )  # fmt: skip
    assert (table.name, table.rows, table.columns) == ("table-9-more", ["a_b", "c"], [("5",), ("10",)])
    assert table.heads == ("iteration",) and table.common == ("mnist", "one", "accuracy")
    assert list(csv.reader(io.StringIO(printed.as_csv(table)))) == [
        ["method", "5 | ours", "5 | printed", "5 | verdict", "10 | ours", "10 | printed", "10 | verdict"],
        ["a_b", "2.2 ± 0.5", "1.5", "differs", "3.0", "1.5", "reproduced"],
        ["c", "", "1.5", "not run", "", "", ""],
    ]
    lines = printed.as_latex(table).splitlines()
    assert r"\begin{tabular}{lrr}" in lines and "method & 5 & 10 \\\\" in lines
    assert r"a\_b & \textcolor{differs}{2.2 $\pm$ 0.5 (1.5) $\neq$} & \textcolor{reproduced}{3.0 (1.5) $=$} \\" in lines
    assert r"c & \textcolor{notrun}{(1.5)} &  \\" in lines


def test_a_table_of_one_method_is_by_setting() -> None:
    (table,) = printed.printed(rows(method=["a", "a"], setting=["x", "y"]))
    assert (table.stub, table.rows, table.columns) == ("setting", ["x", "y"], [("accuracy",)])


def test_every_printed_number_has_a_cell_of_its_own(folder: Path) -> None:
    table = pd.read_parquet(folder / "results/claims.parquet")
    found = [cell.claim_id for one in printed.printed(table) for cell in one.cells.values()]
    assert sorted(found) == sorted(table["claim_id"])


def test_latex_takes_any_name() -> None:
    assert (
        printed.latex(r"50% & a_b {x} \y ~ < ±") == r"50\% \& a\_b \{x\} \textbackslash{}y \textasciitilde{} $<$ $\pm$"
    )


def test_files_of_the_papers_tables(folder: Path) -> None:
    tables = folder / "results/tables"
    assert (tables / "lcfl/table-ii.csv").read_text().splitlines()[1].split(",")[2] == "89.66 ± 0.57"
    assert (tables / "clove/table-1.tex").read_text().count(r"\\") == 2 + 12  # heads, methods
    drawn = (tables / "lcfl/table-ii-mnist-rotated-1200.svg").read_text()
    assert "lcfl, printed" in drawn and "lcfl, ours" in drawn


def test_what_is_packed_comes_back_and_is_no_markup() -> None:
    value = {"</script><!--": ["&", "\u2028", math.nan, np.float64(1.5), np.int64(2), math.inf]}
    found = site.packed(value)
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", found) and found == site.packed(value)
    assert json.loads(gzip.decompress(base64.b64decode(found))) == {
        "</script><!--": ["&", "\u2028", None, 1.5, 2, None]
    }


def test_curves_are_thinned_to_the_room(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    lines = {"s/f": {"m": {"accuracy": [list(range(11)), *[[2.0 * i for i in range(11)]] * 3]}}}
    assert site.thinned(lines, 3)["s/f"]["m"]["accuracy"] == [[0, 5, 10], *[[0.0, 10.0, 20.0]] * 3]
    assert site.thinned(lines, 50) == lines
    names = ("claims", "orderings", "discrepancies", "consequences")
    found = {name: pd.read_parquet(f"results/{name}.parquet") for name in names}
    page = site.Site(found, gather.studies(), printed.printed(found["claims"]))
    whole = page._packed()
    monkeypatch.setattr(site, "ROOM", len(whole) - 1)
    monkeypatch.setattr(site, "POINTS", (200, 5))
    curves = json.loads(gzip.decompress(base64.b64decode(page._packed())))["curves"]["beside/digits"]
    assert {len(column) for line in curves["ifca"].values() for column in line} == {5}


def test_docstrings_are_paragraphs() -> None:
    assert site_parts.paragraphs("One\ntwo.\n\nParameters\n----------\nx\n    y") == [
        "One two.",
        "Parameters\n----------\nx\n    y",
    ]
    assert "IFCA" in " ".join(site.about("ifca")["texts"]) and site.about("gone:away")["texts"] == []


def test_libraries_are_the_pinned_ones() -> None:
    folder = site.HERE / "assets"
    pins = dict(re.findall(r"^\| `([^`]+)` .*`([0-9a-f]{64})` \|$", (folder / "README.md").read_text(), re.MULTILINE))
    assert set(pins) == {path.name for path in folder.iterdir()} - {"README.md"}
    for name, digest in pins.items():
        content = (folder / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest, name
        assert b"</script" not in content and b"</style" not in content


def test_without_any_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["site", "--out", "elsewhere"]) == 0
    assert capsys.readouterr().out == "elsewhere/claims.html\n"
    text = (tmp_path / "elsewhere/claims.html").read_text(encoding="utf-8")
    assert "None was run yet." in text and (tmp_path / "elsewhere/tables/fedgwc/table-1.csv").exists()


@pytest.fixture
def opened(folder: Path, tmp_path: Path) -> Iterator[browser.Browser]:
    """The page in a browser."""
    with browser.window(tmp_path) as window:
        window.look(1200, "light")
        window.call("Page.navigate", url=(folder / "results/claims.html").as_uri())
        window.until("document.readyState === 'complete' && document.querySelector('nav a[aria-current]') !== null")
        yield window


SHOWN = "document.querySelector('.view:not([hidden])').dataset.view"
IDS = "[...document.querySelectorAll('#claims-table .tabulator-row .id a')].map((a) => a.textContent)"


def test_click_through(opened: browser.Browser) -> None:
    page = opened
    assert page.run(SHOWN) == "overview"
    assert page.run("performance.getEntriesByType('navigation')[0].loadEventEnd") < 1000 * SECONDS
    page.click("nav a[href='#claims']")
    page.until(f"{IDS}.length > 5")
    assert page.run("document.querySelector('#claims-count').textContent") == "1452 of 1452 numbers"
    page.type("#claims-tools input", "table2 LCFL it60")
    page.until(f"{IDS}.length === 4")
    page.click("#claims-table .tabulator-col[tabulator-field=printed] .tabulator-col-title")
    page.until(f"{IDS}[0].endsWith('local/it60')")  # the lowest first
    page.click("#claims-table .tabulator-col[tabulator-field=printed] .tabulator-col-title")
    page.until(f"{IDS}[0] === {json.dumps(CLAIM)}")
    page.click("#claims-table .tabulator-row .id a")
    page.until(f"{SHOWN} === 'claim' && document.querySelector('#printed') !== null")
    assert page.run("document.querySelector('#printed').textContent") == "97.90 ± 0.08"
    assert "--method lcfl" in page.run("document.querySelector('#commands').textContent")
    last = page.run("document.querySelector('#commands').textContent").splitlines()[-1]
    asked = "--paper lcfl --table 'Table II' --method lcfl --cell mnist/rotated-1200"
    assert last == f"clusterfl claims --from results {asked}"
    assert "split: test" in page.run("document.querySelector('#settings').textContent")
    assert page.run("document.querySelectorAll('#claim .uplot canvas').length") == 1
    assert _drawn(page, "#claim canvas")
    page.click("#claim a[href^='#federation/']")
    page.until(f"{SHOWN} === 'federation/beside/digits'")
    assert page.run("document.querySelectorAll('.view:not([hidden]) .uplot canvas').length") == 3
    page.call("Page.navigateToHistoryEntry", entryId=page.call("Page.getNavigationHistory")["entries"][-2]["id"])
    page.until(f"{SHOWN} === 'claim'")
    page.click("#claim a[href^='#table/']")
    page.until(f"{SHOWN} === 'table/lcfl/table-ii'")
    page.click("nav a[href='#tables']")
    page.until(f"{SHOWN} === 'tables'")
    page.click("a[href='#figure/lcfl/fig-3']")
    page.until(f"{SHOWN} === 'figure/lcfl/fig-3'")
    assert page.run("document.querySelector('.view:not([hidden]) svg').getBoundingClientRect().height") > 200
    assert page.run("document.querySelectorAll('.view:not([hidden]) li').length") == 4  # the orderings read off it
    page.click("nav a[href='#orderings']")
    page.until("document.querySelectorAll('#orderings-table .tabulator-row').length > 3")
    page.click("nav a[href='#overview']")
    page.click("[data-view=overview] .counts a[href*='lcfl&verdict=differs']")
    page.until(f"{SHOWN} === 'claims' && /^[0-9]+ of 1452/.test(document.querySelector('#claims-count').textContent)")
    counted = page.run("document.querySelector('#claims-count').textContent")
    table = pd.read_parquet("results/claims.parquet")
    assert counted == f"{((table['paper'] == 'lcfl') & (table['verdict'] == 'differs')).sum()} of 1452 numbers"
    page.run("location.hash = '#claim/' + encodeURIComponent(\"<img src=x onerror='window.hacked = 1'>\")")
    page.until("document.querySelector('#claim h2').textContent === 'No such number'")
    _sound(page)


def test_numbers_are_filtered_as_by_the_command(opened: browser.Browser) -> None:
    page, table = opened, pd.read_parquet("results/claims.parquet")
    count, menu = (
        "document.querySelector('#claims-count').textContent",
        "document.querySelector('#claims-tools label:nth-child({}) select')",
    )
    page.run("location.hash = '#claims?paper=clove&table=Table+1&method=fedavg&cell=mnist/label-skew-1'")
    page.until(f"{IDS}.join() === 'clove/table1/label-skew-1/mnist/fedavg'")
    assert page.run(count) == f"1 of {len(table)} numbers"
    page.run("location.hash = '#claims?paper=lcfl&cell=mnist/rotated-1200&verdict=differs'")
    wanted = table[(table["paper"] == "lcfl") & (table["dataset"] + "/" + table["setting"] == "mnist/rotated-1200")]
    page.until(f"{count} === '{(wanted['verdict'] == 'differs').sum()} of {len(table)} numbers'")
    for place, names in ((4, wanted["method"]), (5, wanted["where"])):  # method and table: what the other filters leave
        offered = page.run(
            f"[...{menu.format(place)}.options].filter((o) => !o.disabled && o.value).map((o) => o.value)"
        )
        assert set(offered) == set(names[wanted["verdict"] == "differs"])
    page.run("location.hash = '#claims?table=nowhere'")
    page.until(f"{count} === '{len(table)} of {len(table)} numbers'")
    _sound(page)


def test_lines_are_named_with_what_they_end_at(opened: browser.Browser, data: Any) -> None:
    """In the order of their ends, each with a look of its own; the score is the number's own."""
    page = opened
    page.run(f"location.hash = '#claim/{quote(CLAIM.replace('/lcfl/it60', '/fedavg/it60'), safe='')}'")
    page.until("document.querySelector('#claim .legend') !== null")
    named = page.run("[...document.querySelectorAll('#claim .legend li:has(canvas)')].map((one) => one.textContent)")
    curves = data["curves"]["beside/digits"]
    ends = {name: curves[name]["accuracy"][1][-1] for name in curves if "accuracy" in curves[name]}
    ordered = sorted(ends, key=lambda name: -ends[name])
    assert [text.split()[0] for text in named] == ordered and len(ordered) >= 3
    assert [float(text.split()[1].rstrip(",")) for text in named] == pytest.approx([ends[n] for n in ordered], rel=1e-3)
    looks = page.run("[...document.querySelectorAll('#claim .legend canvas')].map((one) => one.toDataURL())")
    assert len(set(looks)) == len(ordered)
    shown = page.run("document.querySelector('#settings').textContent")
    assert "split: train" in shown and yaml.safe_load(shown)["score"]["split"] == "train"
    assert "aggregated/train/samples of round 60" in page.run("document.querySelector('#claim .facts').textContent")
    _sound(page)


def test_many_lines_have_looks_of_their_own(folder: Path, tmp_path: Path) -> None:
    """Sixteen others beside the method in question, on a copy of the page."""
    text = (folder / "results/claims.html").read_text(encoding="utf-8")
    head, packed, tail = re.split(r'(?<=id="data">)([A-Za-z0-9+/=]*)(?=</script>)', text)
    found = json.loads(gzip.decompress(base64.b64decode(packed)))
    curves = found["curves"]["beside/digits"]
    for i in range(16 - len(curves) + 1):
        curves[f"more-{i}"] = curves["ifca"]
    (tmp_path / "claims.html").write_text(head + site.packed(found) + tail, encoding="utf-8")
    with browser.window(tmp_path) as page:
        page.look(1200, "light")
        page.call("Page.navigate", url=(tmp_path / "claims.html").as_uri() + f"#claim/{quote(CLAIM, safe='')}")
        page.until("document.querySelector('#claim .legend') !== null")
        looks = page.run("[...document.querySelectorAll('#claim .legend canvas')].map((one) => one.toDataURL())")
        assert len(looks) == len(set(looks)) == 17


def test_what_has_no_room_is_hinted_at(opened: browser.Browser) -> None:
    page = opened
    hint = "getComputedStyle(document.querySelector('.view:not([hidden]) .wide'), '::before').content"
    for view, width, scrolls in (("table/clove/table-1", 1300, True), ("table/clove/table-1", 420, True),
                                 ("methods", 1300, False), ("methods", 420, True)):  # fmt: skip
        page.look(width, "light")
        page.run(f"location.hash = '#overview'; location.hash = '#{view}'")
        page.until(f"{SHOWN} === '{view}' && ({hint} !== 'none') === {str(scrolls).lower()}")
    both = "document.querySelector('#claims-table .both')"
    for width, shown in ((420, True), (1300, False)):
        page.look(width, "light")
        page.run("location.hash = '#claims?table=Table+II'")
        page.until(f"{both} !== null && {both}.checkVisibility() === {str(shown).lower()}")
        ours = "document.querySelector('#claims-table .tabulator-cell[tabulator-field=ours]')"
        page.until(f"{ours}.checkVisibility() !== {both}.checkVisibility()")
    assert re.fullmatch(r"printed 89.66 ± 0.57, ours [0-9.]+ ± [0-9.]+", page.run(f"{both}.textContent"))


def _drawn(page: browser.Browser, canvas: str) -> bool:
    """Return whether a canvas has the colour of printed points in it."""
    found: bool = page.run(
        f"(() => {{ const c = document.querySelector({json.dumps(canvas)});"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "for (let i = 0; i < d.length; i += 4) if (d[i] === 0xb3 && d[i + 1] === 0x47 && d[i + 2] === 0) return true;"
        "return false; })()"
    )
    return found


def _sound(page: browser.Browser) -> None:
    assert page.problems == []
    assert {url.partition("#")[0].rpartition("/")[2] for url in page.requests} == {"claims.html"}
    assert page.run("window.hacked === undefined")


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_is_wider_than_the_window(opened: browser.Browser, width: int, scheme: str) -> None:
    opened.look(width, scheme)
    opened.run("for (const details of document.querySelectorAll('details')) details.open = true")
    views = opened.run("[...document.querySelectorAll('.view')].map((view) => view.dataset.view)")
    assert len(views) > 50
    for view in [*views, f"claim/{CLAIM}"]:
        opened.run(f"location.hash = {json.dumps('#' + quote(view, safe=''))}")
        opened.until(f"{SHOWN} === {json.dumps('claim' if view.startswith('claim/') else view)}")
        assert opened.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), view
        assert opened.run("document.querySelector('.view:not([hidden])').innerText.length") > 20, view
    dark = opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(23, 24, 22)"
    assert dark == (scheme == "dark")
    _sound(opened)
