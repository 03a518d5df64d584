"""The papers' figures, drawn from a study that was run: what is drawn against the result files, read with pandas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, put, tiny, write_yaml

from clusterfl.claims import gather, scale
from clusterfl.claims.ours import Results, problems
from clusterfl.claims.pages import paper_figures, papers
from clusterfl.cli import main
from clusterfl.config import loading
from clusterfl.config.claims import CURVES, SCORES, Drawing
from clusterfl.errors import UserError
from clusterfl.pipeline.jobs import Plan
from clusterfl.report import plane
from clusterfl.storage.store import read_tensors

# A whole study with every figure of the papers; what the page is without them is in test_site and test_evidence.
pytestmark = pytest.mark.slow
RUN = Path("results/drawn")
GWC = {"method": "fedgwc", "epsilon": 10.0, "patience": 2, "parts": 3, "training": {"participation": 0.5}}


def settings() -> dict[str, Any]:
    study = tiny() | {"study": "drawn", "seeds": {"runs": [0, 1]}, "warmups": {}, "distances": {}, "clusterings": {}}
    line = {"dataset": "linear-1d", "sizes": [40, 40], "slopes": [1, 1], "intercepts": [2, 6], "noise": 0.1}
    study["federations"]["lines"] = {
        "dataset": line,
        "partition": {"scheme": "by-group", "clients_per_cluster": 2},
        "model": {"model": "linear"},
        "only": ["ifca"],
    }
    study["training"] |= {"rounds": 8}
    study["methods"] = {
        "fedavg": {"method": "fedavg"},
        "ifca": {"method": "ifca", "clusters": 2},
        "gwc": GWC,
        "still": GWC | {"epsilon": 1e-30},
    }
    figures = {
        "Fig. 1": {"draw": "curves", "of": {"one": "digits/fedavg", "two": "digits/ifca"}},
        "Fig. 2": {"draw": "curves", "measure": "ari", "of": {"one": "digits/ifca"}},
        "Fig. 3 (a)": {
            "draw": "scores", "measure": "ari", "axis": "x",
            "of": {"some": {"a": "digits/ifca", "b": "digits/gwc"}, "all": {"b": "digits/fedavg"}},
        },
        "Fig. 4": {"draw": "losses", "of": {"IFCA": "digits/ifca", "FedAvg": "digits/fedavg"}},
        "Fig. 5": {"draw": "interactions", "of": {"moved": "digits/gwc", "still": "digits/still"}},
        "Fig. 6": {"draw": "splits", "of": {"moved": "digits/gwc"}},
        "Fig. 7": {"draw": "splits", "of": {"still": "digits/still"}},
        "Fig. 8": {"draw": "classes", "of": {"IFCA": "digits/ifca"}},
        "Fig. 9": {"draw": "convergence", "of": {"moved": "digits/gwc"}},
        "App. A": {"draw": "lines", "of": {"IFCA": "lines/ifca"}},
    }  # fmt: skip
    for drawing in figures.values():
        drawing["shows"] = "something <b>bold</b>"
    cells = {"mnist/label-skew-1": {"federation": "digits"}}
    return study | {"claims": {"paper": "clove", "cells": cells, "figures": figures}}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, papers.Picture]]:
    """The figures of a study that was run, which lies in the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("papers"))
        write_yaml(Path("config.yaml"), settings())
        assert main(["run"]) == 0
        yield {picture.where: picture for picture in papers.write(gather.studies(), Path("tables"))}


def frame(place: str) -> pd.DataFrame:
    return pd.read_parquet(RUN / place)


def state(method: str, *names: str, federation: str = "digits") -> dict[str, Any]:
    return read_tensors(RUN / federation / "seed0/methods" / method / "models.safetensors", list(names))


def test_every_figure_has_its_files(found: dict[str, papers.Picture]) -> None:
    assert list(found) == sorted(settings()["claims"]["figures"])
    for picture in found.values():
        assert not picture.missing
        for ending in ("svg", "png", "csv"):
            assert Path("tables/clove", f"{picture.name}.{ending}").stat().st_size > 0
        saved = pd.read_csv(f"tables/clove/{picture.name}.csv")
        assert list(saved) == list(picture.table) and len(saved) == len(picture.table)
    assert found["Fig. 3 (a)"].name == "fig-3-a"


