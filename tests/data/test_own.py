"""The user's own data: what is read, what is refused and how that is reported, what is only remarked upon."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import put, write_yaml
from PIL import Image

from clusterfl.cli import main
from clusterfl.data.readers import own
from clusterfl.errors import UserError
from clusterfl.pipeline.describe import describe
from clusterfl.pipeline.jobs import Plan


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder; files are looked for here only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def sheet(**changes: Any) -> dict[str, Any]:
    """Columns of a small sound table: two clients, two classes."""
    columns = {"a": [0.5, 1.5, 2.5, 3.5], "b": [1, 2, 3, 4], "label": [0, 1, 0, 1], "client": ["x", "y", "x", "y"]}
    return columns | changes


def table(path: str = "t.csv", columns: Any = None, **options: Any) -> Any:
    frame = pd.DataFrame(sheet() if columns is None else columns)
    frame.to_parquet(path) if path.endswith((".parquet", ".pq")) else frame.to_csv(path, index=False)
    return own.table(Path("."), **{"path": path, "label": "label", "client": "client"} | options)


def pictures(count: int = 4, size: tuple[int, int] = (4, 5), mode: str = "RGB") -> None:
    Path("images").mkdir(exist_ok=True)
    shape = size if mode == "L" else (*size, len(mode))
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)):
        Image.fromarray(pixels).save(f"images/{i}.png")


def listed(**changes: Any) -> pd.DataFrame:
    paths = {"path": [f"{i}.png" for i in range(4)], "label": [0, 1, 0, 1], "client": ["x", "y", "x", "y"]}
    frame = pd.DataFrame(paths | changes)
    frame.to_csv("images.csv", index=False)
    return frame


def images(**options: Any) -> Any:
    return own.images(Path("."), **{"path": "images.csv", "images": "images"} | options)


def bundle(**changes: Any) -> dict[str, Any]:
    return {"x": np.eye(4), "y": np.arange(4), "client": np.arange(4) % 2} | changes


def arrays(found: dict[str, Any] | None = None, **options: Any) -> Any:
    np.savez("a.npz", **(bundle() if found is None else found))
    return own.arrays(Path("."), **{"path": "a.npz"} | options)


# What is read.


@pytest.mark.parametrize("path", ["t.csv", "t.parquet", "t.pq"])
def test_a_table(path):
    samples = table(path, sheet(part=[False, True, False, True], kind=["n", "m", "n", "m"]), test="part", group="kind")
    assert samples.x.dtype == np.float32 and samples.x.tolist() == [[0.5, 1], [1.5, 2], [2.5, 3], [3.5, 4]]
    assert samples.y.dtype == np.int64 and samples.y.tolist() == [0, 1, 0, 1]
    assert samples.test.tolist() == [False, True, False, True]
    assert samples.owner.tolist() == [0, 1, 0, 1] and samples.group.tolist() == [1, 0, 1, 0]
    chosen = table(path, sheet(id=["p", "q", "r", "s"]), features=["b"])
    assert chosen.x.tolist() == [[1], [2], [3], [4]] and chosen.test is None and chosen.group is None


def test_real_targets():
    samples = table(columns=sheet(label=[0.5, -1, 2, 7]), task="regression")
    assert samples.y.dtype == np.float32 and samples.y.tolist() == [0.5, -1, 2, 7]


def test_clients_are_numbered_in_the_order_of_their_names():
    assert table(columns=sheet(client=[10, 9, 100, 9])).owner.tolist() == [1, 0, 2, 0]  # numbers by value
    assert table(columns=sheet(client=["10", "b9", "100", "b9"])).owner.tolist() == [0, 2, 1, 2]  # names by letters


def test_nullable_columns_of_parquet():
    samples = table("t.parquet", sheet(b=pd.array([1, 2, 3, 4], dtype="Int64")))
    assert samples.x[:, 1].tolist() == [1, 2, 3, 4]


def test_images():
    pictures()
    listed()
    samples = images()
    assert samples.x.shape == (4, 3, 4, 5) and samples.x.dtype == np.uint8
    np.testing.assert_array_equal(samples.x[2].transpose(1, 2, 0), np.asarray(Image.open("images/2.png")))
    assert images(colour="grey").x.shape == (4, 1, 4, 5)
    assert images(size=3).x.shape == (4, 3, 3, 3)
    frame = pd.read_csv("images.csv").rename(columns={"path": "f", "label": "l", "client": "c"})
    frame.to_csv("images.csv", index=False)
    np.testing.assert_array_equal(images(file="f", label="l", client="c").x, samples.x)


def test_resizing_takes_the_middle():
    """A picture twice as wide as high: black, white in the middle square."""
    pictures()
    picture = np.zeros((8, 16), np.uint8)
    picture[:, 4:12] = 255
    for i in range(4):
        Image.fromarray(picture).save(f"images/{i}.png")
    listed()
    assert (images(size=8, colour="grey").x == 255).all()


def test_arrays():
    samples = arrays(bundle(x=np.arange(4, dtype=np.int64)[:, None], test=np.array([0, 1, 0, 1]), group=np.arange(4)))
    assert samples.x.dtype == np.int64 and samples.test.dtype == bool and samples.group.tolist() == [0, 1, 2, 3]
    assert arrays().x.dtype == np.float32
    assert arrays(bundle(x=np.zeros((4, 3, 2, 2), np.uint8))).x.dtype == np.uint8


# What is refused.

TABLES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "missing column": ({}, {"label": "lable"}, ["no column 'lable'", "did you mean 'label'?", "allowed: a, b, client"]),
    "missing feature": ({}, {"features": ["a", "c"]}, ["no column 'c'", "allowed: a, b"]),
    "no features": ({}, {"features": []}, ["no feature columns beside label, client", "add some"]),
    "label as feature": ({}, {"features": ["a", "label"]}, ["features: 'label' is the label's column", "take it out"]),
    "NaN": (
        {"a": [0.5, np.nan, 1, np.nan]},
        {},
        ["'a' holds nothing in row 1, counted from 0 (2 rows in all)", "fill in or"],
    ),
    "infinity": (
        {"a": [0.5, 1, np.inf, 1]},
        {},
        ["'a' holds 'inf' in row 2", "(1 row in all)", "allowed: finite numbers"],
    ),
    "beyond float32": ({"a": [0.5, 1, 1e300, 1]}, {}, ["'a' holds '1e+300' in row 2", "allowed: finite numbers"]),
    "texts": (
        {"b": [1, 2, "tall", 4]},
        {},
        ["'b' holds 'tall' in row 2", "allowed: numbers", "list 'b' under `categories`", "`features`"],
    ),
    "text among labels": ({"label": ["0", "1", "l", "0"]}, {}, ["'label' holds 'l' in row 2", "under `categories`"]),
    "negative label": (
        {"label": [0, -1, 0, 1]},
        {},
        ["'label' holds '-1' in row 1", "allowed: classes 0, 1, 2, ...", "or texts"],
    ),
    "real label": ({"label": [0, 0.5, 0, 1]}, {}, ["'label' holds '0.5' in row 1", "task: regression"]),
    "number as label": ({"label": [0, 1, 2, 4e9]}, {}, ["'label' holds '4000000000.0' in row 3", "up to 999999"]),
    "missing label": ({"label": [0, 1, None, 1]}, {}, ["'label' holds nothing in row 2"]),
    "one client": ({"client": ["x"] * 4}, {}, ["'client' has the one value 'x'", "name what has at least 2"]),
    "missing client": (
        {"client": ["x", None, "y", "y"]},
        {},
        ["'client' holds nothing in row 1", "(1 row ", "fill in or"],
    ),
    "test that isn't true or false": (
        {"b": [0, 1, 2, 1]},
        {"test": "b"},
        ["'b' holds '2' in row 2", "allowed: true, false, 0, 1, yes, no, test, train"],
    ),
}


def one_sentence(error: pytest.ExceptionInfo[UserError], words: list[str]) -> None:
    """The message has all the words, the file's or option's name first, and stays on one line."""
    message = str(error.value)
    print(message)
    assert "\n" not in message and not message.endswith(".")
    for word in words:
        assert word in message


@pytest.mark.parametrize("name", TABLES)
def test_wrong_tables(name):
    changes, options, words = TABLES[name]
    with pytest.raises(UserError) as error:
        table(columns=sheet(**changes), **options)
    one_sentence(error, words if words[0].startswith("features") else ["t.csv", *words])


def test_texts_and_dates_and_gaps_in_parquet():
    for column, words in (
        ([1, 2, None, 4], "'b' holds nothing in row 2"),
        (pd.array([1, None, 3, 4], dtype="Int64"), "'b' holds nothing in row 1"),
        (pd.date_range("2020-01-01", periods=4), "'b' holds '2020-01-01"),
        (["1", "2", "3", "4"], "'b' holds '1' in row 0, counted from 0; allowed: numbers"),
    ):
        with pytest.raises(UserError) as error:
            table("t.parquet", sheet(b=column))
        one_sentence(error, ["t.parquet", words])


UNREADABLE = {
    "empty.csv": (b"", "can't be read as CSV"),
    "header.csv": (b"a,b,label,client\n", "has no rows"),
    "ragged.csv": (b"a,label,client\n1,0,x\n1,0,x,y,z\n", "can't be read as CSV"),
    "latin.csv": ("a,label,client\n1,0,Orléans\n1,0,Metz\n".encode("latin-1"), "can't be read as CSV"),
    "torn.parquet": (b"PAR1nothing", "can't be read as Parquet"),
    "torn.pq": (b"PAR1nothing", "can't be read as Parquet"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_tables(name):
    content, words = UNREADABLE[name]
    Path(name).write_bytes(content)
    with pytest.raises(UserError) as error:
        own.table(Path("."), path=name, label="label", client="client")
    one_sentence(error, [name, words, "write it again"])


def test_a_file_that_is_not_there():
    with pytest.raises(UserError, match=r"no file or folder 'nowhere.csv' in .* give its right path"):
        own.table(Path("."), path="nowhere.csv", label="label", client="client")


def test_wrong_images(folder):
    pictures()
    listed()
    Image.fromarray(np.zeros((6, 6, 3), np.uint8)).save("images/2.png")
    with pytest.raises(UserError) as error:
        images()
    one_sentence(error, ["images/2.png has shape (3, 6, 6)", "before it (3, 4, 5)", "give `size`"])
    assert images(size=4).x.shape == (4, 3, 4, 4)

    Image.fromarray(np.full((4, 5), 60000, np.uint16)).save("images/2.png")
    with pytest.raises(UserError) as error:
        images()
    one_sentence(error, ["images/2.png has more than 8 bits a channel", "save it with 8 bits"])

    for content in (b"no image", Path("images/1.png").read_bytes()[:60]):
        Path("images/2.png").write_bytes(content)
        with pytest.raises(UserError) as error:
            images()
        one_sentence(error, ["images/2.png can't be read as an image", "get it again, or leave its row out"])

    Path("images/2.png").unlink()
    with pytest.raises(UserError) as error:
        images()
    one_sentence(error, ["there is no image", "images/2.png", "put it there, or leave its row out"])


def test_paths_stay_inside_the_folder(folder):
    pictures()
    Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save("secret.png")
    for name in ("../secret.png", str(folder / "secret.png")):
        listed(path=["0.png", name, "2.png", "3.png"])
        with pytest.raises(UserError) as error:
            images()
        one_sentence(error, ["images.csv, row 1", f"the path '{name}' leads out of", "must stay inside"])
    (folder / "images" / "4.png").symlink_to(folder / "secret.png")
    listed(path=["0.png", "4.png", "2.png", "3.png"])
    with pytest.raises(UserError, match="leads out of"):
        images()


def test_images_need_a_folder_of_their_own(folder):
    pictures()
    listed()
    with pytest.raises(UserError) as error:
        images(images=".")
    one_sentence(error, ["images: '.' holds the working folder", "folder of their own"])


ARRAYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "missing array": ({"x": np.eye(4), "client": np.arange(4)}, ["no array 'y'", "allowed: client, x"]),
    "misspelt": (
        {"x": np.eye(4), "y": np.arange(4), "clients": np.arange(4)},
        ["holds an array 'clients', which isn't read; did you mean 'client'?"],
    ),
    "rows": (bundle(y=np.arange(3)), ["equally many rows", "'y': 3", "write the file again"]),
    "no rows": ({"x": np.zeros((0, 2)), "y": np.zeros(0), "client": np.zeros(0)}, ["has no rows"]),
    "texts": (bundle(x=np.array([["a"]] * 4)), ["x holds <U1", "numbers are needed"]),
    "no numbers": (bundle(x=np.empty((4, 0))), ["x has shape (4, 0)", "write it again"]),
    "single numbers": (bundle(x=np.arange(4)), ["x has shape (4,)", "need the shape (N, 1)"]),
    "NaN": (
        bundle(x=np.array([[1, 2], [3, 4], [5, np.nan], [6, 7]])),
        ["'x' holds 'nan' in row 2", "allowed: finite numbers"],
    ),
    "negative label": (bundle(y=-np.arange(4)), ["'y' holds '-1' in row 1", "allowed: classes 0"]),
    "one client": (bundle(client=np.zeros(4, int)), ["'client' has the one value '0'"]),
    "Python objects": (bundle(y=np.array([0, "a", None, {}], dtype=object)), ["without Python objects", "numpy.savez"]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_wrong_arrays(name):
    found, words = ARRAYS[name]
    with pytest.raises(UserError) as error:
        arrays(found)
    one_sentence(error, ["a.npz", *words])


def test_unreadable_arrays():
    arrays()
    whole = Path("a.npz").read_bytes()
    np.save("a.npy", np.eye(2))
    for content in (
        b"",
        b"PK",
        whole[: len(whole) // 2],
        whole[:60] + b"\xff\xff" + whole[62:],
        Path("a.npy").read_bytes(),
    ):
        Path("a.npz").write_bytes(content)
        with pytest.raises(UserError) as error:
            own.arrays(Path("."), path="a.npz")
        one_sentence(error, ["a.npz can't be read as .npz", "numpy.savez"])


# Through the stages.


def study(frame: pd.DataFrame, place: Path = Path("."), **partition: Any) -> Path:
    """Write a table and a study of it with two methods, of which FedAvg takes no time."""
    place.mkdir(exist_ok=True)
    frame.to_csv(place / "own.csv", index=False)
    settings = {
        "study": "own",
        "seeds": {"runs": [0]},
        "engine": {"device": "cpu", "backend": "loop"},
        "model": {"model": "mlp", "hidden": [4]},
        "training": {"rounds": 1, "epochs": None, "steps": 1},
        "federations": {
            "own": {
                "dataset": {"dataset": "table", "path": "own.csv", "label": "label", "client": "client"},
                "partition": {"scheme": "natural"} | partition,
            },
            "digits": {"dataset": "digits", "partition": {"scheme": "iid", "clients": 3}},
        },
        "methods": {"fedavg": {"method": "fedavg"}},
    }
    return write_yaml(place / "own.yaml", settings)


def rows(clients: int = 4, each: int = 10, classes: int = 2, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(clients * each, 3)).round(3), columns=["a", "b", "c"])
    return frame.assign(label=rng.integers(0, classes, len(frame)), client=np.repeat(np.arange(clients), each))


FLAGS = ["--federation", "own", "--seed", "0"]


@pytest.mark.slow
def test_a_member_without_training_data(capsys):
    config = study(rows().drop(index=range(21, 30)), test=0.6)  # client 2 has one row, which the share takes
    assert main(["run", "--config", str(config)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "own.csv (client 'client'): client 2 (1 in all) has no training sample; every member" in said
    assert "use a partition.minimum that leaves such clients out, smaller test and validation shares, or a" in said


def test_that_nobody_has_test_samples_is_said(capsys):
    config = study(rows(), test=0.001)
    said = "No member has a test sample, so nothing is scored on test data; partition.test is a share of each client's"
    assert main(["check", "--config", str(config)]) == 0
    assert capsys.readouterr().err.startswith(f"clusterfl: own: {said}")
    for share, count in ((0.001, 1), (0.25, 0)):
        config = study(rows(), test=share)
        assert main(["run", "--config", str(config), *FLAGS, "--method", "fedavg"]) == 0
        assert sum(line.startswith(said) for line in capsys.readouterr().err.splitlines()) == count


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_clients_left_out_are_named_and_the_others_keep_their_names(capsys):
    """Client 0 has test samples alone, so that the partition's client 0 is the data's 1; as a name it isn't dropped."""
    frame = rows().assign(part=lambda f: (f["client"] == 0) | (np.arange(len(f)) % 10 < 2))
    config = study(frame.drop(index=range(32, 36)), minimum=5)
    write_yaml(config, put(study_of(config), "federations.own.dataset.test", "part"))
    said = [
        "Clients of the data left out, because they have no training samples: 0.",
        "Clients of the data left out, because they have fewer than 5 training samples (partition.minimum): 3.",
    ]
    shown = describe("own", [config])
    assert "own: 2 members" in shown and all(line in shown for line in said)
    assert json.loads(describe("own", [config], as_json=True))["remarks"][-2:] == said
    capsys.readouterr()
    assert main(["check", "--config", str(config)]) == 0
    assert capsys.readouterr().err.splitlines() == [f"clusterfl: own: {line}" for line in said]
    assert main(["run", "--config", str(config)]) == 0
    printed = capsys.readouterr().err.splitlines()
    assert all(line in printed for line in said)
    table = pd.read_csv("results/own/tables/clients.csv").query("federation == 'own'")
    assert dict(zip(table["client"], table["client_name"].astype(int), strict=True)) == {0: 1, 1: 2}
    report = Path("results/own/report.html").read_text(encoding="utf-8")
    assert all(line in report for line in said)


