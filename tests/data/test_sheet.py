"""Columns of the user's tables: what is a number, a category, a class, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from clusterfl.data.readers import own
from clusterfl.data.readers import sheet as sheet_module
from clusterfl.data.samples import Samples
from clusterfl.errors import UserError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder; files are looked for here only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def sheet(**changes: Any) -> pd.DataFrame:
    columns = {"a": [0.5, 1.5, 2.5, 3.5], "sex": ["m", "f", "f", "m"], "label": ["ill", "ok", "ok", "ill"]}
    return pd.DataFrame(columns | {"client": ["x", "y", "x", "y"]} | changes)


def table(frame: pd.DataFrame, path: str = "t.csv", **options: Any) -> Samples:
    frame.to_parquet(path) if path.endswith(".parquet") else frame.to_csv(path, index=False)
    return own.table(Path("."), **{"path": path, "label": "label", "client": "client"} | options)


def refused(*words: str, **options: Any) -> None:
    with pytest.raises(UserError) as error:
        own.table(Path("."), **{"path": "t.csv", "label": "label", "client": "client"} | options)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def write(text: str | bytes) -> None:
    Path("t.csv").write_bytes(text.encode() if isinstance(text, str) else text)


# What is read.


@pytest.mark.parametrize("path", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("kind", [None, "category"])
def test_texts_are_classes_and_categories_by_sorted_name(path, kind):
    frame = sheet() if kind is None else sheet().astype({"sex": kind, "label": kind})
    samples = table(frame, path)
    assert samples.y.tolist() == [0, 1, 1, 0] and samples.classes.tolist() == ["ill", "ok"]
    assert samples.x.tolist() == [[0.5, 1], [1.5, 0], [2.5, 0], [3.5, 1]] and samples.x.dtype == np.float32
    assert samples.columns.tolist() == ["a", "sex"] and samples.sizes.tolist() == [0, 2]
    assert samples.categories_of(1).tolist() == ["f", "m"] and len(samples.categories_of(0)) == 0


def test_numbers_have_no_names():
    samples = table(sheet(sex=[1, 2, 3, 4], label=[0, 1, 1, 0]))
    assert samples.classes is None and samples.columns is None and samples.sizes is None
    truths = table(sheet(sex=[True, False, True, False], label=[False, True, True, False]))
    assert truths.y.tolist() == [0, 1, 1, 0] and truths.classes is None and truths.x[:, 1].tolist() == [1, 0, 1, 0]


def test_numbers_that_are_kinds():
    samples = table(sheet(sex=[10, 2, 2, 10], label=[-1, 1, 1, -1]), categories=["sex", "label"])
    assert samples.categories.tolist() == ["10", "2"] and samples.x[:, 1].tolist() == [0, 1, 1, 0]
    assert samples.classes.tolist() == ["-1", "1"] and samples.y.tolist() == [0, 1, 1, 0]
    codes = table(sheet(sex=["250", "V45", "250", "V45"]), categories=["sex"])
    assert codes.categories.tolist() == ["250", "V45"]
    assert table(sheet(sex=[3.0, 4.0, 3.0, 4.0]), "t.parquet", categories=["sex"]).categories.tolist() == ["3", "4"]


def test_texts_in_parquet_that_read_as_numbers_are_classes():
    samples = table(sheet(label=["2", "10", "10", "2"]), "t.parquet")
    assert samples.classes.tolist() == ["10", "2"] and samples.y.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("values", [["test", "train"] * 2, ["Yes", "no"] * 2, [True, False] * 2, [1, 0] * 2])
def test_what_marks_test_samples(values):
    assert table(sheet(part=values), test="part").test.tolist() == [True, False, True, False]


def test_groups_and_clients_are_named_by_anything():
    samples = table(sheet(region=[True, False, True, False], client=[2.5, 1.0, 2.5, 1.0]), group="region")
    assert samples.group.tolist() == [1, 0, 1, 0] and samples.owner.tolist() == [1, 0, 1, 0]
    assert table(sheet(region=["b", "a", "b", "a"]), group="region").group.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("mark, comma", [(";", "."), (";", ","), ("\t", ".")])
def test_semicolons_tabs_and_commas_of_spreadsheets(mark, comma):
    write(sheet().to_csv(index=False, sep=mark, decimal=comma))
    samples = own.table(Path("."), path="t.csv", label="label", client="client")
    assert samples.x[:, 0].tolist() == [0.5, 1.5, 2.5, 3.5] and samples.classes.tolist() == ["ill", "ok"]


# Of clients and groups each name, which one is first, and the names; numbers alone are numbers.
NOTATIONS = [
    (["7", "07", "007", "10"], [3, 1, 0, 2], ["007", "07", "10", "7"]),
    (["12e1", "120", "12e1", "120"], [1, 0, 1, 0], ["120", "12e1"]),
    (["010", "011", "010", "011"], [0, 1, 0, 1], ["010", "011"]),
    (["1e+05", "3", "1e+05", "3"], [0, 1, 0, 1], ["1e+05", "3"]),
    (["1.0", "1", "1.0", "1"], [1, 0, 1, 0], ["1", "1.0"]),
    (["9007199254740993", "9007199254740992", "0.5", "1"], [3, 2, 0, 1], None),
    (["10", "9", " 9", "10"], [1, 0, 0, 1], [9, 10]),
    (["10.50", "9.50", "9.50", "9.50"], [1, 0, 0, 0], [9.5, 10.5]),
    (["1.000e+01", "9.000e+00", "1.000e+01", "9.000e+00"], [1, 0, 1, 0], [9, 10]),
    (["-1", "-10", "0", "0"], [1, 0, 2, 2], [-10, -1, 0]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "numbers", "names"), NOTATIONS)
def test_clients_and_groups_in_other_notations_are_others(values, numbers, names):
    lines = [f"0.5,{y},{value},{value}" for y, value in zip([0, 1, 1, 0], values, strict=True)]
    write("\n".join(["a,label,client,region", *lines]))
    samples = own.table(Path("."), path="t.csv", label="label", client="client", group="region")
    assert samples.owner.tolist() == samples.group.tolist() == numbers
    assert names is None or samples.names.tolist() == samples.group_names.tolist() == names
    sheet(client=["7", "07", "007", "10"]).to_parquet("t.parquet")
    assert len(own.table(Path("."), path="t.parquet", label="label", client="client").names) == 4


def test_categories_and_classes_in_other_notations():
    lines = ["0.5,01067,01,x", "1.5,1067,1,y", "2.5,01067,01,x", "3.5,1067,1,y"]
    write("\n".join(["a,code,label,client", *lines]))
    refused("t.csv: 'label' holds '1' in row 1, counted from 0, and '01' elsewhere, which are one number",
            "allowed: one way to write a class", "list 'label' under `categories`", categories=["code"])  # fmt: skip
    samples = own.table(Path("."), path="t.csv", label="label", client="client", categories=["code", "label"])
    assert samples.classes.tolist() == ["01", "1"] and samples.y.tolist() == [0, 1, 0, 1]
    assert samples.categories.tolist() == ["01067", "1067"]
    target = own.table(Path("."), path="t.csv", label="label", client="client", task="regression")
    assert target.y.tolist() == [1, 1, 1, 1]
    write("a,label,client\n1,01,x\n2,02,y\n")  # no two are one number: as ever
    assert own.table(Path("."), path="t.csv", label="label", client="client").y.tolist() == [1, 2]


def test_folders_in_other_notations_are_others():
    pictures(*(f"{client}/{label}/1.png" for client in ("01", "1", "10") for label in ("1", "01")))
    samples = folders("client/label")
    assert samples.names.tolist() == ["01", "1", "10"] and samples.owner.tolist() == [0, 0, 1, 1, 2, 2]
    assert samples.classes.tolist() == ["01", "1"] and samples.y.tolist() == [0, 1] * 3


def test_arrays_may_have_texts_as_labels():
    np.savez("a.npz", x=np.eye(4), y=np.array(["b", "a", "b", "a"]), client=np.array(["u", "v"] * 2))
    samples = own.arrays(Path("."), path="a.npz")
    assert samples.y.tolist() == [1, 0, 1, 0] and samples.classes.tolist() == ["a", "b"]
    np.savez("a.npz", x=np.eye(4), y=np.array([-1, 1, -1, 1]), client=np.array(["u", "v"] * 2))
    with pytest.raises(UserError, match=r"'y' holds '-1' in row 0.* number them so, write all of them as texts, or"):
        own.arrays(Path("."), path="a.npz")
    np.savez("a.npz", x=np.eye(4), y=np.array(["-1", "1", "-1", "x"]), client=np.array(["u", "v"] * 2))
    assert own.arrays(Path("."), path="a.npz").classes.tolist() == ["-1", "1", "x"]


# What is refused.


def test_a_slip_among_numbers_and_among_texts():
    table(sheet(sex=["m", "f", "f", "m"]))
    sheet(a=["0.5", "1,5", "2.5", "3.5"]).to_csv("t.csv", index=False)
    refused("t.csv: 'a' holds '1,5' in row 1, counted from 0", "allowed: numbers", "list 'a' under `categories`")
    sheet(label=["0", "1", "one", "0"]).to_csv("t.csv", index=False)
    refused("'label' holds 'one' in row 2", "list 'label' under `categories`")


def test_what_counts_as_missing_is_named():
    sheet(sex=["m", "NA", "f", "m"]).to_csv("t.csv", index=False)
    refused("'sex' holds 'NA', which counts as missing, in row 1", "(1 row in all)", "allowed: a value in each row")
    sheet(label=["ill", None, None, "ill"]).to_csv("t.csv", index=False)
    refused("'label' holds nothing in row 1", "(2 rows in all)", "fill in or drop")
    sheet(a=[0.5, None, 1, 2]).to_csv("t.csv", index=False, na_rep="n/a")
    refused("'a' holds 'n/a', which counts as missing, in row 1", "allowed: finite numbers")


def test_names_and_dates_are_no_categories():
    rows = 50
    frame = pd.concat([sheet()] * 15, ignore_index=True)[:rows]
    frame.assign(sex=[f"p{i}" for i in range(rows)]).to_csv("t.csv", index=False)
    refused("'sex' holds 50 different texts in 50 rows, such as 'p0' in row 0", "allowed: at most 1000", "`features`")
    assert own.table(Path("."), path="t.csv", label="label", client="client", categories=["sex"]).sizes[1] == 50
    for dates in (
        ["2020-01-31", "2020-02-01"] * 2,
        ["31.1.2020", "1.2.2020"] * 2,
        ["2020-01-31 10:00", "2020-02-01"] * 2,
    ):
        sheet(sex=dates).to_csv("t.csv", index=False)
        refused(f"'sex' holds '{dates[0]}' in row 0", "allowed: numbers", "`features`")


def test_other_files_and_letters():
    Path("t.xlsx").write_bytes(b"PK")
    refused("t.xlsx is no table", "allowed: CSV and Parquet", "save it so", path="t.xlsx")
    write("a,label,client\n1,ill,Orléans\n2,ok,Metz\n".encode("latin-1"))
    refused("t.csv can't be read as CSV: it isn't UTF-8 (byte 0xe9)", "in Excel: CSV UTF-8")
    sheet().set_index("client").to_parquet("t.parquet")
    refused("no column 'client'", "it is the index of this file", "reset_index()", path="t.parquet")


def test_columns_of_one_name_are_refused():
    """Else the second one, which pandas calls 'label.1', would be a feature that tells the label."""
    write("a,label,client,label\n1,0,x,0\n2,1,y,1\n")
    refused("t.csv has 2 columns 'label'", "a name of its own for each", "rename or drop one")
    write("a;label;client;a\n1;0;x;0\n2;1;y;1\n")
    refused("t.csv has 2 columns 'a'")


@pytest.mark.parametrize(("end", "values"), [(",", 5), (",,", 6)])
def test_rows_of_more_values_than_there_are_names_are_refused(end, values):
    """Pandas takes the first value as the row's name, so that each column would hold the next one's values."""
    write(f"a,client,label,note\n1,0,0,7{end}\n2,1,1,7{end}\n")
    refused("t.csv has 4 names in its first line", f"{values} values in row 0", "at the rows' ends", features=["a"])


def test_a_first_line_of_several_lines_is_one():
    write('"a\n(in cm)",label,client\n1,0,x\n2,1,y\n')
    assert own.table(Path("."), path="t.csv", label="label", client="client").x.tolist() == [[1], [2]]


def test_a_real_target_has_no_categories():
    sheet().to_csv("t.csv", index=False)
    refused("categories: 'label' is the label", "take it out", categories=["label"], task="regression")


def test_categories_that_are_no_features():
    sheet().to_csv("t.csv", index=False)
    refused("categories: 'client' is neither a feature nor the label", "allowed: a, label, sex", categories=["client"])


def test_numbers_that_float32_makes_equal_are_refused():
    """Milliseconds since 1970, which differ by seconds only: standardised as float32 they would be noise."""
    rng = np.random.default_rng(0)
    times = (1_700_000_000_000 + 20_000 * rng.normal(size=200)).round()
    frame = pd.concat([sheet()] * 50, ignore_index=True)
    words = ["'t' holds 200 different values from 1699999", "keeps 2; allowed", "subtract an offset, e.g. 1699999"]
    for kind in (np.int64, np.float64):
        frame.assign(t=times.astype(kind)).to_csv("t.csv", index=False)
        refused("t.csv: ", *words)
    frame.assign(t=times, label=times).to_parquet("t.parquet")
    refused("t.parquet: 'label' holds 200", path="t.parquet", task="regression", features=["a"])
    x = np.stack([rng.normal(size=200), times], axis=1)
    np.savez("a.npz", x=x, y=np.arange(200) % 2, client=np.arange(200) % 4)
    with pytest.raises(UserError, match=r"a.npz: 'x', number 1 of a sample, holds 200 different values"):
        own.arrays(Path("."), path="a.npz")
    assert table(frame.assign(t=times - times.min())).x.shape == (200, 3)


ORDINARY = {
    "uniform": lambda rng, n: rng.random(n),
    "normal": lambda rng, n: rng.normal(size=n),
    "scaled": lambda rng, n: 1e12 * rng.normal(size=n),
    "small": lambda rng, n: 1e-30 * rng.lognormal(size=n),
    "shifted": lambda rng, n: 1e4 + rng.normal(size=n),
    "coordinates": lambda rng, n: 52.5 + 0.05 * rng.random(n),  # float32 keeps few, 0.4 m apart
    "seconds of a year": lambda rng, n: 1_700_000_000 + rng.integers(0, 31_536_000, n),
    "whole": lambda rng, n: rng.integers(-(10**9), 10**9, n),
    "constant": lambda rng, n: np.full(n, 1e12 + 1),
    "two values": lambda rng, n: 1e12 + rng.integers(0, 2, n),
    "years": lambda rng, n: rng.integers(1990, 2025, n),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_numbers_are_never_refused_as_too_close(name):
    values = ORDINARY[name](np.random.default_rng(0), 100_000)
    np.testing.assert_array_equal(sheet_module.Column("t.csv", "t", values).singles(), values.astype(np.float32))


# Folders of images.


def pictures(*paths: str) -> None:
    for i, path in enumerate(paths):
        Path("img", path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 5, 3), i, np.uint8)).save(Path("img", path))


def folders(levels: str | None, **options: Any) -> Samples:
    return own.images(Path("."), images="img", folders=levels, **options)


def test_folders_by_client_and_class():
    pictures("b/dog/1.png", "a/cat/2.png", "a/dog/3.jpeg", "b/cat/1.png")
    (Path("img") / ".DS_Store").write_text("hidden")
    samples = folders("client/label")
    assert samples.x.shape == (4, 3, 4, 5) and samples.x[:, 0, 0, 0].tolist()[0] == 1  # in the order of their paths
    assert samples.owner.tolist() == [0, 0, 1, 1] and samples.y.tolist() == [0, 1, 0, 1]
    assert samples.classes.tolist() == ["cat", "dog"] and samples.test is None and samples.group is None
    assert folders("group/label").group.tolist() == [0, 0, 1, 1]


def test_folders_of_numbers_and_of_test_images():
    pictures(*(f"{part}/{label}/{i}.png" for part in ("train", "test") for label in (2, 10) for i in range(2)))
    samples = folders("test/label")
    assert samples.y.tolist() == [10, 10, 2, 2] * 2 and samples.classes is None and samples.owner is None
    assert samples.test.tolist() == [True] * 4 + [False] * 4


def test_wrong_folders():
    pictures("b/dog/1.png", "a/cat/2.png")
    for levels, words in {
        None: "images: give either path, a table that lists the images, or folders",
        "client": "folders: 'client'; allowed: label, and client, group and test",
        "client/klass": "folders: 'client/klass'; allowed: label",
        "label": "images: 'img' holds a/cat/2.png; allowed: images (.png",
    }.items():
        with pytest.raises(UserError) as error:
            folders(levels)
        assert words in str(error.value)
    Path("img/a/cat/notes.txt").write_text("no image")
    with pytest.raises(UserError, match=r"'img' holds a/cat/notes\.txt; allowed: images"):
        folders("client/label")