def test_curves_are_the_history(found: dict[str, papers.Picture]) -> None:
    table = found["Fig. 1"].table
    for line, method in (("one", "fedavg"), ("two", "ifca")):
        for seed in (0, 1):
            rows = frame(f"digits/seed{seed}/methods/{method}/history.parquet").query("split == 'test' and n > 0")
            sums = rows[rows["evaluation"] == "aggregated"].groupby("round")[["correct", "n"]].sum()
            own = table[(table["line"] == line) & (table["seed"] == seed)].set_index("round")["accuracy"]
            np.testing.assert_allclose(own, 100 * sums["correct"] / sums["n"])
    assert set(found["Fig. 2"].table["round"]) == set(range(1, 9))


def test_scores_are_those_of_the_last_round(found: dict[str, papers.Picture]) -> None:
    from sklearn.metrics import adjusted_rand_score

    table = found["Fig. 3 (a)"].table
    assert table.groupby(["line", "point"]).size().to_dict() == {("some", "a"): 2, ("some", "b"): 2, ("all", "b"): 2}
    groups = frame("digits/seed0/partition.parquet").groupby("client")["true_cluster"].first()
    last = frame("digits/seed0/methods/ifca/clusters.parquet").query("round == 8").set_index("client")["cluster"]
    drawn = table.query("line == 'some' and point == 'a' and seed == 0")["ari"].item()
    assert drawn == pytest.approx(adjusted_rand_score(groups.reindex(last.index), last))


def test_losses_are_the_clients_own(found: dict[str, papers.Picture]) -> None:
    table = found["Fig. 4"].table
    drawn = table[table["panel"] == "IFCA"].pivot(index="client", columns="model", values="loss")
    own = state("ifca", "losses")["losses"][drawn.index]
    np.testing.assert_allclose(np.sort(drawn, axis=1), np.sort(own, axis=1))
    assert np.trace(drawn) <= np.trace(drawn.to_numpy()[:, ::-1])  # the diagonal of least loss
    rows = frame("digits/seed0/methods/fedavg/history.parquet").query("round == 8 and split == 'test'")
    served = rows[rows["evaluation"] == "aggregated"].set_index("client")["loss"]
    alone = table[table["panel"] == "FedAvg"].set_index("client")["loss"]
    np.testing.assert_allclose(alone, served[alone.index])


def test_the_plane_is_of_the_first_split(found: dict[str, papers.Picture]) -> None:
    names = [f"split0.{name}" for name in ("members", "labels", "affinity", "interaction")]
    own = state("gwc", *names)
    np.testing.assert_array_equal(own["split0.interaction"].shape, own["split0.affinity"].shape)
    points = pd.DataFrame(plane.embedded(own["split0.affinity"].astype(float)), index=own["split0.members"])
    for where in ("Fig. 5", "Fig. 6"):
        table = found[where].table
        first = table[table["panel"] == table["panel"].iloc[0]].set_index("client")
        np.testing.assert_allclose(first[["x", "y"]], points.loc[first.index])
        np.testing.assert_array_equal(first.loc[own["split0.members"], "cluster"], own["split0.labels"])
    still = found["Fig. 5"].table.query("panel == 'still'")
    assert len(still) == 8 and still[["x", "y"]].isna().all(axis=None)  # no attempt, so no affinity
    figure = found["Fig. 5"].figure
    assert figure is not None and "affinity: no attempt to split" in [a.get_title("left") for a in figure.axes]
    assert found["Fig. 7"].table.empty


def test_classes_are_counted_in_the_found_clusters(found: dict[str, papers.Picture]) -> None:
    table = found["Fig. 8"].table
    np.testing.assert_allclose(table.groupby("cluster")["share"].sum(), 1)
    last = frame("digits/seed0/methods/ifca/clusters.parquet").query("round == 8").set_index("client")["cluster"]
    counts = frame("digits/seed0/partition.classes.parquet").query("split == 'train'")
    sums = counts.assign(cluster=counts["client"].map(last)).groupby(["cluster", "class"])["n"].sum()
    shares = sums / sums.groupby("cluster").transform("sum")
    drawn = table.set_index(["cluster", "class"])["share"]
    np.testing.assert_allclose(drawn[drawn > 0], shares)


def test_convergence_and_lines_are_the_state(found: dict[str, papers.Picture]) -> None:
    mse = found["Fig. 9"].table.query("seed == 0")
    np.testing.assert_allclose(mse["mse"], state("gwc", "mse.rounds")["mse.rounds"])
    assert mse["mse"].notna().all() and len(mse) == 8
    lines = found["App. A"].table[["slope", "intercept"]]
    np.testing.assert_allclose(lines, state("ifca", "theta", federation="lines")["theta"])


