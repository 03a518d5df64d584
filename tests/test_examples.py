"""The examples work as they stand, copied to an empty folder and run from another one."""

from __future__ import annotations

import filecmp
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, write_yaml

from clusterfl.cli import main
from clusterfl.pipeline.describe import describe
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage.digest import canonical, of_file, of_text
from clusterfl.storage.store import read_json, read_table

# Each study has one federation, of the study's name.
EXAMPLES = {"table": "hospitals", "images": "offices", "arrays": "clinics", "function": "cellars"}


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Copy an example alone into an empty folder; return its study as seen from another, empty folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def copy(name: str) -> str:
        shutil.copytree(ROOT / "examples" / name, tmp_path / "examples" / name)
        return f"../examples/{name}/study.yaml"

    return copy


def final(study: str, method: str) -> dict[str, np.ndarray]:
    """The last round's scores of the clients' test samples."""
    history = read_table(Path(f"results/{study}/{study}/seed0/methods/{method}/history.parquet"))
    last = (history["round"] == history["round"].max()) & (history["split"] == "test")
    return {name: column[last] for name, column in history.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_the_complete_example_finds_the_two_kinds_of_hospitals(copied):
    changes = {"seeds": {"runs": [0]}, "training": {"rounds": 8}}
    config = [copied("table"), str(write_yaml(Path("short.yaml"), changes))]
    assert main(["run", "--config", *config]) == 0
    assert Path("results/hospitals/report.html").exists()
    counts = read_table(Path("results/hospitals/hospitals/seed0/partition.classes.parquet"))
    test = counts["split"] == "test"
    sizes = np.zeros((10, 2))
    np.add.at(sizes, (counts["client"][test], counts["class"][test]), counts["n"][test])
    majority = sizes.max(axis=1).sum() / sizes.sum()  # each hospital's own larger class
    for method in ("ifca", "lcfl"):
        scores = final("hospitals", method)
        assert scores["correct"].sum() / scores["n"].sum() > majority + 0.2
        # In the sorted order of names, hospital-10 comes second: it and the last four are of the second kind.
        assert len(np.unique(scores["cluster"])) == 2
        for kind in ([0, 2, 3, 4, 5], [1, 6, 7, 8, 9]):
            assert len(np.unique(scores["cluster"][np.isin(scores["client"], kind)])) == 1
    scores = final("hospitals", "fedavg")
    assert scores["correct"].sum() / scores["n"].sum() < majority  # one model can't serve both kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "arrays", "function"])
def test_the_others_are_sound_and_described(copied, name):
    study, config = EXAMPLES[name], copied(name)
    assert main(["check", "--config", config]) == 0
    said = describe(study, [Path(config)])
    assert f"{study}: " in said and "group" in said
    assert Path(f"results/federations/{study}.html").exists()
    assert main(["partition", "--config", config, "--federation", study, "--seed", "0"]) == 0
    table = read_table(Path(f"results/{study}/{study}/seed0/partition.parquet"))
    clients = {"images": 6, "arrays": 8, "function": 4}[name]
    assert np.array_equal(np.unique(table["client"]), np.arange(clients))
    halves = [set(table["true_cluster"][(table["client"] < clients // 2) == first]) for first in (True, False)]
    assert sorted(halves, key=min) == [{0}, {1}]


# Digests as they were before labels and columns could be texts: settings, samples, settings, partition, counts.
BEFORE = {
    "table": ("4a7c87db73c1", "1efaa4ce56bc", "4d0e7f0fc4e5", "99e9756bed56", "7f14d70d4198"),
    "images": ("5ce65693f727", "267b1be32dd2", "4d0e7f0fc4e5", "712370f661dd", "d1bb3a794771"),
    "arrays": ("6e4a77295268", "9f4ceea42900", "4d0e7f0fc4e5", "7fd31a6c0d28", "746508a5a76f"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_numbers_are_read_to_the_bits_that_they_always_had(copied, name):
    study, config = EXAMPLES[name], copied(name)
    job = Plan.from_files([config]).job("partition", study, 0)
    download = job.upstream["samples"]
    assert main(shlex.split(download.command)[1:]) == 0
    assert main(["partition", "--config", config, "--federation", study, "--seed", "0"]) == 0
    drawn = read_json(Path(f"results/{study}/{study}/seed0/partition.manifest.json"))["content"]
    counts = of_text(canonical({key: column.tolist() for key, column in read_table(job.outputs["classes"]).items()}))
    found = (download.settings_digest, of_file(download.first), job.settings_digest, drawn, counts)
    assert tuple(digest[:12] for digest in found) == BEFORE[name]


def test_regression_beats_the_mean(copied):
    config = copied("arrays")
    flags = ["--config", config, "--federation", "clinics", "--seed", "0"]
    job = Plan.from_files([config]).job("partition", "clinics", 0)
    assert main(shlex.split(job.upstream["samples"].command)[1:]) == 0
    assert main(["partition", *flags]) == 0 and main(["federate", *flags, "--method", "ifca"]) == 0
    scores = final("clinics", "ifca")
    y = np.load(ROOT / "examples/arrays/clinics.npz")["y"]
    assert (scores["loss"] * scores["n"]).sum() / scores["n"].sum() < 0.8 * y.var()
    assert np.isnan(scores["correct"]).all()


@pytest.mark.parametrize("script", ["table/make_hospitals.py", "images/make_images.py", "arrays/make_clinics.py"])
def test_the_scripts_wrote_the_files(tmp_path, script):
    source = ROOT / "examples" / script
    shutil.copy(source, tmp_path)
    runpy.run_path(str(tmp_path / source.name))
    made = [p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".py"]
    assert made
    for place in made:
        one, other = tmp_path / place, source.parent / place
        if place.suffix == ".npz":
            first, second = np.load(one), np.load(other)
            assert all(np.array_equal(first[name], second[name]) for name in second.files)
        elif place.suffix == ".png":
            from PIL import Image

            assert np.array_equal(np.asarray(Image.open(one)), np.asarray(Image.open(other)))
        else:
            assert filecmp.cmp(one, other, shallow=False)


def test_examples_are_small():
    assert sum(p.stat().st_size for p in (ROOT / "examples").rglob("*") if p.is_file()) < 300_000
