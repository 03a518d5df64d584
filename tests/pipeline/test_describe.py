"""The catalogue of federations: every one is sound and pinned; pages and lists say what is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clusterfl.cli import main
from clusterfl.config import loading
from clusterfl.data.catalogue import rows
from clusterfl.data.federations import catalogue, known, pins
from clusterfl.errors import UserError
from clusterfl.pipeline import describe
from clusterfl.report import portrait

MADE = [name for name in catalogue() if not rows()[loading.federation_block({"base": name}).dataset.part].sources]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", catalogue())
def test_every_federation_is_a_sound_block(name):
    block = loading.federation_block({"base": name})
    block.partition.resolved()
    row = rows()[block.dataset.part]
    # What is built from a stand-in's data is a stand-in itself, of a federation that is there.
    assert known(name).stand_in_for in ({None} if row.stand_in_for is None else set()) | set(catalogue())
    means = block.inputs.mean
    assert len(means) in (0, row.shape[0]) and (not means or row.shape[1:])


def test_pins_are_of_the_catalogue_and_cover_what_is_made_here():
    assert set(pins()) <= set(catalogue()) and set(MADE) <= set(pins())
    # Federations differ by their data and partitions, and by nothing else.
    blocks = {name: str((known(name).dataset, known(name).partition)) for name in pins()}
    assert len({p.digest for p in pins().values()}) == len(set(blocks.values()))


@pytest.mark.parametrize("name", MADE)
def test_generated_federations_are_the_pinned_ones(name, folder):
    pin, _ = describe.rebuild(name)
    assert pin == pins()[name]


@pytest.mark.slow
def test_downloaded_federations_are_the_pinned_ones(folder):
    """One of each dataset that the mirror has; `clusterfl federations --build` checks all."""
    if not os.environ.get("CLUSTERFL_MIRROR"):
        pytest.skip("the environment variable CLUSTERFL_MIRROR names no mirror")
    chosen = {"lcfl-rotmnist-1200", "clove-fashion-ls2", "rr-shakespeare-tiny", "clove-agnews-test"}
    found = {name: describe.rebuild(name)[0] for name in sorted(chosen)}
    assert found == {name: pins()[name] for name in chosen}


def test_papers_counts():
    """Numbers printed in the papers or fixed by their code."""
    counts = {name: (p.clients, p.groups, p.train, p.test) for name, p in pins().items()}
    assert counts["lcfl-rotmnist-1200"] == (1200, 4, 240_000, 40_000)
    assert counts["lcfl-rotcifar10"] == (200, 2, 100_000, 20_000)
    assert counts["ifca-rotmnist-4800"] == (5600, 4, 240_000, 40_000)
    assert counts["rr-fashion-balanced"] == (1000, 4, 60_000, 10_000)
    assert counts["clove-mnist-ls1"][:3] == (25, 5, 25 * 500)
    assert counts["clove-cifar10-concept"][:3] == (12, 4, 12 * 1000)
    assert counts["clove-agnews-test"] == (30, 6, 30 * 100, 30 * 25)
    assert counts["fedgwc-cifar100-alpha0.5"] == (100, 0, 50_000, 9_900)


def test_list_is_json_and_nothing_else_on_stdout(folder, capsys):
    assert main(["federations", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found] == list(catalogue())
    assert {row["data"] for row in found} <= {"here", "made here", "in the mirror", "must be fetched"}
    assert not list(Path().iterdir())  # nothing is built
    made = next(row for row in found if row["name"] == "clove-linear")
    assert made["data"] == "made here" and made["clients"] == 25 and len(made["digest"]) == 64
    assert main(["federations"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[:3] == ["name", "paper", "dataset"]


@pytest.mark.slow
def test_describe_writes_a_page(folder, capsys):
    assert main(["describe", "digits-rotated"]) == 0
    said = capsys.readouterr().out
    page = Path("results/federations/digits-rotated.html").read_text(encoding="utf-8")
    for words in ("40 members", "as pinned", "class shares (total variation, 0 to 1): 0.0"):
        assert words in said
    assert "40 clients, 4 planted groups" in page and page.count("<svg") == 2
    assert main(["describe", "digits-rotated", "--seed", "1"]) == 0
    assert "pinned" not in capsys.readouterr().out


def test_describe_is_json_and_nothing_else_on_stdout(folder, capsys):
    """The same counts, as numbers, and all groups."""
    main(["describe", "digits-rotated", "--json"])
    found = json.loads(capsys.readouterr().out)
    pin = pins()["digits-rotated"]
    assert (found["name"], found["seed"], found["digest"], found["pinned"]) == ("digits-rotated", 0, pin.digest, True)
    assert Path(found["page"]).is_file()
    assert sum(found["roles"].values()) == sum(row["clients"] for row in found["groups"])
    samples = {row["per client"]: row["in all"] for row in found["sizes"]}
    for kind in ("train samples", "test samples"):
        assert samples[kind] == sum(row[kind] for row in found["groups"]) > 0
    assert any(line.startswith("Distance between groups") for line in found["remarks"])


def test_describe_a_studys_federation_by_its_file(folder, capsys):
    text = "study: s\nfederations: {mine: {base: clove-linear, partition: {newcomers: 5, server: {train: 7}}}}\n"
    Path("s.yaml").write_text(text + "methods: {fedavg: {method: fedavg}}")
    assert main(["describe", "mine", "--config", "s.yaml"]) == 0
    said = capsys.readouterr().out
    assert "20 members, 5 newcomers" in said and "Samples kept by the server: 7." in said
    assert main(["describe", "mne", "--config", "s.yaml"]) == 2
    assert "did you mean 'mine'" in capsys.readouterr().err
    assert main(["describe", "lcfl-rotmnist-120"]) == 2
    assert "did you mean 'lcfl-rotmnist-1200'" in capsys.readouterr().err


def test_base_is_a_block_whose_keys_may_be_changed():
    block = loading.federation_block({"base": "lcfl-rotmnist-1200", "partition": {"clients": 8}})
    assert block.dataset.part == "mnist" and block.inputs.mean == [0.1307]
    assert block.partition.options() | {"clients": 8, "data": "each", "test_order": "file"} == block.partition.options()
    other = loading.federation_block(
        {"base": "lcfl-rotmnist-1200", "dataset": "digits", "inputs": {"mean": [], "std": []}}
    )
    assert other.dataset.part == "digits" and other.inputs.mean == []
    with pytest.raises(UserError, match="did you mean 'lcfl-rotmnist-1200'"):
        loading.federation_block({"base": "lcfl-rotmnist-1020"})


def counts(rows_: list[tuple]) -> pd.DataFrame:
    return pd.DataFrame(rows_, columns=["client", "role", "true_cluster", "split", "class", "n"])


ODD = counts([
    (0, "member", 0, "train", 0, 5),
    (0, "member", 0, "test", 3, 2),  # a class that nobody has in training
    (1, "member", 1, "train", 0, 1),
    (1, "member", 1, "train", 4, 3),  # no test samples
    (2, "newcomer", 1, "test", 4, 6),
    (-1, "server", -1, "test", 0, 9),
])  # fmt: skip


def test_remarks_by_hand():
    found = list(portrait.remarks(ODD))
    assert found == [
        "Clients with a single class in training: 1 of 3.",
        "Labels without any sample: 1-2.",
        "Labels that no member has in training: 3.",
        "Members with test samples of classes that they don't have in training: 1 (100.0% of all members' test "
        "samples).",
        "Members without test samples, who don't count in test scores: 1 of 2.",
        "Newcomers, with whom no method trains: 1.",
        "Samples kept by the server: 9.",
    ]


def test_tables_by_hand():
    sizes = portrait.sizes(ODD).set_index("per client")
    assert sizes.loc["train samples"].tolist() == [0, 4, 5, 9] and sizes.loc["test samples", "in all"] == 8
    groups = portrait.groups(ODD).set_index("group")
    assert groups.loc[1].tolist() == [2, 4, 6, "0, 4"]
    # Class shares in training: group 0 has (1, 0), group 1 has (1/4, 3/4) of classes 0 and 4.
    np.testing.assert_allclose(portrait.class_distances(ODD), [[0, 0.75], [0.75, 0]])


def test_outlines_of_many_clients_are_those_of_bars(monkeypatch):
    sizes = [3, 1, 4, 1, 5, 9, 2, 6]
    parts = [("train", 0, 0), ("test", 1, 10)]
    table = counts([(i, "member", i % 3, s, c, n + m) for i, n in enumerate(sizes) for s, c, m in parts])
    bars = portrait.picture(table).axes[-1].patches
    monkeypatch.setattr(portrait, "BUBBLES", 0)
    outlines = portrait.picture(table).axes[-1].patches
    assert len(bars) == 16 and len(outlines) == 4  # three groups, and all clients' test samples
    assert [n for o in outlines[:3] for n in o.get_data().values] == [bar.get_height() for bar in bars[:8]]
    assert [o.get_facecolor() for o in outlines] == [bars[i].get_facecolor() for i in (0, 3, 6, 8)]
    tests = outlines[3].get_data()
    assert (tests.values - tests.baseline).tolist() == [bar.get_height() for bar in bars[8:]]


def test_distance_of_rotated_groups_by_hand(folder):
    """Two clients with the same picture, one turned: the mean differs in two of four pixels."""
    Path("two.py").write_text(
        "import numpy as np\n\ndef picture(folder):\n"
        "    x = np.zeros((2, 1, 2, 2), np.uint8); x[:, 0, 0, 0] = 255\n    return x, np.zeros(2, int)\n"
    )
    block = {"dataset": "two:picture", "partition": {"scheme": "rotated", "clients": 2, "angles": [0, 180], "test": 0}}
    from clusterfl.pipeline.jobs import search

    search(["."])
    built = describe.build("two", loading.federation_block(block), 0)
    # Differences of 1 in two of four pixels: root mean square sqrt(1/2); one pixel's deviation over 0, 0, 0, 1.
    assert describe.sample_distances(built).loc[0, 1] == pytest.approx(np.sqrt(0.5) / np.sqrt(3 / 16))


@pytest.mark.parametrize("target", ["label", "input"])
@pytest.mark.parametrize("sets, said", [("pairs", False), ("all-but-one", True)])
def test_samples_are_compared_where_groups_share_a_class(folder, sets, said, target):
    """Labels stay known where the network is to give back its input."""
    partition = {"scheme": "label-skew", "sets": sets, "clients_per_cluster": 1}
    block = {"dataset": "digits", "partition": partition, "inputs": {"target": target}}
    built = describe.build("digits", loading.federation_block(block), 0)
    lines = list(portrait.distances(built.counts, describe.sample_distances(built)))
    assert ["mean samples of a class" in line for line in lines] == [False, True][: 1 + said]


def test_names_of_clients_and_groups_are_shown(folder):
    """Of a table with names; with numbers in their place the same table has none to show."""
    frame = pd.DataFrame({"a": np.arange(16.0), "y": [0, 1] * 8, "who": np.repeat(["Essen", "Hill", "Ulm", "York"], 4)})
    frame["kind"] = np.where(frame["who"] < "I", "old", "new")
    frame.to_csv("named.csv", index=False)
    numbers = {"Essen": 0, "Hill": 1, "Ulm": 2, "York": 3}
    frame.assign(who=frame["who"].map(numbers), kind=(frame["kind"] == "old") * 1).to_csv("numbers.csv", index=False)
    texts, ticks = {}, {}
    for name in ("named", "numbers"):
        dataset = {"dataset": "table", "path": f"{name}.csv", "label": "y", "client": "who", "group": "kind"}
        built = describe.build(
            name, loading.federation_block({"dataset": dataset, "partition": {"scheme": "natural"}}), 0
        )
        texts[name] = describe.gist(built, None, None)
        axes = portrait.picture(built.counts, built.names).axes[-1]
        ticks[name] = [tick.get_text() for tick in axes.get_xticklabels()]
    assert "new (0)" in texts["named"] and "old (1)" in texts["named"]
    assert ticks["named"] == ["Ulm", "York", "Essen", "Hill"]  # by planted group
    assert "new" not in texts["numbers"] and "Ulm" not in ticks["numbers"]