@pytest.mark.usefixtures("found")
def test_what_was_not_run_is_named_and_the_fullest_study_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {
        "Fig. 1": {"shows": "x", "draw": "curves", "of": {"one": "digits/fedavg", "new": "digits/local"}},
        "Fig. 2": {"shows": "x", "draw": "curves", "of": {"new": "digits/local"}},
    }
    other = settings()
    other["methods"]["local"] = {"method": "local"}
    other["claims"]["figures"] = figures
    lite = Results(Plan.from_settings(other))
    first, second = papers.pictures([lite])
    assert first.missing == ("digits/local",) and first.figure is not None and first.scale == "lite"
    assert second.figure is None and second.missing == ("digits/local",)
    shipped = write_yaml(tmp_path / "shipped.yaml", settings())
    monkeypatch.setattr(scale, "file", lambda paper: shipped)
    assert _above(first) == "reduced settings, not the paper's"
    full = Results(Plan.from_settings(settings()))
    for order in ([lite, full], [full, lite]):
        drawn = {picture.where: picture for picture in papers.pictures(order)}
        assert drawn["Fig. 1"].scale == "paper" and not drawn["Fig. 1"].missing
        assert _above(drawn["Fig. 1"]) == ""


def _above(picture: papers.Picture) -> str:
    """Return what stands above a figure, which is there."""
    assert picture.figure is not None
    return str(picture.figure.get_suptitle())


@pytest.mark.usefixtures("found")
def test_a_figure_says_which_of_its_lines_are_reduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the settings of what is drawn: of one line, of all, and of a run that only ends before the paper's."""
    study = Results(Plan.from_settings(settings()))

    def said(place: str, value: Any) -> tuple[str, str]:
        shipped = write_yaml(tmp_path / "shipped.yaml", put(settings(), place, value))
        monkeypatch.setattr(scale, "file", lambda paper: shipped)
        (found,) = (one for one in papers.pictures([Results(study.plan)]) if one.where == "Fig. 1")
        return found.scale, _above(found)

    assert said("methods.ifca.clusters", 3) == ("lite", "reduced settings, not the paper's: two")
    assert said("training.learning_rate", 0.3) == ("lite", "reduced settings, not the paper's")
    assert said("training.rounds", 12) == ("prefix", "the paper's settings, fewer rounds")
    assert said("training.rounds", 8) == ("paper", "")


def test_every_reduced_figure_says_so_in_its_file(found: dict[str, papers.Picture]) -> None:
    for picture in found.values():
        assert picture.scale == "lite"  # the shipped study has other settings
        assert "reduced settings" in Path(f"tables/clove/{picture.name}.svg").read_text(encoding="utf-8")


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(
    "draw, place, reason",
    [
        ("interactions", "digits/ifca", "a method that keeps its splits, such as fedgwc; digits/ifca doesn't"),
        ("splits", "digits/fedavg", "a method that keeps its splits"),
        ("convergence", "digits/ifca", "fedgwc's record of its rounds; digits/ifca has none"),
        ("lines", "digits/ifca", "models of a slope and an intercept, and the dataset linear-1d; digits has others"),
        ("classes", "lines/ifca", "classes and clusters; lines/ifca has none"),
        ("curves", "lines/ifca", "runs that have accuracy"),
    ],
)
def test_what_cannot_be_drawn_is_reported_and_costs_no_page(draw: str, place: str, reason: str) -> None:
    study = settings()
    study["claims"]["figures"] = {"Fig. 1": {"shows": "x", "draw": draw, "of": {"one": place}}}
    (picture,) = papers.pictures([Results(Plan.from_settings(study))])
    assert picture.figure is None and picture.table.empty and not picture.missing
    assert picture.reason.startswith(f"draw: {draw} needs {reason}")


@pytest.mark.usefixtures("found")
def test_the_page_has_them() -> None:
    assert main(["site"]) == 0
    text = Path("results/claims.html").read_text(encoding="utf-8")
    for name in ("fig-1", "fig-3-a", "app-a"):
        assert f'data-view="figure/clove/{name}"' in text and f'href="#figure/clove/{name}"' in text
    assert "something &lt;b&gt;bold&lt;/b&gt;" in text
    assert "CLoVE recovers linear clusters where k-FED fails: not run" in text  # the ordering read off Fig. 3


