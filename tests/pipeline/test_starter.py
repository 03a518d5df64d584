"""`clusterfl init --data`: a study on data of one's own, which check and run accept, and what follows from it."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import write_yaml
from PIL import Image

from clusterfl.cli import main
from clusterfl.config.loading import read
from clusterfl.pipeline.assign import assign
from clusterfl.pipeline.describe import describe
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage.store import read_table

FLAGS = ["init", "--data", "patients.csv", "--label", "outcome", "--client", "hospital"]
QUICK = {
    "seeds": {"runs": [0]},
    "training": {"rounds": 6, "epochs": 1},
    "warmups": {"alone": {"training": {"epochs": 5}}},
    "model": {"hidden": [8]},
}


def patients(clients: int = 6, each: int = 40) -> pd.DataFrame:
    """Hospitals of two regions that write diagnoses in opposite ways; a rare category is of test samples alone."""
    rng = np.random.default_rng(0)
    rows = clients * each
    sex, age = rng.choice(["f", "m"], rows), rng.normal(50_000, 9000, rows).round()
    hospital = np.repeat([f"h{i}" for i in range(clients)], each)
    region = np.where(np.repeat(np.arange(clients), each) < clients // 2, "north", "south")
    ill = (age + 5000 * (sex == "f") > 52_000) ^ (region == "south")
    frame = {"age": age, "sex": sex, "outcome": np.where(ill, "ill", "healthy"), "hospital": hospital, "region": region}
    return pd.DataFrame(frame | {"part": np.where(np.arange(rows) % 4 == 0, "test", "train")})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    patients().to_csv("patients.csv", index=False)


def test_it_writes_a_study_that_check_accepts_and_never_overwrites(capsys):
    assert main([*FLAGS, "--group", "region", "--option", "test=part"]) == 0
    said = capsys.readouterr()
    assert "240 samples of 6 clients, 2 classes (healthy, ill), 2 groups, columns of categories (sex: 2)" in said.err
    lines = said.out.splitlines()
    assert lines == ["clusterfl check --config patients.yaml", "clusterfl run --config patients.yaml"]
    assert main(shlex.split(lines[0])[1:]) == 0
    before = Path("patients.yaml").read_text()
    study = yaml.safe_load(before)
    assert list(study["methods"]) == ["fedavg", "local", "oracle", "ifca", "clove", "lcfl", "fedgwc"]
    assert study["federations"]["patients"]["inputs"] == {"standardise": True}
    assert study["methods"]["ifca"]["clusters"] == study["clusterings"]["loss"]["clusters"] == 2

    assert main(FLAGS) == 2
    assert "patients.yaml already exists; choose another folder" in capsys.readouterr().err
    assert Path("patients.yaml").read_text() == before


def test_another_folder_and_no_groups(capsys):
    assert main([*FLAGS[:1], "new folder/deep", *FLAGS[1:]]) == 0
    last = capsys.readouterr().out.splitlines()[0]
    assert last == "clusterfl check --config 'new folder/deep/patients.yaml'"
    assert main(shlex.split(last)[1:]) == 0
    study = yaml.safe_load(Path("new folder/deep/patients.yaml").read_text())
    assert study["federations"]["patients"]["dataset"]["path"] == "../../patients.csv"
    assert "oracle" not in study["methods"]


def test_images_arrays_and_real_targets(capsys):
    for i in range(12):
        place = Path("scans", f"office-{i % 3}", ("cat", "dog")[i // 6], f"{i}.png")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(place)
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez("clinics.npz", x=x, y=100 * x[:, 0], client=np.arange(40) % 2)
    assert main(["init", "--data", "scans", "--option", "folders=client/label", "--option", "colour=grey"]) == 0
    assert main(["init", "--data", "clinics.npz", "--option", "task=regression"]) == 0
    assert "scale them to about 1" in capsys.readouterr().err
    for name in ("scans", "clinics"):
        assert main(["check", "--config", f"{name}.yaml"]) == 0
    study = yaml.safe_load(Path("scans.yaml").read_text())
    assert "inputs" not in study["federations"]["scans"] and "fedgwc" not in study["methods"]  # of three clients


def test_names_that_look_like_numbers(capsys):
    """Unquoted, the reader would take them for 12000.0: columns, the file's own name and so the study's."""
    patients().rename(columns={"outcome": "12e3", "hospital": "1e5"}).to_csv("2e-05.csv", index=False)
    assert main(["init", "--data", "2e-05.csv", "--label", "12e3", "--client", "1e5"]) == 0
    assert main(["check", "--config", "2e-05.yaml"]) == 0
    assert "240 samples of 6 clients" in capsys.readouterr().err
    study = read([Path("2e-05.yaml")])
    assert study["study"] == "2e-05" and list(study["federations"]) == ["2e-05"]
    assert study["federations"]["2e-05"]["dataset"]["label"] == "12e3"


def test_features_are_listed_and_what_may_be_meant_otherwise(capsys):
    frame = patients().rename(columns={"part": "test", "region": "Group"})
    frame.to_csv("patients.csv", index=False)
    assert main(FLAGS) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[1:4] == [
        "features (4): age, sex, Group, test",
        "'Group' is taken as a feature: if it is the client's true cluster, give --group Group",
        "'test' is taken as a feature: if it marks test samples, give --option test=test",
    ]
    flags = [*FLAGS[:1], "as-meant", *FLAGS[1:], "--group", "Group", "--option", "test=test"]
    assert main(flags) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[1] == "features (2): age, sex" and said[2].startswith("written: ")
    many = frame.assign(**{f"x{i}": 0.5 * i for i in range(20)})
    many.to_csv("many.csv", index=False)
    assert main(["init", "--data", "many.csv", *FLAGS[3:], "--option", "features=[x3, test]"]) == 0
    assert "features (2): x3, test\n'test' is taken as a feature" in capsys.readouterr().err
    Path("many.yaml").unlink()
    assert main(["init", "--data", "many.csv", *FLAGS[3:]]) == 0
    assert (
        "features (24): age, sex, Group, test, x0, " in (said := capsys.readouterr().err) and "x7 and 12 more" in said
    )


def test_the_index_that_pandas_writes_is_refused(capsys):
    patients().to_csv("patients.csv")
    assert main(FLAGS) == 2
    said = capsys.readouterr().err
    assert "patients.csv: there is a column 'Unnamed: 0', which pandas writes" in said and "index=False" in said
    assert not Path("patients.yaml").exists()
    assert main([*FLAGS, "--option", "features=[age, sex]"]) == 0


def test_samples_of_nobody_are_dealt_out(capsys):
    frame = patients().drop(columns=["hospital", "region"])
    frame.to_csv("patients.csv", index=False)
    assert main(["init", "--data", "patients.csv", "--label", "outcome", "--option", "test=part"]) == 0
    said = capsys.readouterr().err
    assert "240 samples without given clients: distributed to 9 by a Dirichlet draw for each class, 2" in said
    assert main(["check", "--config", "patients.yaml"]) == 0
    block = read([Path("patients.yaml")])["federations"]["patients"]
    assert block["partition"] == {"scheme": "dirichlet", "clients": 9, "alpha": 0.5, "minimum": 6, "test": 0.25}
    config = [Path("patients.yaml"), write_yaml(Path("quick.yaml"), QUICK)]
    assert main(["run", "--config", *map(str, config), "--method", "ifca", "--seed", "0"]) == 0
    table = read_table(Path("results/patients/patients/seed0/partition.parquet"))
    assert len(np.unique(table["client"])) == 9 and len(table["sample"]) == 240
    assert ((table["split"] == "test") == (frame["part"] == "test").to_numpy()[table["sample"]]).all()
    sizes = np.bincount(table["client"][table["split"] == "train"])
    assert sizes.min() >= 6 and sizes.max() > sizes.min()

    frame.assign(age=frame["age"] / 50_000, Client=1).to_csv("real.csv", index=False)
    real = ["init", "--data", "real.csv", "--label", "age", "--option", "task=regression"]
    assert main([*real, "--option", "features=[sex, Client]"]) == 0
    said = capsys.readouterr().err
    assert "without given clients: distributed to 9 by chance, real targets" in said
    assert "'Client' is taken as a feature: if it says whose a sample is, give --client Client" in said
    assert read([Path("real.yaml")])["federations"]["real"]["partition"]["scheme"] == "iid"
    np.savez("few.npz", x=np.zeros((9, 2)), y=np.arange(9) % 3)
    assert main(["init", "--data", "few.npz"]) == 0 and main(["check", "--config", "few.yaml"]) == 0
    for i in range(60):
        place = Path("scans", ("cat", "dog")[i % 2], f"{i}.png")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(place)
    assert main(["init", "--data", "scans", "--option", "folders=label"]) == 0
    assert main(["check", "--config", "scans.yaml"]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_new_clients_of_a_study_of_numbers_whose_table_is_gone(capsys):
    """Then nothing says which columns its features were."""
    patients().drop(columns=["sex", "region", "part"]).assign(size=1.5).to_csv("patients.csv", index=False)
    assert main(FLAGS) == 0
    keep = {"baseline": "ifca", "methods": dict.fromkeys(["fedavg", "local", "clove", "lcfl", "fedgwc"])}
    keep |= {"warmups": None, "distances": None, "clusterings": None}
    write_yaml(Path("quick.yaml"), {**QUICK, **keep})
    assert main(["run", "--config", "patients.yaml", "quick.yaml"]) == 0
    new = ["assign", "patients", "--method", "ifca", "--data", "new.csv", "--json"]
    shutil.copy("patients.csv", "new.csv")
    capsys.readouterr()
    assert main(new) == 0
    found = capsys.readouterr().out
    Path("patients.csv").unlink()
    assert main(new) == 2
    assert "'patients.csv', which has the columns of the study's features, no longer exists" in capsys.readouterr().err
    assert main([*new, "--option", "features=[age, size]"]) == 0
    assert capsys.readouterr().out == found


def test_check_deals_samples_out(capsys):
    """What a partition says of them is known before anything runs."""
    patients().drop(columns="hospital").to_csv("patients.csv", index=False)
    assert main(["init", "--data", "patients.csv", "--label", "outcome"]) == 0
    text = Path("patients.yaml").read_text()
    for scheme, words in {
        "{scheme: natural}": "federations.patients.partition: natural: this dataset doesn't tell who owns a sample",
        "{scheme: iid, clients: 300}": "federations.patients.partition: clients: 300 clients of at least 1 for 240",
    }.items():
        lines = [f"    partition: {scheme}" if "partition:" in line else line for line in text.splitlines()]
        Path("patients.yaml").write_text("\n".join(lines))
        capsys.readouterr()
        assert main(["check", "--config", "patients.yaml"]) == 2
        assert words in capsys.readouterr().err


REFUSED = {
    "no label": (["init", "--data", "patients.csv"], "--label: name the column with the label of patients.csv;"),
    "wrong name": ([*FLAGS[:-1], "hopsital"], "no column 'hopsital'; did you mean 'hospital'?"),
    "one class": ([*FLAGS[:4], "same", *FLAGS[5:]], "all labels are 'a'; name a column with at least 2 classes"),
    "groups of nobody": ([*FLAGS[:5], "--group", "region"], "and groups consist of clients; name the"),
    "groups in clients": ([*FLAGS, "--group", "part"], "6 clients have samples of several groups"),
    "nothing": (["init"], "give a FOLDER for the workflow"),
    "no data": (["init", ".", "--label", "outcome"], "--label says how data are read; give the data, too: --data PATH"),
    "no such file": (["init", "--data", "nowhere.csv"], "no file or folder 'nowhere.csv'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_no_file(name, capsys):
    arguments, words = REFUSED[name]
    patients().assign(same="a").to_csv("patients.csv", index=False)
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["patients.csv"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_texts_from_the_table_to_describe_report_verify_and_assign(capsys):
    frame = patients()
    frame.loc[[0, 4], "sex"] = "x"  # test samples
    frame.loc[8, "outcome"] = "unclear"
    frame.to_csv("patients.csv", index=False)
    assert main([*FLAGS, "--group", "region", "--option", "test=part"]) == 0
    keep = {"baseline": "ifca", "methods": dict.fromkeys(["fedavg", "local", "oracle", "clove", "lcfl", "fedgwc"])}
    config = [Path("patients.yaml"), write_yaml(Path("quick.yaml"), QUICK | keep)]
    flags = ["--config", *map(str, config)]

    said = describe("patients", config)
    assert "Classes: 0 = healthy, 1 = ill, 2 = unclear." in said and "healthy, ill" in said
    assert "Labels that no member has in training: unclear." in said
    assert "Column 'sex' is 2 inputs, one for each category: f, m." in said
    assert "Categories of 'sex' that no training sample has, whose inputs are all zeros: x (2 samples)." in said
    assert all(words in Path("results/federations/patients.html").read_text() for words in ("all zeros: x", "unclear"))

    assert main(["run", *flags]) == 0
    assert "0 = healthy, 1 = ill" in Path("results/patients/report.html").read_text()
    counts = read_table(Path("results/patients/patients/seed0/partition.classes.parquet"))
    assert set(zip(counts["class"].tolist(), counts["label"].tolist(), strict=True)) == {
        (0, "healthy"), (1, "ill"), (2, "unclear")}  # fmt: skip
    capsys.readouterr()
    assert main(["verify", *flags]) == 0, capsys.readouterr().out

    # New clients: other columns' order, one class and one category alone, one that the study lacks.
    new = patients(clients=4, each=60).query("hospital in ('h1', 'h3') and outcome == 'ill'")
    new = new[["sex", "outcome", "hospital", "age"]].reset_index(drop=True)
    new.loc[0, "sex"] = "w"
    new.to_csv("new.csv", index=False)
    capsys.readouterr()
    found = assign(Plan.from_files(config), method="ifca", data="new.csv")
    assert "new.csv: 1 samples have categories of 'sex' that no training sample" in capsys.readouterr().err
    assert (
        found["client"].tolist() == ["h1", "h3"]
        and found["group"].tolist() == ["north", "south"]
        and (found["margin"] > 0).all()
    )
    Path("patients.csv").rename("elsewhere.csv")  # a study with categories knows its columns
    assert main(["assign", "patients", "--method", "ifca", "--data", "new.csv"]) == 0
    Path("elsewhere.csv").rename("patients.csv")
    for change, words in {
        "outcome": ("sick", "new.csv has the class 'sick', which the study doesn't have; allowed: healthy, ill"),
        "age": ("old", "new.csv: 'age' has texts such as 'old', in the study it has numbers; write"),
    }.items():
        new.assign(**{change: words[0]}).to_csv("new.csv", index=False)
        assert main(["assign", *flags, "--method", "ifca", "--data", "new.csv"]) == 2
        assert words[1] in capsys.readouterr().err
    x = new[["age", "hospital"]].assign(hospital=0.0).to_numpy(dtype=float)
    np.savez("new.npz", x=x, y=new["outcome"].to_numpy(dtype=str), client=new["hospital"].to_numpy(dtype=str))
    assert main(["assign", *flags, "--method", "ifca", "--data", "new.npz"]) == 2
    assert "new.npz: 'sex' has numbers, in the study it has texts such as 'f'" in capsys.readouterr().err
    new.assign(outcome="unclear").to_csv("new.csv", index=False)
    assert main(["assign", *flags, "--method", "ifca", "--data", "new.csv"]) == 2
    assert "client h1 has samples of class unclear, which no member of the study has" in capsys.readouterr().err


@pytest.mark.slow
def test_all_of_it_runs():
    assert main([*FLAGS, "--group", "region"]) == 0
    assert main(["run", "--config", "patients.yaml", str(write_yaml(Path("quick.yaml"), QUICK))]) == 0
    assert Path("results/patients/report.html").exists()
