"""New clients get the cluster of those whose data are like theirs; data that don't fit are refused in a sentence."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, write_yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from torch import nn

from clusterfl.cli import main
from clusterfl.cli.program import _parser
from clusterfl.config.loading import dataset_block
from clusterfl.data.encoding import Encoding
from clusterfl.data.inputs import Inputs
from clusterfl.data.samples import Samples
from clusterfl.errors import UserError
from clusterfl.models import MODELS
from clusterfl.pipeline import newcomers
from clusterfl.pipeline.assign import assign, groups, table, text, write
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage.digest import of_file
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_json, read_table, read_tensors, write_json, write_tensors

DIGITS = {
    "study": "digits",
    "seeds": {"runs": [0]},
    "engine": {"device": "cpu"},
    "model": {"model": "mlp", "hidden": [8]},
    "training": {"rounds": 8, "epochs": 4, "learning_rate": 0.1, "evaluations": ["aggregated", "newcomer"]},
    "federations": {
        "turned": {
            "dataset": "digits",
            "partition": {"scheme": "rotated", "clients": 12, "angles": [0, 180], "newcomers": 3},
        }
    },
    "warmups": {"two": {"rounds": 2, "training": {"evaluations": ["aggregated"]}}},
    "distances": {"loss": {"metric": "loss", "warmup": "two"}},
    "clusterings": {"loss": {"clusterer": "hierarchical", "distance": "loss", "clusters": 2}},
    "methods": {
        "fedavg": {"method": "fedavg"},
        "alone": {"method": "local"},
        "ifca": {"method": "ifca", "clusters": 2},
        "clove": {"method": "clove", "clusters": 2},
        "stopped": {"method": "clove", "clusters": 2, "stable_rounds": 2},
        "lcfl": {"method": "lcfl", "clustering": "loss"},
        "members": {"method": "lcfl", "clustering": "loss", "start": "members"},
    },
}
TABLE = {
    "study": "sheet",
    "seeds": {"runs": [5]},
    "engine": {"device": "cpu"},
    "model": {"model": "linear"},
    "training": {"rounds": 2},
    "federations": {
        "sheet": {
            "dataset": {"dataset": "table", "path": "sheet.csv", "label": "y", "client": "who", "group": "kind"},
            "partition": {"scheme": "natural"},
        }
    },
    "methods": {"ifca": {"method": "ifca", "clusters": 2}},
}


def finished(folder: Path, settings: dict[str, Any]) -> None:
    """Run all of a study but its report."""
    os.chdir(folder)
    for job in Plan.from_files([write_yaml(Path("config.yaml"), settings)]).jobs():
        if job.stage != "report":
            execute(job)


@pytest.fixture(scope="module")
def digits_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, before = tmp_path_factory.mktemp("digits"), Path.cwd()
    finished(folder, DIGITS)
    os.chdir(before)
    return folder


@pytest.fixture
def digits(digits_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished study of turned digits, as working folder."""
    shutil.copytree(digits_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """A small table whose study was run, in the working folder. Classes 0 and 1, of opposite rules in two groups."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 2)).round(3), columns=["a", "b"])
    frame["who"] = np.repeat([f"h{i}" for i in range(4)], 20)
    frame["kind"] = np.repeat([0, 1], 40)
    frame["y"] = ((frame["a"] > frame["b"]) ^ (frame["kind"] == 1)).astype(int)
    frame.to_csv("sheet.csv", index=False)
    finished(tmp_path, TABLE)
    return frame


RUN = Path("results/digits/turned/seed0")


def plan() -> Plan:
    return Plan.from_files([Path("config.yaml")])


def members() -> dict[str, np.ndarray]:
    """The members' training samples as a network sees them but for scaling, as they would come from outside."""
    samples, part = read_tensors(Path("data/digits/samples.safetensors")), read_table(RUN / "partition.parquet")
    part = {name: column[(part["role"] == "member") & (part["split"] == "train")] for name, column in part.items()}
    x = samples["x"][part["sample"]]
    turned = part["transform"] == "rotate180"
    x[turned] = x[turned][..., ::-1, ::-1]
    return {"x": x, "y": samples["y"][part["sample"]], "client": part["client"]}


def plain_losses(method: str, data: dict[str, np.ndarray]) -> np.ndarray:
    """Losses [m, K] of a method's final models by a plain loop over torch modules."""
    losses = []
    for row in read_tensors(RUN / f"methods/{method}/models.safetensors")["theta"]:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        nn.utils.vector_to_parameters(torch.as_tensor(row), model.parameters())
        with torch.inference_mode():
            output = model(torch.as_tensor(data["x"] / 255, dtype=torch.float32))
            loss = nn.functional.cross_entropy(output, torch.as_tensor(data["y"]), reduction="none").numpy()
        losses.append([loss[data["client"] == client].mean() for client in np.unique(data["client"])])
    return np.array(losses).T


# What is right.


@pytest.mark.parametrize("method", ["ifca", "clove", "stopped", "lcfl", "members", "fedavg"])
def test_members_data_come_back_with_their_own_cluster(digits, method):
    data = members()
    np.savez("members.npz", **data)
    found = assign(plan(), method=method, data="members.npz")
    state = read_tensors(RUN / f"methods/{method}/models.safetensors")
    assert found["client"].tolist() == np.unique(data["client"]).tolist() and len(found) == 9
    assert found["cluster"].tolist() == state["labels"].tolist()
    if method == "stopped":  # placed by the kept models; the losses shown are the final ones'
        assert state["stable"][0] and not np.array_equal(state["stable_theta"], state["theta"])
    assert found["n"].tolist() == np.bincount(data["client"])[found["client"]].tolist()
    losses, rows = plain_losses(method, data), np.arange(9)
    np.testing.assert_allclose(found["loss"], losses[rows, state["labels"]], rtol=1e-5)
    if method == "fedavg":
        assert found[["margin", "second_cluster", "second_loss"]].isna().all(axis=None)
        return
    np.testing.assert_allclose(found["second_loss"], losses[rows, 1 - state["labels"]], rtol=1e-5)
    assert (found["margin"] > 0.5).all()  # half a turn is no small difference
    planted = read_table(RUN / "partition.parquet")
    group = dict(zip(planted["client"], planted["true_cluster"], strict=True))
    assert found["group"].tolist() == [group[client] for client in found["client"]]


@pytest.mark.parametrize("method", ["ifca", "clove", "stopped", "lcfl", "fedavg"])
def test_the_partitions_newcomers_get_the_model_that_was_scored(digits, method):
    found = assign(plan(), method=method)
    history = read_table(RUN / f"methods/{method}/history.parquet")
    final = (history["round"] == 8) & (history["evaluation"] == "newcomer")
    assert found["client"].tolist() == history["client"][final].tolist() and len(found) == 3
    assert found["cluster"].tolist() == history["cluster"][final].tolist()


def test_a_clients_row_is_its_own(digits):
    """Other clients, the order of rows and the number of processes change no bit of it."""
    data = members()
    np.savez("all.npz", **data)
    order = np.random.default_rng(0).permutation(len(data["y"]))
    shuffled = order[np.argsort(data["client"][order], kind="stable")[::-1]]
    np.savez("turned.npz", **{name: array[shuffled] for name, array in data.items()})
    client = int(data["client"][0])
    np.savez("one.npz", **{name: array[data["client"] == client] for name, array in data.items()})
    every = assign(plan(), method="ifca", data="all.npz")
    pd.testing.assert_frame_equal(every, assign(plan(), method="ifca", data="all.npz", threads=2), check_exact=True)
    alone = assign(plan(), method="ifca", data="one.npz")
    pd.testing.assert_frame_equal(every.iloc[:1], alone, check_exact=True)
    other = assign(plan(), method="ifca", data="turned.npz")  # sums in another order: equal but for rounding
    pd.testing.assert_frame_equal(every, other, rtol=1e-6)


def test_images_in_a_folder(digits):
    data = members()
    chosen = np.flatnonzero(np.isin(data["client"], np.unique(data["client"])[:2]))
    Path("new").mkdir()
    for i in chosen:
        Image.fromarray(data["x"][i, 0]).save(f"new/{i}.png")
    listed = pd.DataFrame({"path": [f"{i}.png" for i in chosen], "label": data["y"][chosen]})
    listed.assign(client=[f"clinic {c}" for c in data["client"][chosen]]).to_csv("new/list.csv", index=False)
    np.savez("some.npz", **{name: array[chosen] for name, array in data.items()})
    found = assign(plan(), method="lcfl", data="new", options={"colour": "grey"})
    assert found["client"].tolist() == [f"clinic {c}" for c in np.unique(data["client"])[:2]]
    same = assign(plan(), method="lcfl", data="some.npz")
    pd.testing.assert_frame_equal(found.drop(columns="client"), same.drop(columns="client"), check_exact=True)
    elsewhere = assign(plan(), method="lcfl", data="new", options={"colour": "grey", "path": "new/list.csv"})
    pd.testing.assert_frame_equal(elsewhere, found)
    shutil.copy("new/list.csv", "list.csv")
    options = {"colour": "grey", "images": "new"}
    pd.testing.assert_frame_equal(
        assign(plan(), method="lcfl", data="list.csv", dataset="images", options=options), found
    )


def test_a_new_table_is_read_as_the_studys_own(sheet, capsys):
    """Columns by name: their order, more of them and the group's absence change nothing. One run: no flags needed."""
    sheet.drop(columns="kind").to_csv("same.csv", index=False)
    assert main(["assign", "--data", "same.csv"]) == 0
    first = capsys.readouterr().out
    assert first.split()[:4] == ["client", "cluster", "group", "margin"] and len(first.splitlines()) == 5
    sheet.assign(kind="?", note="text")[["note", "b", "y", "kind", "a", "who"]].to_parquet("other.parquet")
    assert main(["assign", "--data", "other.parquet", "--output", "out/found.csv"]) == 0
    assert capsys.readouterr().out == first
    written = pd.read_csv("out/found.csv")
    assert written["client"].tolist() == ["h0", "h1", "h2", "h3"]
    found = assign(plan(), data="same.csv")
    np.testing.assert_array_equal(written["margin"], found["margin"])  # in full
    assert main(["assign", "--data", "same.csv", "--option", "features=[b, a]"]) == 0
    assert capsys.readouterr().out != first


def test_the_table_replaces_only_an_earlier_one(sheet, capsys):
    """Not the study's data, nor the new clients', nor a result; nothing is computed first."""
    sheet.to_csv("new.csv", index=False)
    history = Path("results/sheet/sheet/seed5/methods/ifca/history.parquet")
    kept = {path: path.read_bytes() for path in (Path("sheet.csv"), Path("new.csv"), history, Path("config.yaml"))}
    for path in kept:
        assert main(["assign", "--data", "new.csv", "--output", str(path)]) == 2
        said = capsys.readouterr()
        assert said.err.startswith(f"clusterfl: --output: {path} ") and not said.out
    assert main(["assign", "--data", "new.csv", "--output", "data/new.csv"]) == 2
    assert {path: path.read_bytes() for path in kept} == kept and not Path("data/new.csv").exists()
    for _ in range(2):
        assert main(["assign", "--data", "new.csv", "--output", "found.csv"]) == 0
    without_group = table(np.array(["a"]), np.array([0]), np.array([[0.1, 0.2]]), np.array([1]))
    write(without_group, Path("other.csv"))
    assert main(["assign", "--data", "new.csv", "--output", "other.csv"]) == 0
    assert Path("other.csv").read_bytes() == Path("found.csv").read_bytes()


def test_one_new_client_is_enough_and_keeps_its_name(sheet):
    sheet[sheet["who"] == "h2"].assign(who=7).to_csv("one.csv", index=False)
    found = assign(plan(), data="one.csv")
    assert found["client"].tolist() == [7] and found["n"].tolist() == [20]


def test_real_targets_need_no_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(60, 3)), np.arange(60) % 3
    np.savez("own.npz", x=x, y=x @ [1, 2, 3], client=client)
    block = {"dataset": {"dataset": "arrays", "path": "own.npz", "task": "regression"}}
    finished(tmp_path, TABLE | {"federations": {"sheet": block | {"partition": {"scheme": "natural"}}}})
    pd.DataFrame(x, columns=list("abc")).assign(y=x @ [1, 2, 3], who=client).to_csv("new.csv", index=False)
    found = assign(plan(), data="new.csv", options={"label": "y", "client": "who"})
    assert "group" not in found  # the study knows none
    theta = read_tensors(Path("results/sheet/sheet/seed5/methods/ifca/models.safetensors"))["theta"]
    squares = np.square(x @ theta[:, :3].T + theta[:, 3] - (x @ [1, 2, 3])[:, None])
    expected = np.stack([squares[client == c].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(found["loss"], expected.min(axis=1), rtol=1e-5)


def test_a_swept_method_places_by_its_chosen_trial(sheet):
    """One model is swept against two; the groups' rules are opposite, so two are better. All get the last one."""
    code = """
from dataclasses import dataclass

import numpy as np
from clusterfl.methods.ifca import IFCA

@dataclass(frozen=True, kw_only=True)
class Last(IFCA):
    def place(self, state, losses):
        return np.full(len(losses), self.clusters - 1)
"""
    Path("last_model.py").write_text(code)
    sweep = {"last": {"method": "last_model:Last", "sweep": {"clusters": [1, 2]}}, "alone": {"method": "local"}}
    block = TABLE["federations"]["sheet"] | {"partition": {"scheme": "natural", "validation": 0.3}}
    finished(Path(), TABLE | {"training": {"rounds": 8}, "federations": {"sheet": block}, "methods": sweep})
    run = Path("results/sheet/sheet/seed5/methods/last")
    assert json.loads((run / "manifest.json").read_text())["chosen"] == 2
    found = assign(plan(), method="last", data="sheet.csv")
    assert found["cluster"].tolist() == [1] * 4 and found["margin"].notna().all()
    refused(["methods of this study that have one: last"], method="alone")
    shutil.rmtree(run)
    refused(["'last' hasn't been run", "run it: clusterfl select --config"], method="last", data="sheet.csv")


def test_autoencoders_need_no_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, client = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    np.savez("own.npz", x=x, y=np.arange(60) % 2, client=client)
    block = {"dataset": {"dataset": "arrays", "path": "own.npz"}, "partition": {"scheme": "natural"}}
    block |= {"inputs": {"target": "input"}, "model": {"model": "clove-autoencoder"}}
    finished(tmp_path, TABLE | {"federations": {"sheet": block}})
    np.savez("new.npz", x=x, client=client)
    found = assign(plan(), data="new.npz")
    losses, model = [], MODELS["clove-autoencoder"]((4,), 4)
    for row in read_tensors(Path("results/sheet/sheet/seed5/methods/ifca/models.safetensors"))["theta"]:
        nn.utils.vector_to_parameters(torch.as_tensor(row), model.parameters())
        with torch.inference_mode():
            errors = (model(torch.as_tensor(x)).numpy() - x) ** 2
        losses.append([errors[client == c].mean() for c in range(3)])
    np.testing.assert_allclose(found["loss"], np.min(losses, axis=0), rtol=1e-5)


# By hand.

LOSSES = np.array([[0.5, 2.0, 1.25], [3.0, 1.0, 1.5], [0.75, 4.0, 0.5], [1.0, 2.0, 3.0]])


def test_margins_by_hand():
    """Client b has model 2 though model 1 has a lower loss, as CLoVE's rule may have it; d has none."""
    found = table(np.array(list("abcd")), np.array([0, 2, 2, -1]), LOSSES, np.array([9, 8, 7, 6]), np.array([5, 4, -1]))
    assert list(found) == ["client", "cluster", "group", "margin", "loss", "second_cluster", "second_loss", "n"]
    assert found["margin"][:3].tolist() == [1.25 - 0.5, 1.0 - 1.5, 0.75 - 0.5]
    assert found["second_cluster"][:3].tolist() == [2, 1, 0]
    assert found["group"][0] == 5 and found["group"][1:].isna().all()
    blank = found.drop(columns=["client", "n"]).iloc[3]
    assert blank.isna().all()
    said = text(found).splitlines()
    assert said[-1].startswith("margin below 0: by the method's own rule 1 of 4 clients get a model with a larger loss")
    assert said[4].split() == ["d", "6"] and said[2].split() == ["b", "2", "-0.5", "1.5", "1", "1", "8"]
    assert "below 0" not in text(found.iloc[[0]])


def test_one_model_has_no_margin():
    found = table(np.arange(4), np.zeros(4, int), LOSSES[:, :1], np.ones(4, int))
    assert found["loss"].tolist() == LOSSES[:, 0].tolist()
    assert found[["margin", "second_cluster", "second_loss"]].isna().all(axis=None)


@given(arrays(float, (5, 3), elements=st.floats(0, 1e6)), arrays(int, 5, elements=st.integers(0, 2)))
def test_margin_is_what_the_next_best_model_loses_more(losses, labels):
    found = table(np.arange(5), labels, losses, np.ones(5, int))
    for i, row in enumerate(losses):
        others = sorted((loss, k) for k, loss in enumerate(row) if k != labels[i])
        assert (found["second_loss"][i], found["second_cluster"][i]) == others[0]
        assert found["margin"][i] == others[0][0] - row[labels[i]]
        assert (found["margin"][i] >= 0) == (row[labels[i]] <= row.min())


def test_groups_by_hand():
    """Model 0: groups 1, 1, 2; model 1: a tie, the first; model 2: its only member's is unknown; 3: no member."""
    labels, planted = np.array([0, 0, 0, 1, 1, 2, -1]), np.array([1, 1, 2, 3, 0, -1, 1])
    assert groups(labels, planted, 4).tolist() == [1, 0, -1, -1]
    assert groups(labels, None, 4) is None


# What is refused.


def refused(words: list[str], **options: Any) -> None:
    with pytest.raises(UserError) as error:
        assign(plan(), **options)
    print(error.value)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_the_run_must_be_named_and_there(digits, capsys):
    refused(["--method: the study has 7; say which; allowed: alone, clove, fedavg"])
    refused(["--method: 'ifac' isn't in", "did you mean 'ifca'?"], method="ifac")
    refused(["--seed: '1' isn't in", "allowed: 0"], method="ifca", seed=1)
    refused(["--federation: 'turn' isn't in", "did you mean 'turned'?"], method="ifca", federation="turn")
    shutil.rmtree(RUN / "methods/ifca")
    command = "clusterfl federate --config config.yaml --federation turned --seed 0 --method ifca"
    refused(["'ifca' hasn't been run on federation 'turned' with seed 0", command, "clusterfl run"], method="ifca")
    assert main(shlex.split(command)[1:]) == 0
    assert main(["assign", "--method", "ifca"]) == 0
    assert main(["assign", "--method", "ifac"]) == 2


def test_a_method_without_models_for_others(digits):
    words = ["method 'alone' (local) has no model for clients that it didn't train with"]
    words += ["methods of this study that have one: fedavg, ifca, clove, stopped, lcfl, members"]
    refused(words, method="alone")


def test_damaged_and_outdated_files(digits):
    models = RUN / "methods/ifca/models.safetensors"
    whole = models.read_bytes()
    models.write_bytes(whole[:-1] + b"?")
    refused([f"{models} is damaged", "rebuild it: clusterfl federate"], method="ifca")
    models.write_bytes(whole)
    place = RUN / "methods/ifca/manifest.json"
    manifest = place.read_text()
    inputs = json.loads(manifest)["inputs"] | {str(RUN / "partition.parquet"): "0123456789abcdef"}
    place.write_text(json.dumps(json.loads(manifest) | {"inputs": inputs}))
    refused(["partition.parquet has changed since", "models.safetensors was made from it"], method="ifca")
    place.write_text(manifest)
    shutil.rmtree(RUN / "warmup")
    refused(["warmup", "is missing", "rebuild it: clusterfl warmup"], method="lcfl")
    write_yaml(Path("config.yaml"), DIGITS | {"training": DIGITS["training"] | {"rounds": 9}})
    refused(["made with other settings than the configuration has now"], method="ifca")


def test_options_without_data(digits):
    for given_ in ({"dataset": "table"}, {"options": {"label": "y"}}):
        refused(["--dataset and --option say how --data is read; give --data as well"], method="ifca", **given_)


def test_no_newcomers(sheet):
    refused(["federation 'sheet' has no newcomers", "--data", "partition.newcomers"])


def test_named_newcomers_and_groups_keep_their_names(tmp_path, monkeypatch):
    """Of the partition's own newcomers, and in a CSV as a spreadsheet takes them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 2)).round(3), columns=["a", "b"])
    frame["who"] = np.repeat([f"=h{i}" for i in range(6)], 20)
    frame["kind"] = np.repeat(["new", "old"], 60)
    frame["y"] = ((frame["a"] > frame["b"]) ^ (frame["kind"] == "old")).astype(int)
    frame.to_csv("sheet.csv", index=False)
    block = TABLE["federations"]["sheet"]
    changed = block | {"partition": {"scheme": "natural", "newcomers": 2}}
    finished(tmp_path, TABLE | {"federations": {"sheet": changed}})
    part = read_table(Path("results/sheet/sheet/seed5/partition.parquet"))
    new = np.unique(part["client"][part["role"] == "newcomer"])
    found = assign(plan())
    assert found["client"].tolist() == [f"=h{i}" for i in new] and len(new) == 2
    assert set(found["group"]) <= {"new", "old"} and not found["group"].isna().any()
    write(found, Path("found.csv"))
    assert pd.read_csv("found.csv")["client"].tolist() == [f"'=h{i}" for i in new]


FILES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "another shape": ({"x": np.zeros((4, 1, 4, 4), np.uint8)}, {}, ["the shape (1, 4, 4), in the study (1, 8, 8)"]),
    "real numbers": ({"x": np.zeros((4, 1, 8, 8))}, {}, ["real numbers (features), in the study bytes (images)"]),
    "longer integers": (
        {"x": np.zeros((4, 1, 8, 8), int)},
        {},
        ["whole numbers (tokens), in the study bytes", "convert"],
    ),
    "NaN": ({"x": np.full((4, 1, 8, 8), np.nan)}, {}, ["'x' holds 'nan' in row 0, counted from 0 (4 rows"]),
    "unseen class": ({"y": [0, 1, 10, 3], "client": list("aabb")}, {}, ["client b has samples of class 10, which no"]),
    "no labels": ({"y": None}, {}, ["has no labels, but losses are needed", "--option label=COLUMN"]),
    "real labels": (
        {},
        {"options": {"task": "regression"}},
        ["labels are real targets, in the study classes; omit the"],
    ),
    "no clients": ({"client": None}, {}, ["the samples' clients aren't given; put an array 'client' into it"]),
    "unknown reader": ({}, {"dataset": "tabel"}, ["--dataset: 'tabel'; did you mean 'table'? allowed: arrays, images"]),
    "wrong reader": ({}, {"dataset": "table", "options": {"label": "y", "client": "who"}}, ["can't be read as CSV"]),
    "path twice": ({}, {"options": {"path": "x.npz"}}, ["--option path: --data 'new.npz' already gives it"]),
    "no file": ({}, {"data": "old.npz"}, ["no file or folder 'old.npz'", "give its right path"]),
}


@pytest.mark.parametrize("name", FILES)
def test_data_that_do_not_fit(digits_once, tmp_path, monkeypatch, name):
    monkeypatch.chdir(digits_once)
    changes, options, words = FILES[name]
    sound = {"x": np.zeros((4, 1, 8, 8), np.uint8), "y": [0, 1, 2, 3], "client": [0, 0, 1, 1]}
    np.savez("new.npz", **{key: value for key, value in (sound | changes).items() if value is not None})
    refused(words, method="ifca", **({"data": "new.npz"} | options))


def test_wrong_options_are_reported_as_those_of_a_study(digits, capsys):
    pd.DataFrame({"a": [1]}).to_csv("new.csv", index=False)
    assert main(["assign", "--method", "ifca", "--data", "new.csv", "--option", "size=8"]) == 2
    said = capsys.readouterr().err
    assert "dataset.label: missing; it is column with the class" in said and "dataset.size: unknown key" in said


def test_which_table_lists_the_images(digits):
    Path("new").mkdir()
    refused(["the folder 'new' holds 0 tables (.csv, .parquet, .pq)", "--option path=FILE"], method="ifca", data="new")


def test_a_table_without_its_columns(sheet):
    sheet.drop(columns="b").to_csv("new.csv", index=False)
    refused(["new.csv has no column 'b'; allowed: a, kind, who, y"], data="new.csv")
    sheet.drop(columns="y").to_csv("new.csv", index=False)
    refused(["new.csv has no labels", "--option label=COLUMN"], data="new.csv")


def test_features_that_overflow(sheet):
    """By a thousandfold weights: each product is infinite then, in whatever order a processor adds them up."""
    (models,) = Path("results/sheet").glob("*/seed5/methods/*/models.safetensors")
    state = dict(read_tensors(models))
    write_tensors(models, state | {"theta": 1000 * np.sign(state["theta"]) + state["theta"]})
    place = manifest_path(models)
    manifest = read_json(place)
    manifest["files"][models.name]["sha256"] = of_file(models)
    write_json(place, manifest)
    sheet.assign(a=3e38, b=3e38).to_csv("new.csv", index=False)
    refused(["client h0: its loss on model", "is NaN or infinite", "check their scale"], data="new.csv")


def test_a_newcomer_with_validation_samples_only(sheet):
    code = """
import numpy as np

def held(labels, generator):
    sample = np.arange(80)
    split, role = (np.where(sample < 60, *names) for names in (("train", "validation"), ("member", "newcomer")))
    return {"sample": sample, "client": sample // 20, "split": split, "role": role}
"""
    Path("held_out_newcomer.py").write_text(code)
    block = TABLE["federations"]["sheet"] | {"partition": {"scheme": "held_out_newcomer:held"}}
    finished(Path(), TABLE | {"federations": {"sheet": block}})
    refused(["newcomer h3 (1 in all) has no training or test samples", "use a smaller partition.validation"])


# Tokens, and data without labels, which a study's own target needn't have.


def read(study: Samples, target: str = "label", **found: Any) -> Any:
    np.savez("new.npz", **found)
    block = dataset_block("digits", {})
    return newcomers.read("new.npz", None, {}, block, study, Inputs(target=target), Encoding())


def test_tokens_of_another_vocabulary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = Samples(np.arange(6, dtype=np.int64).reshape(2, 3), np.zeros(2, int))
    new = {"x": np.array([[1, 2, 3], [0, 4, 5]]), "y": [0, 0], "client": [0, 0]}
    assert read(study, **new)[0].splits["train"].rows.tolist() == [0, 1]
    for token in (6, -1):
        with pytest.raises(UserError, match=rf"has the token {token}, the study has 0 to 5; encode"):
            read(study, **new | {"x": np.array([[1, 2, 3], [0, 4, token]])})


def test_labels_are_left_aside_where_the_target_is_the_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new = {"x": np.eye(3), "client": ["p", "q", "p"]}
    for y in (np.zeros(4, int), np.zeros(4)):
        study = Samples(np.zeros((4, 3), np.float32), y)
        found, names = read(study, target="input", **new)
        assert found.splits["train"].y.tolist() == [0, 0, 0] and names.tolist() == ["p", "q"]
        assert found.splits["train"].y.dtype.kind == y.dtype.kind
        with pytest.raises(UserError, match="has no labels"):
            read(study, **new)


def test_documented_commands_are_commands():
    text_ = (ROOT / "README.md").read_text() + (ROOT / "docs/assign.md").read_text()
    commands = re.findall(r"^(clusterfl assign [^#\n]*)", text_, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        assert _parser().parse_args(shlex.split(command)[1:]).command == "assign"


def test_a_spreadsheet_computes_no_clients_name(tmp_path: Path) -> None:
    names = ["=1+1", "+1", "-1", "@x", "\t=1", "a=1", "é"]
    write(pd.DataFrame({"client": names, "margin": [-1.0] * len(names)}), tmp_path / "new.csv")
    found = pd.read_csv(tmp_path / "new.csv")
    assert found["client"].tolist() == ["'=1+1", "'+1", "'-1", "'@x", "'\t=1", "a=1", "é"]
    assert found["margin"].tolist() == [-1.0] * len(names)
    write(pd.DataFrame({"client": [-5, 3]}), tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_text() == "client\n-5\n3\n"


def test_a_folder_of_images_is_read_as_the_studys(tmp_path, monkeypatch):
    """Clients and classes by folder; one class alone gets the study's number, and a table may stand for folders."""
    monkeypatch.chdir(tmp_path)
    for name in ("new/anna/dog/1.png", "new/ben/dog/2.png", "listed/1.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(name)
    pd.DataFrame({"path": ["1.png"], "label": ["cat"], "client": ["cleo"]}).to_csv("list.csv", index=False)
    block = dataset_block("images", {"images": "new", "folders": "client/label"})
    study = Samples(np.zeros((4, 3, 4, 4), np.uint8), np.arange(4) % 2, classes=np.array(["cat", "dog"]))
    found, names = newcomers.read("new", None, {}, block, study, Inputs(), Encoding())
    assert names.tolist() == ["anna", "ben"] and found.splits["train"].y.tolist() == [1, 1]
    found, names = newcomers.read("listed", None, {"path": "list.csv"}, block, study, Inputs(), Encoding())
    assert names.tolist() == ["cleo"] and found.splits["train"].y.tolist() == [0]
    with pytest.raises(UserError, match=r"the samples' clients aren't given; give --option folders=client/label"):
        newcomers.read("new", None, {"folders": "group/label"}, block, study, Inputs(), Encoding())
    numbered = Samples(study.x, study.y)
    with pytest.raises(UserError, match="new: labels are texts, in the study numbers; write them as in the study"):
        newcomers.read("new", None, {}, block, numbered, Inputs(), Encoding())