@pytest.mark.parametrize(
    "place, value, message",
    [
        ("Fig. 1|of|one", "digit/fedavg", r"claims.figures.Fig. 1.of.federation: .*'digit'.*did you mean 'digits'"),
        ("Fig. 1|of|one", "digits/fedavgg", r"claims.figures.Fig. 1.of.method: .*'fedavgg'.*did you mean 'fedavg'"),
        ("Fig. 1|of|one", "lines/fedavg", r"claims.figures.Fig. 1.of.method: .*'fedavg'"),
        ("Fig. 1|of|one", "fedavg", r"claims.figures.Fig. 1.of.federation"),
        ("Fig. 1|of|one", {"a": "digits/ifca"}, "draw: curves takes {name: federation/method}"),
        ("Fig. 3 (a)|of", {"some": "digits/ifca"}, "draw: scores takes {line: {point: federation/method}}"),
        ("Fig. 1|measure", "rand", r"measure: found 'rand'; allowed: accuracy, ari, loss"),
        ("Fig. 3 (a)|measure", "accurcy", "measure: found 'accurcy'.*did you mean 'accuracy'"),
        ("Fig. 1|draw", "curve", "did you mean 'curves'"),
        ("Fig. 1|of", {}, "needs at least 1 entry"),
        ("Fig. 1|shows", "", "claims.figures"),
    ],
)
def test_a_figure_names_what_is_there(place: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Plan.from_settings(put(settings(), f"claims|figures|{place}", value, separator="|"))


@pytest.mark.parametrize(
    "scores, message",
    [
        ({"*/fedavgg": {"split": "train"}}, r"claims.scores: '\*/fedavgg' matches none of .*, e.g. digits/fedavg"),
        ({"*/fedavg": {"spilt": "train"}}, r"claims.scores.\*/fedavg.spilt: unknown key .*did you mean 'split'"),
        ({"*/fedavg": {"split": "trian"}}, r"claims.scores.\*/fedavg.split: found 'trian'"),
        ({"*/fedavg": {"at": "first"}}, r"claims.scores.\*/fedavg.at"),
    ],
)
def test_print_s_scores_name_what_is_there(scores: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Plan.from_settings(put(settings(), "claims|scores", scores, separator="|"))


@pytest.mark.usefixtures("found")
def test_a_figure_s_runs_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--table", "Fig. 1", "--files"]) == 0
    asked = capsys.readouterr().out.split()
    own = {
        f"results/drawn/digits/seed{seed}/methods/{m}/history.parquet" for seed in (0, 1) for m in ("fedavg", "ifca")
    }
    assert set(asked) == own
    assert main(["jobs", "--table", "Fig. 99", "--files"]) == 2
    assert "'Fig. 99'" in capsys.readouterr().err


def test_the_page_s_block_is_one_of_the_reduced_studies() -> None:
    root = ROOT
    text = (root / "docs/claims.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- figures: clove -->\n```yaml\n(.*?)```", text, re.DOTALL)
    folder = root / "workflow/studies/reduced"
    study = loading.read([folder / "common.yaml", folder / "label-skew.yaml"])
    cells = {"fashionmnist/label-skew-1": {"federation": "label-skew"}}
    study["claims"] = {"paper": "clove", "cells": cells} | yaml.safe_load(block)["claims"]
    found = Plan.from_settings(study).study.claims
    assert found is not None and list(found.figures) == ["Fig. 2", "Fig. 3"]


def test_names_are_in_a_natural_order() -> None:
    names = [
        "not private",
        "16",
        "2",
        "Fig. 10",
        "Fig. 2 (b)",
        "Fig. 2 (a)",
        "50 clients",
        "200 clients",
        "0.5",
        "0.25",
    ]
    found = [
        "0.25",
        "0.5",
        "2",
        "16",
        "50 clients",
        "200 clients",
        "Fig. 2 (a)",
        "Fig. 2 (b)",
        "Fig. 10",
        "not private",
    ]
    assert sorted(names, key=paper_figures.natural) == found


@pytest.mark.parametrize(
    "name, why", [("fig 1", "figure 'Fig. 1'"), ("Table 2!", "numbers of 'Table 2'"), ("§", "no letter")]
)
def test_a_figure_s_name_is_that_of_its_files(name: str, why: str) -> None:
    study = settings()
    study["claims"]["figures"][name] = study["claims"]["figures"]["Fig. 1"]
    (found,) = problems(Plan.from_settings(study).study)
    assert found.startswith(f"claims.figures: '{name}' can't be written as a file") and why in found


def test_every_kind_and_measure_can_be_drawn() -> None:
    allowed = Drawing.model_fields["draw"].annotation
    assert set(paper_figures.DRAW) == set(allowed.__args__)  # type: ignore[union-attr]
    assert {*CURVES, *SCORES} == set(paper_figures.LABELS)