def test_nobody_left_to_train_is_said_with_file_and_column(capsys):
    config = study(rows().assign(part=1))
    write_yaml(config, put(study_of(config), "federations.own.dataset.test", "part"))
    assert main(["describe", "own", "--config", str(config)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "own.csv (client 'client', test 'part'): natural: no client has a training sample: all 40 samples" in said
    assert "mark fewer, or divide each client's own: partition.split: share" in said


def test_a_wrong_table_is_seen_before_anything_runs(capsys):
    """By the check of the settings already, which leaves no file behind."""
    frame = rows()
    config = study(frame)
    assert main(["check", "--config", str(config)]) == 0
    capsys.readouterr()
    frame.loc[17, "b"] = np.nan
    frame.to_csv("own.csv", index=False)
    before = sorted(Path().rglob("*"))
    assert main(["check", "--config", str(config)]) == 2
    (line,) = capsys.readouterr().err.splitlines()[1:]
    assert all(words in line for words in ("own.csv", "'b' holds nothing in row 17", "drop them"))
    assert sorted(Path().rglob("*")) == before


def test_settings_that_such_samples_do_not_suit_are_seen_before_anything_runs(capsys):
    """Rotations of a table's rows; both before and after what was read of it is under data/."""
    config = study(rows())
    turned = put(study_of(config), "federations.own.partition", {"scheme": "rotated", "clients": 4, "angles": [0, 90]})
    said = "federations.own: 'rotate90' needs images [channels, height, width]; the samples have shape (3,); choose"
    for _ in range(2):
        write_yaml(config, turned)
        assert main(["check", "--config", str(config)]) == 2
        assert said in capsys.readouterr().err
        assert main(["run", "--config", str(config), *FLAGS, "--method", "fedavg"]) == 2  # after the download
        assert said.removeprefix("federations.own: ") in capsys.readouterr().err
    write_yaml(config, put(turned, "federations.own.partition.angles", [0]))
    assert main(["check", "--config", str(config)]) == 0


def test_images_that_are_missing_are_seen_before_anything_runs(capsys):
    """And what the table says of them; the images themselves take too long to read."""
    pictures()
    listed()
    config = study(rows())
    block = {"dataset": "images", "path": "images.csv", "images": "images"}
    write_yaml(config, put(study_of(config), "federations.own.dataset", block))
    assert main(["check", "--config", str(config)]) == 0
    Path("images/2.png").unlink()
    assert main(["check", "--config", str(config)]) == 2
    assert "images.csv, row 2, counted from 0: there is no image" in capsys.readouterr().err
    listed(client=["x", None, "y", "y"])
    assert main(["check", "--config", str(config)]) == 2
    assert "images.csv: 'client' holds nothing in row 1" in capsys.readouterr().err


def test_a_client_with_marked_test_samples_only_is_left_out():
    frame = rows()
    config = study(frame.assign(part=frame["client"] == 2))
    write_yaml(config, put(study_of(config), "federations.own.dataset.test", "part"))
    assert "own: 3 members" in describe("own", [config])


def study_of(config: Path) -> dict[str, Any]:
    import yaml

    return yaml.safe_load(config.read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_relative_paths_are_found_beside_the_configuration(folder, monkeypatch):
    config = study(rows(), folder / "project")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert main(["run", "--config", "../project/own.yaml"]) == 0
    assert Path("results/own/report.html").exists() and not (folder / "project" / "results").exists()
    for command in Plan.from_files([config]).jobs():
        if command.stage == "download" and "own.csv" in command.command:
            assert main(shlex.split(command.command)[1:]) == 0  # the command can be pasted


def test_whole_numbers_are_tokens_which_a_network_for_features_refuses(capsys):
    np.savez("a.npz", **bundle(x=np.arange(120).reshape(40, 3), y=np.arange(40) % 2, client=np.arange(40) % 4))
    config = study(rows())
    write_yaml(config, put(study_of(config), "federations.own.dataset", {"dataset": "arrays", "path": "a.npz"}))
    assert main(["run", "--config", str(config)]) == 2
    assert "whole numbers are tokens, so store features as real numbers" in capsys.readouterr().err


def test_a_module_is_looked_for_in_the_working_folder_of_now(folder, monkeypatch):
    """Python itself keeps the first folder that "." meant."""
    for name in ("first", "second"):
        (folder / name).mkdir()
        monkeypatch.chdir(folder / name)
        text = "import numpy as np\n\ndef mine(folder):\n    return np.eye(40), np.arange(40) % 2\n"
        Path(f"module_{name}.py").write_text(text)
        config = study(rows())
        write_yaml(config, put(study_of(config), "federations.own", {
            "dataset": f"module_{name}:mine", "partition": {"scheme": "iid", "clients": 2}}))  # fmt: skip
        assert "own: 2 members" in describe("own", [config])


@pytest.mark.usefixtures("without_figures")
def test_a_changed_file_is_named_and_only_what_depends_on_it_is_remade(capsys):
    config = str(study(rows()))
    assert main(["run", "--config", config]) == 0
    capsys.readouterr()
    assert main(["run", "--config", config]) == 0
    assert capsys.readouterr().err == ""

    rows(seed=1).to_csv("own.csv", index=False)
    for stage in (["partition"], ["federate", "--method", "fedavg"]):
        assert main([*stage, "--config", config, *FLAGS]) == 2
        said = capsys.readouterr().err
        assert "'own.csv' has changed since data/table-" in said and "rebuild it: clusterfl download table" in said
        assert said.count("\n") == 1

    # Made again by the command that the message names, the table no longer fits the partition.
    assert main(shlex.split(said.partition("rebuild it: ")[2].partition(", then")[0])[1:]) == 0
    capsys.readouterr()
    assert main(["federate", "--method", "fedavg", "--config", config, *FLAGS]) == 2
    said = capsys.readouterr().err
    assert "samples.safetensors has changed since results/own/own/seed0/partition.parquet was made from it" in said
    assert "clusterfl partition --config own.yaml --federation own --seed 0" in said

    assert main(["run", "--config", config]) == 0
    done = [line.split("] ")[1] for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert done == ["partition own seed 0", "federate fedavg own seed 0", "report"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_a_changed_folder_of_images_is_noticed(capsys):
    pictures()
    listed()
    frame = pd.concat([pd.read_csv("images.csv")] * 4)
    frame.to_csv("images.csv", index=False)
    block = {"dataset": "images", "path": "images.csv", "images": "images"}
    config = study(rows())
    write_yaml(config, put(study_of(config), "federations.own.dataset", block))
    assert main(["run", "--config", str(config)]) == 0
    Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save("images/2.png")
    capsys.readouterr()
    assert main(["partition", "--config", str(config), *FLAGS]) == 2
    assert "'images' has changed since data/images-" in capsys.readouterr().err


@pytest.mark.parametrize(
    "shape, dtype", [((2, 4, 4), "u1"), ((4, 4, 4), "u1"), ((4, 4), "u1"), ((6,), "i8"), ((5,), "f4")]
)
def test_whatever_the_samples_are_they_are_described(shape, dtype):
    """Images of any number of channels, tokens and features: with pictures where they can be drawn."""
    x = np.random.default_rng(0).integers(0, 50, (40, *shape)).astype(dtype)
    np.savez("a.npz", **bundle(x=x, y=np.arange(40) % 3, client=np.arange(40) % 4, group=np.arange(40) % 2))
    config = study(rows())
    write_yaml(config, put(study_of(config), "federations.own.dataset", {"dataset": "arrays", "path": "a.npz"}))
    assert "own: 4 members" in describe("own", [config])


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_what_is_remarked_upon_and_not_refused(capsys):
    """One class in a client, gaps in the labels, labels unseen in training, members without test data."""
    frame = rows(clients=4, each=10)
    frame["label"] = np.where(frame["client"] == 0, 0, frame["label"])  # client 0: one class
    frame.loc[frame["label"] == 1, "label"] = 4  # labels 1 to 3: gaps
    frame["part"] = np.tile(np.arange(10) < 3, 4)
    frame.loc[frame["client"] == 3, "part"] = False  # client 3: no test data
    frame.loc[10, "label"] = 6  # a test sample of client 1 whose class nobody trains with
    config = study(frame)
    write_yaml(config, put(study_of(config), "federations.own.dataset.test", "part"))
    said = describe("own", [config])
    assert "Clients with a single class in training: 1 of 4." in said
    assert "Labels without any sample: 1-3, 5." in said
    assert "Labels that no member has in training: 6." in said
    assert "Members with test samples of classes that they don't have in training: 1" in said
    assert "Members without test samples, who don't count in test scores: 1 of 4." in said
    assert main(["run", "--config", str(config)]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_a_finished_study_is_looked_at_without_its_data(capsys):
    """The table was moved away after the run: what was read of it is under data/, by its digest."""
    config = study(rows())
    assert main(["run", "--config", str(config)]) == 0
    capsys.readouterr()
    assert main(["summary", "own"]) == 0
    whole = capsys.readouterr().out
    Path("own.csv").rename("elsewhere.csv")
    assert main(["summary", "own"]) == 0 and capsys.readouterr().out == whole
    for words in (["own"], ["--config", str(config)]):
        assert main(["verify", *words]) == 0
        said = capsys.readouterr().out
        assert "warning: 'own.csv' no longer exists, so the data read from it weren't compared with it" in said
        assert "study 'own': sound" in said
    if importlib.util.find_spec("rocrate") is not None:
        assert main(["crate", "own", "--license", "MIT", "--author", "A"]) == 0
        assert Path("crates/own/ro-crate-metadata.json").exists()
        capsys.readouterr()
    for command in ("run", "check"):  # these read it
        assert main([command, "--config", str(config)]) == 2
        assert "no file or folder 'own.csv'" in capsys.readouterr().err

    # Damage of what was read is still found, and so is a source that is there and another one.
    samples = next(Path("data").glob("table-*/samples.safetensors"))
    before = samples.read_bytes()
    samples.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    assert main(["verify", "own"]) == 1
    assert f"{samples}: " in capsys.readouterr().out
    samples.write_bytes(before)
    rows(seed=1).to_csv("own.csv", index=False)
    assert main(["verify", "own"]) == 1
    assert "'own.csv' has changed" in capsys.readouterr().out
    Path("own.csv").unlink()
    shutil.rmtree(samples.parent)
    assert main(["verify", "own"]) == 1
    said = capsys.readouterr().out
    assert f"{samples}: missing" in said and "settings.json" not in said
