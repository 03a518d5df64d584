"""docs/figures/choose.svg: drawn by what methods declare, and what it says of privacy is what the checker says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from clusterfl.cli.program import main
from clusterfl.methods import METHODS
from clusterfl.report import words

ROOT = Path(__file__).parents[2]
CHOOSE = runpy.run_path(str(ROOT / "docs/figures/choose.py"))
STUDY = """
study: noise
seeds: {{runs: [0]}}
model: {{model: mlp}}
training: {{rounds: 3, weights: uniform}}
federations: {{f: {{base: digits-rotated}}}}
methods:
  m: {{method: {name}, {clusters} privacy: {{epsilon: 4, clip: 1.0, accounting: replace-one, delta: 1.0e-3}}}}
"""


def test_the_picture_is_that_of_today():
    """A new method needs a row in FAMILIES, then: python docs/figures/choose.py."""
    assert (ROOT / "docs/figures/choose.svg").read_text(encoding="utf-8") == CHOOSE["draw"]()
    assert "figures/choose.svg" in (ROOT / "docs/methods/README.md").read_text(encoding="utf-8")


def test_the_report_speaks_of_found_clusters_only_for_methods_that_look_for_them():
    looks = {name for family, (names, _) in CHOOSE["FAMILIES"].items() if "are found" in family for name in names}
    assert {*METHODS} - looks == words.FIXED
    methods = {name: {"method": name} for name in ("fedavg", "ditto")}
    score = {"at": "final", "evaluation": "aggregated", "split": "test"}
    rows = [{"federation": "f", "method": name, "seeds": 1, "accuracy_mean": 0.5, "accuracy_std": None, "ari_mean": 0.0,
             "ari_std": None} for name in methods]  # fmt: skip
    said = words.headline(rows, {"methods": methods, "score": score, "baseline": "fedavg"})
    assert said[1] == "No method of this study looks for clusters."


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].one_shot])
def test_noise_can_protect_what_the_checker_lets_it(name, tmp_path, capsys):
    clusters = "clusters: 2," if "clusters" in METHODS.options(name).model_fields else ""
    file = tmp_path / "study.yaml"
    file.write_text(STUDY.format(name=name, clusters=clusters))
    said = main(["check", "--config", str(file)])
    family = next(family for family, (names, _) in CHOOSE["FAMILIES"].items() if name in names)
    assert (said == 0) == CHOOSE["row"](name, family)[-1], capsys.readouterr()
