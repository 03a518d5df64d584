"""Each client's score on the page: by name where clients are few, by quantiles and the worst where they are many."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import undrawn
from test_report import SCORE, make, method, study

from clusterfl.pipeline.stages import report
from clusterfl.report import figures, section_clients, tables
from clusterfl.report.content import Album
from clusterfl.report.section import Section
from clusterfl.report.source import Source
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json, write_json

ONE_SEED = study(seeds={"runs": [0]}, methods={"fedavg": method("fedavg")}, clusterings={})


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures aren't what is looked at here."""
    undrawn(monkeypatch)


def shown(folder: Path, count: int, regression: bool = False, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what the page gets of `count` made-up clients: client i has i hundredths right, or loses i."""
    work = make(folder, ONE_SEED, regression=regression)
    place = manifest_path(work.inputs["f/seed0/partition.partition"])
    write_json(place, read_json(place) | ({} if names is None else {"names": names}))
    client = np.arange(count)
    own = pd.DataFrame({"client": client, "group": client % 2, "cluster": np.where(client == 0, -1, 1), "n": 100})
    own = own.assign(accuracy=np.nan if regression else client / 100, loss=client * 1.0)
    own = own.assign(federation="f", method="fedavg", seed=0).astype({"group": "Int64"})
    scores = pd.DataFrame({"method": ["fedavg"], "accuracy_mean": [np.nan if regression else 0.5], "loss_mean": [1.0]})
    section = Section(Source(work.settings, work.inputs), "f", {"clients": own, "summary": scores}, Album(folder))
    found = section_clients.clients(section)
    assert found is not None
    return found


def test_few_clients_are_all_named_worst_first(tmp_path: Path) -> None:
    names = {"clients": {"0": "St <Mary>", "2": "Hill"}, "groups": {"1": "old"}}
    found = shown(tmp_path, 4, names=names)
    assert found["few"]
    (lowest,) = found["lowest"]
    assert [name for name, _ in lowest["table"]["columns"]] == [
        *("client", "planted group", "cluster", "samples", "accuracy (%)")
    ]
    assert lowest["table"]["rows"] == [
        ("St <Mary>", "0", "–", "100", "0.0"),
        ("1", "old (1)", "1", "100", "1.0"),
        ("Hill", "0", "1", "100", "2.0"),
        ("3", "old (1)", "1", "100", "3.0"),
    ]


@pytest.mark.parametrize("regression", [False, True])
def test_of_many_clients_the_spread_is_shown_and_the_ten_worst(tmp_path: Path, regression: bool) -> None:
    """Clients 0, 1, ..., 100 with as many per cent, of which 0 is worst, or with such losses, of which 100 is."""
    found = shown(tmp_path, 101, regression)
    assert not found["few"] and found["count"] == "101"
    # The worst tenth are eleven: 0 to 10, mean 5, or 100 to 90, mean 95.
    values = ["100", "95", "90", "75", "50", "25", "0"] if regression else ["0", "5", "10", "25", "50", "75", "100"]
    (row,) = found["spread"]["rows"]
    assert row == ("fedavg", "101", *(value if regression else f"{value}.0" for value in values))
    worst = list(range(100, 90, -1)) if regression else list(range(10))
    (lowest,) = found["lowest"]
    assert [int(row[0]) for row in lowest["table"]["rows"]] == worst
    assert lowest["text"] == "the 10 worst of 101 clients"


def test_the_limit_is_where_it_says(tmp_path: Path) -> None:
    assert [shown(tmp_path / str(n), n)["few"] for n in (section_clients.NAMED, section_clients.NAMED + 1)] == [
        True,
        False,
    ]


def test_figure_by_name_has_a_row_for_each_client_and_a_line_between_groups() -> None:
    values = pd.DataFrame({"a": [10.0, 20, np.nan], "b": [30.0, 40, 50]})
    style = {name: {"color": "#000000", "linestyle": "-", "marker": "o", "label": name} for name in values}
    axes = figures.by_client(values, np.array([0, 0, 1]), ["x", "y", "z"], {0: "0", 1: "new (1)"}, "%", style).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["x", "y", "z"]
    first, second, border = axes.get_lines()
    assert np.array_equal(first.get_xdata(), [10, 20, np.nan], equal_nan=True)
    assert second.get_xydata().tolist() == [[30, 0], [40, 1], [50, 2]]
    assert list(border.get_ydata()) == [1.5, 1.5]
    assert [(text.get_text(), text.get_position()[1]) for text in axes.texts] == [
        ("group 0", 0.5),
        ("group new (1)", 2),
    ]


def test_the_table_holds_every_client_with_harmless_names(tmp_path: Path) -> None:
    work = make(tmp_path, study(clusterings={}, methods={"fedavg": method("fedavg"), "ifca": method("ifca")}))
    place = manifest_path(work.inputs["f/seed0/partition.partition"])
    names = {"clients": {"0": "=cmd()", "1": "Hill"}, "groups": {"1": "+old"}}
    write_json(place, read_json(place) | {"names": names})
    report.run(work)
    found = pd.read_csv(work.outputs["tables"] / "clients.csv")
    # Client 5 has no sample; three seeds, two methods.
    assert found.groupby(["method", "seed"])["client"].apply(list).map(json.dumps).unique() == ["[0, 1, 2, 3, 4]"]
    own = found[(found["seed"] == 0) & (found["method"] == "ifca")].set_index("client")
    assert own["client_name"].fillna("").to_list() == ["'=cmd()", "Hill", "", "", ""]
    assert own["group_name"].fillna("").to_list() == ["", "'+old", "", "'+old", ""]
    assert found[found["seed"] == 1][["client_name", "group_name"]].isna().all(axis=None)
    # The clients' scores average to the run's.
    score = tables.runs(Source(work.settings | {"score": SCORE}, work.inputs))[0]
    mean = found.groupby(["method", "seed"])["accuracy"].mean()
    assert mean.to_numpy() == pytest.approx(score.set_index(["method", "seed"])["accuracy"].loc[mean.index].to_numpy())
    text = work.outputs["page"].read_text(encoding="utf-8")
    assert 'href="tables/clients.csv"' in text
    assert re.search(r"<td>=cmd\(\)</td><td>0</td>", text) and "<td>+old (1)</td>" in text
