"""Partitions: what holds for all of them, the papers' counts on the genuine class sizes, wrong options refused."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfl import streams
from clusterfl.data import PARTITIONS
from clusterfl.data.federations import known
from clusterfl.data.partitions.dealing import proportions, shares, top_up
from clusterfl.data.samples import Labels
from clusterfl.errors import UserError

# Class sizes of the published training and test parts.
MNIST = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
CIFAR10 = ([5000] * 10, [1000] * 10)
CIFAR100 = ([500] * 100, [100] * 100)
AG_NEWS = ([30000] * 4, [1900] * 4)

# Small options of every partition, and how often it deals each row of `small()` (None: not all rows).
TABLE: dict[str, list[tuple[dict[str, Any], int | None]]] = {
    "iid": [({"clients": 37}, 1), ({"clients": 600}, 1)],
    "dirichlet": [({"clients": 60, "alpha": 0.05, "minimum": 5}, 1), ({"clients": 5, "alpha": 1e-9}, 1)],
    "dirichlet-clients": [
        ({"clients": 30, "alpha": 0.0}, 1),
        ({"clients": 41, "alpha": 0.3}, 1),
        ({"clients": 7, "alpha": 2000, "concentration": "per-class"}, 1),
    ],
    "shards": [({"clients": 33}, 1), ({"clients": 20, "shards": 3}, 1)],
    "quantity": [({"clients": 50, "sigma": 3, "minimum": 4}, 1), ({"clients": 7, "sigma": 0}, 1)],
    "natural": [({}, 1), ({"clients": 9, "minimum": 5, "which": "largest"}, None), ({"clients": 9}, None)],
    "by-group": [({}, None), ({"clients_per_cluster": 3, "samples": 20}, None)],
    "mixture": [
        ({"clients": [5, 0, 15]}, None),
        ({"clients": [5, 10, 15], "alphas": [1000, 0.5, 0], "data": "once"}, 1),
    ],
    "rotated": [
        ({"clients": 42}, 1),
        ({"clients": 13, "angles": [0, 90, 180], "ratios": [2, 1, 1]}, 1),
        ({"clients": 22, "angles": [0, 180], "data": "each", "test_order": "file"}, 2),
    ],
    "label-skew": [
        *(({"sets": kind, "clients_per_cluster": 2}, None) for kind in ("pairs", "overlapping", "all-but-one")),
        ({"sets": "single", "samples": 30, "profile": "paper"}, None),
        ({"sets": "every-pair", "clients_per_cluster": 1, "clusters_seed": 3}, None),
    ],
    "label-skew-released": [
        *(({"sets": kind, "clients_per_cluster": 2}, None) for kind in ("pairs", "overlapping", "all-but-one")),
        ({"sets": "single", "samples": 30, "alpha": 0.05, "drawn_with": 7, "order": [*range(9, -1, -1)]}, None),
    ],
    "dominant-class": [({}, None), ({"profile": "paper", "clients_per_cluster": 2}, None)],
    "feature-skew": [
        ({}, None),
        ({"profile": "released", "angles": [0, 180], "clients_per_cluster": 5, "samples": None}, 2),
    ],
    "concept-shift": [({"train_per_class": 12, "test_per_class": 5, "clients_per_cluster": 3}, None)],
    "consecutive-classes": [({"clients": 30}, None), ({"clients": 23, "profile": "paper", "pool": 50}, None)],
}
CASES = [(name, *case) for name, cases in TABLE.items() for case in cases]
SEEDS = st.integers(0, 2**32)


def labels(train: list[int], test: list[int] | tuple[int, ...] = ()) -> Labels:
    """Labels with these class sizes, in a fixed shuffled order; the test part comes last."""
    generator = np.random.default_rng(0)
    parts = [generator.permutation(np.repeat(np.arange(len(sizes)), sizes)) for sizes in (train, test)]
    y = np.concatenate(parts).astype(np.uint8)
    cut = len(parts[0])
    owner, group = generator.integers(-1, 40, len(y)), generator.integers(0, 3, len(y))
    return Labels(y, np.arange(cut), np.arange(cut, len(y)), owner, group)


def small(test: bool) -> Labels:
    return labels([60 + c for c in range(10)], [25] * 10 if test else ())


def deal(name: str, labels: Labels, seed: int = 0, /, **options: Any) -> dict[str, np.ndarray]:
    checked = PARTITIONS.options(name)(**options).model_dump()
    return PARTITIONS[name](labels, streams.generator(seed, "partition"), **checked)


def counts(data: Labels, table: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Samples of each client and class, [M, C], among `rows`."""
    result = np.zeros((table["client"].max() + 1, data.classes), dtype=int)
    chosen = np.isin(table["sample"], rows)
    np.add.at(result, (table["client"][chosen], data.y[table["sample"][chosen]]), 1)
    return result


def test_partitions_import_no_torch():
    """Jobs that partition don't pay for it."""
    code = (
        "import sys; from clusterfl.data import PARTITIONS; [*PARTITIONS.values()]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_partition_is_in_the_table():
    assert set(TABLE) == set(PARTITIONS)


@pytest.mark.parametrize("name, options, times", CASES)
@given(SEEDS, st.booleans())
@settings(deadline=None, max_examples=12)
def test_what_holds_for_all(name, options, times, seed, test):
    if name == "rotated" and test and "ratios" in options:
        options = options | {"test_clients": 4}
    data = small(test)
    table = deal(name, data, seed, **options)
    sample, client = table["sample"], table["client"]
    assert {len(column) for column in table.values()} == {len(sample)}
    assert np.array_equal(np.unique(client), np.arange(client.max() + 1))  # numbered without a gap
    assert sample.min() >= 0 and sample.max() < len(data.y)
    assert len(np.unique(client * len(data.y) + sample)) == len(sample)  # none twice in a client
    for column in {"true_cluster", "transform", "role"} & set(table):
        assert len(np.unique(client)) == len(set(zip(client.tolist(), table[column].tolist(), strict=True)))
    train = table.get("split", np.where(np.isin(sample, data.test), "test", "train")) == "train"
    assert not np.isin(sample[train], data.test).any()
    member = table.get("role", np.full(len(sample), "member")) == "member"
    assert np.array_equal(np.unique(client[train & member]), np.unique(client[member]))
    if times:
        owned = data.owner >= 0 if name == "natural" else np.ones(len(data.y), dtype=bool)
        assert np.array_equal(np.bincount(sample, minlength=len(data.y)), owned * times)


@pytest.mark.parametrize("name, options, times", CASES)
def test_a_seed_decides(name, options, times):
    data = small(True)
    first, again, other = (deal(name, data, seed, **options) for seed in (1, 1, 2))
    assert all(np.array_equal(first[column], again[column]) for column in first)
    if name == "natural" and ("clients" not in options or "which" in options):
        return  # nothing is drawn
    assert any(not np.array_equal(first[column], other[column]) for column in first)


@pytest.mark.parametrize("clients, train, test", [(1200, {200}, {33, 34}), (2400, {100}, {16, 17})])
def test_rotated_mnist_of_lcfl(clients, train, test):
    """SPEC: 4 x 60,000 and 4 x 10,000 samples in blocks of clients by angle, test rows in file order."""
    data = labels(*MNIST)
    table = deal("rotated", data, clients=clients, data="each", test_order="file")
    testing = table["sample"] >= 60000
    assert (testing.sum(), (~testing).sum()) == (40000, 240000)
    assert set(np.bincount(table["client"][~testing])) == train
    assert set(np.bincount(table["client"][testing])) == test
    groups = table["client"] * 4 // clients
    assert np.array_equal(table["true_cluster"], groups)
    turned = np.array(["none", "rotate90", "rotate180", "rotate270"])
    assert np.array_equal(table["transform"], turned[groups])
    for g in range(4):
        assert np.array_equal(table["sample"][testing & (groups == g)], np.arange(60000, 70000))
        assert np.array_equal(np.sort(table["sample"][~testing & (groups == g)]), np.arange(60000))


def test_rotated_cifar_of_lcfl():
    data = labels(*CIFAR10)
    table = deal("rotated", data, clients=200, angles=[0, 180], data="each", test_order="file")
    sizes = counts(data, table, data.train).sum(1), counts(data, table, data.test).sum(1)
    assert [set(s.tolist()) for s in sizes] == [{500}, {100}]


@pytest.mark.parametrize("clients, n", [(4800, 50), (1200, 200)])
def test_rotated_mnist_of_ifca(clients, n):
    """M / 6 clients only test, n samples each, in file order; the others have no test rows."""
    data = labels(*MNIST)
    table = deal("rotated", data, clients=clients, data="each", test_order="file", test_clients=clients // 6)
    newcomer = table["role"] == "newcomer"
    assert np.array_equal(newcomer, table["split"] == "test")
    assert np.array_equal(np.unique(table["client"][newcomer]), np.arange(clients, clients + clients // 6))
    assert set(np.bincount(table["client"])) == {n}
    assert np.array_equal(table["sample"][newcomer], np.tile(np.arange(60000, 70000), 4))


def test_imbalanced_groups_of_rr_cluster():
    data = labels([6000] * 10)
    table = deal("rotated", data, clients=1000, angles=[0, 90, 180], ratios=[2, 1, 1])
    assert set(np.bincount(table["client"])) == {60}
    assert np.bincount(table["true_cluster"]).tolist() == [30000, 15000, 15000]


@pytest.mark.parametrize(
    "sets, published",
    [
        ("pairs", [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}]),
        ("all-but-one", [set(range(10)) - out for out in ({9}, {0}, {1}, {2}, set())]),
        ("single", [{c} for c in range(10)]),
    ],
)
def test_label_sets_of_clove(sets, published):
    data = labels(*MNIST)
    table = deal("label-skew", data, sets=sets, clients_per_cluster=1, samples=None)
    assert [set(np.flatnonzero(row)) for row in counts(data, table, data.train)] == published
    assert [set(np.flatnonzero(row)) for row in counts(data, table, data.test)] == published
    for rows in data.parts():  # every class is dealt out completely
        assert np.array_equal(counts(data, table, rows).sum(0), np.bincount(data.y[rows]))


@pytest.mark.parametrize("seed", range(4))
def test_label_skew_2_shares_two_of_four_labels(seed):
    data = labels(*MNIST)
    table = deal("label-skew", data, seed, sets="overlapping", clients_per_cluster=1, samples=None)
    train, test = counts(data, table, data.train), counts(data, table, data.test)
    assert set((train > 0).sum(1)) == {4}
    assert {int(((a > 0) & (b > 0)).sum()) for a, b in combinations(train, 2)} == {2}
    assert np.array_equal(train > 0, test > 0)
    assert train.sum(1).min() >= 5100 and test.sum(1).min() >= 510
    shared = (train > 0).sum(0) > 1
    assert not np.allclose(
        (train / train.sum(0).clip(1))[:, shared], (test / test.sum(0).clip(1))[:, shared], atol=0.05
    )


def test_label_skew_deals_500_to_each_of_25():
    data = labels(*MNIST)
    table = deal("label-skew", data, sets="pairs")
    assert set(counts(data, table, data.train).sum(1)) == {500}
    test = counts(data, table, data.test).sum(1)
    pairs = np.add.reduceat(MNIST[1], range(0, 10, 2))
    assert np.array_equal(test, np.repeat(pairs // 5, 5)) and len(test) == 25 and test.max() <= 500


def test_paper_profile_gives_test_rows_the_training_proportions():
    data = labels([2000] * 10, [1000] * 10)
    table = deal("label-skew", data, sets="all-but-one", clients_per_cluster=1, samples=None, profile="paper")
    train, test = counts(data, table, data.train), counts(data, table, data.test)
    assert np.abs(train / 2000 - test / 1000).max() < 0.002


def test_ag_news_has_all_pairs():
    data = labels(*AG_NEWS)
    table = deal("label-skew", data, sets="every-pair", samples=100)
    train = counts(data, table, data.train)
    assert set(train.sum(1)) == {100} and len(train) == 30
    assert [set(np.flatnonzero(row)) for row in train[::5]] == [set(pair) for pair in combinations(range(4), 2)]


def test_clusters_seed_keeps_the_clusters_and_changes_the_dealing():
    data = labels(*CIFAR10)
    first, second = (
        deal("label-skew", data, seed, sets="overlapping", clusters_seed=7, samples=None) for seed in (0, 1)
    )
    held = [sorted(zip(t["true_cluster"].tolist(), t["sample"].tolist(), strict=True)) for t in (first, second)]
    common = len(set(held[0]) & set(held[1])) / len(held[0])  # chunks are equal, so up to 4 samples are left over
    assert common > 0.999 and not np.array_equal(first["sample"], second["sample"])
    other = deal("label-skew", data, 1, sets="overlapping", clusters_seed=8, samples=None)
    assert len(set(held[0]) & set(zip(other["true_cluster"].tolist(), other["sample"].tolist(), strict=True))) < 40000


@pytest.mark.parametrize(
    "name, options, column",
    [
        ("dominant-class", {}, "sample"),
        ("concept-shift", {}, "sample"),
        ("feature-skew", {"profile": "released"}, "transform"),
    ],
)
def test_clusters_seed_keeps_what_each_cluster_is_made_of(name, options, column):
    """Clients of equal chunks leave up to nine samples over; the dealing of a cluster changes with the seed."""
    data = labels(*CIFAR10)

    def held(seed: int, clusters_seed: int | None) -> set[tuple[int, Any]]:
        table = deal(name, data, seed, clusters_seed=clusters_seed, samples=None, **options)
        return set(zip(table["true_cluster"].tolist(), table[column].tolist(), strict=True))

    first = held(0, 7)
    for same, other in ((held(1, 7), True), (held(0, 8), False), (held(0, None), False)):
        assert (len(first & same) / len(first) > 0.99) == other


def released_division(y, labels_of, least, alpha=0.5):
    """CLoVE's division as its released code has it, one class and one client set at a time, on NumPy's global state."""
    percent = 0.1
    while True:
        held = [[] for _ in labels_of]
        for label in range(10):
            places = np.where(y == label)[0]
            np.random.shuffle(places)
            takers = [k for k, labels in enumerate(labels_of) if label in labels]
            if takers:
                kept = int(len(places) * percent)
                shares = np.random.dirichlet([alpha] * len(takers))
                stops = (np.cumsum(shares) * (len(places) - kept)).astype(int)
                start = kept
                for k, stop in zip(takers, [*stops[:-1], len(places) - kept], strict=True):
                    held[k] += places[start : kept + stop].tolist()
                    start = kept + stop
                for k, equal in zip(takers, np.array_split(places[:kept], len(takers)), strict=True):
                    held[k] += equal.tolist()
        for mine in held:
            np.random.shuffle(mine)
        if min(map(len, held)) >= least:
            return [set(mine) for mine in held]
        percent += 0.05


@pytest.fixture
def global_numpy():
    """NumPy's global state, which the released code draws from, left as it was found."""
    before = np.random.get_state()
    yield
    np.random.set_state(before)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("sets, least", [("overlapping", (5100, 510)), ("all-but-one", (6000, 750))])
def test_the_released_division_is_repeated_to_the_sample(global_numpy, sets, least, seed):
    data = labels(*MNIST)
    np.random.seed(seed)
    if sets == "overlapping":
        labels_of = []
        while len(labels_of) < 5:
            drawn = set(np.random.choice(list(range(10)), 4, replace=False).tolist())
            if all(len(drawn & other) == 2 for other in labels_of):
                labels_of.append(drawn)
    else:
        labels_of = [set(range(10)) - {out} for out in (9, 0, 1, 2, None)]
    train = released_division(data.y[data.train], labels_of, least[0])
    test = released_division(data.y[data.test], labels_of, least[1])
    table = deal("label-skew-released", data, 5, sets=sets, clients_per_cluster=1, samples=None, drawn_with=seed)
    for k in range(5):
        ours = table["sample"][table["true_cluster"] == k]
        assert set(ours.tolist()) == train[k] | {i + len(data.train) for i in test[k]}


def test_label_skew_2_of_the_released_code_has_these_labels(global_numpy):
    """Each has two or three of Fashion-MNIST's pullovers, coats and shirts (2, 4, 6), and none trousers or bags."""
    data = labels(*MNIST)
    published = [{2, 4, 6, 9}, {0, 2, 3, 4}, {0, 4, 6, 7}, {3, 4, 5, 6}, {2, 3, 6, 7}]
    for seed in (1, 2):  # the study's seed changes the dealing only
        table = deal("label-skew-released", data, seed, sets="overlapping", clients_per_cluster=1, samples=None)
        assert [set(np.flatnonzero(row)) for row in counts(data, table, data.train)] == published
    before = np.random.get_state()[1].tolist()
    deal("label-skew-released", data, sets="overlapping")
    assert np.random.get_state()[1].tolist() == before


def test_an_order_of_classes_says_which_class_a_set_counts_as_which():
    data, order = labels(*CIFAR10), [2, 1, 4, 0, 3, 5, 9, 8, 7, 6]
    table = deal("label-skew-released", data, sets="pairs", clients_per_cluster=1, order=order)
    held = [set(np.flatnonzero(row)) for row in counts(data, table, data.train)]
    assert held == [{2, 1}, {4, 0}, {3, 5}, {9, 8}, {7, 6}]
    renamed = Labels(np.argsort(order)[data.y], data.train, data.test)
    again = deal("label-skew-released", renamed, sets="overlapping")
    table = deal("label-skew-released", data, sets="overlapping", order=order)
    assert np.array_equal(table["sample"], again["sample"])


def test_cifar10_is_numbered_as_in_the_released_code():
    """It draws the order of the classes by random.sample after random.seed(1), and counts all sets and swaps in it."""
    order = random.Random(1).sample(range(10), 10)
    for name in ("ls1", "ls2", "ls3", "ablation", "scaling-50", "scaling-1000"):
        assert known(f"clove-cifar10-{name}").partition["order"] == order
    usual = [[0, 3, 8, 9], [1, 4, 6, 9], [1, 2, 3, 6], [3, 5, 4, 7]]
    assert known("clove-cifar10-concept").partition["swaps"] == [[order[label] for label in s] for s in usual]


@pytest.mark.parametrize("profile, own, others", [("released", 3248, 181), ("paper", 3252 + 162, 162)])
def test_dominant_class_of_clove(profile, own, others):
    """90 % of MNIST's smallest class are 4,878 samples: 66.6 % and a ninth of the rest, or 2/3 and a tenth."""
    data = labels(*MNIST)
    table = deal("dominant-class", data, profile=profile, clients_per_cluster=1, samples=None)
    expected = np.full((10, 10), others)
    np.fill_diagonal(expected, own)
    assert np.array_equal(counts(data, table, data.train), expected)


def test_concept_shift_of_clove():
    data = labels(*MNIST)
    table = deal("concept-shift", data, clients_per_cluster=1, samples=None)
    assert set(counts(data, table, data.train).ravel()) == {1250}
    assert set(counts(data, table, data.test).ravel()) == {200}
    assert len(np.unique(table["sample"])) == len(table["sample"])  # drawn without replacement over the clusters
    names = [table["transform"][table["client"] == k][0] for k in range(4)]
    swaps = ["swap(0,3)+swap(8,9)", "swap(1,4)+swap(6,9)", "swap(1,2)+swap(3,6)", "swap(3,5)+swap(4,7)"]
    assert names == swaps


def test_feature_skew_of_clove():
    data = labels(*CIFAR10)
    paper, released = (deal("feature-skew", data, profile=p) for p in ("paper", "released"))
    assert set(counts(data, paper, data.train).sum(1)) == set(counts(data, paper, data.test).sum(1)) == {500}
    assert sorted(set(paper["transform"])) == ["none", "rotate180", "rotate270", "rotate90"]
    names = set(released["transform"])
    assert len(names) == 4
    for name in names:
        permuted = name.removeprefix("relabel(").removesuffix(")").split(",")
        assert sorted(map(int, permuted)) == list(range(10))


def test_hsu_on_cifar100():
    """FedGWC's file for alpha .5 has sum p^2 = .618; its 5.13 classes a client are one draw, ours have 3.9 on average.

    Without exhausted classes 500 draws would meet 4.0 classes and sum p^2 = (1 + 1/200) / 1.5 = .67.
    """
    data = labels(*CIFAR100)
    drawn = [counts(data, deal("dirichlet-clients", data, seed, clients=100), data.train) for seed in range(8)]
    assert all((c.sum(1) == 500).all() and (c.sum(0) == 500).all() for c in drawn)
    assert np.mean([((c / 500) ** 2).sum(1).mean() for c in drawn]) == pytest.approx(0.618, abs=0.03)
    assert 3.4 < np.mean([(c > 0).sum(1).mean() for c in drawn]) < 5.2
    per_class = deal("dirichlet-clients", data, clients=100, concentration="per-class")
    assert (counts(data, per_class, data.train) > 0).sum(1).mean() > 40


@pytest.mark.parametrize("alpha, classes, each", [(0, 1, 500), (1000, 100, 5)])
def test_ends_of_hsu_on_cifar100(alpha, classes, each):
    data = labels(*CIFAR100)
    table = deal("dirichlet-clients", data, clients=100, alpha=alpha)
    train, test = counts(data, table, data.train), counts(data, table, data.test)
    assert set((train > 0).sum(1)) == {classes} and train.max() == each
    assert np.array_equal(test * 5, train)  # 100 test images in the client's own proportions


@pytest.mark.parametrize("clients", [[10, 0, 90], [10, 90, 0], [40, 30, 30]])
def test_mixture_of_fedgwc(clients):
    data = labels(*CIFAR100)
    table = deal("mixture", data, clients=clients)
    train, test = counts(data, table, data.train), counts(data, table, data.test)
    group = np.repeat([0, 1, 2], clients)
    assert set(train.sum(1)) == {500} and abs(test.sum(1) - 100).max() <= 20
    assert np.array_equal(table["true_cluster"], group[table["client"]])
    classes = (train > 0).sum(1)
    assert set(classes[group == 0]) == {100} and set(classes[group == 2]) <= {1}
    assert (group == 1).sum() == 0 or 2 < classes[group == 1].mean() < 7


def test_consecutive_classes_of_fedprox():
    """Three consecutive classes in ten groups; mean 92 and standard deviation 159 in the archive of 200 users."""
    data = labels([4800] * 10)
    table = deal("consecutive-classes", data, clients=2000)
    held = counts(data, table, data.train)
    for user in range(0, 2000, 97):
        assert set(np.flatnonzero(held[user])) == {(user + j) % 10 for j in range(3)}
        assert len(set(held[user][held[user] > 0])) == 1
    assert np.array_equal(table["true_cluster"], table["client"] % 10)
    sizes = held.sum(1)
    assert sizes.min() >= 6 and sizes.mean() == pytest.approx(92, rel=0.1)
    assert np.median(sizes) == pytest.approx(np.exp(4) + 5 - 1.5, rel=0.1)
    train = np.bincount(table["client"][table["split"] == "train"])
    assert np.array_equal(train, sizes * 9 // 10)


def test_released_consecutive_classes_share_their_first_images():
    data = labels([4800] * 10)
    shared = deal("consecutive-classes", data, profile="released")
    apart = deal("consecutive-classes", data, profile="paper")
    assert np.array_equal(counts(data, shared, data.train), counts(data, apart, data.train))
    assert len(np.unique(apart["sample"])) == len(apart["sample"])
    largest = np.zeros(10, dtype=int)
    for row in counts(data, shared, data.train):
        largest = np.maximum(largest, row)
    assert len(np.unique(shared["sample"])) == largest.sum()


def test_consecutive_classes_start_again_when_a_class_runs_out():
    data = labels([4800] * 10)
    table = deal("consecutive-classes", data, clients=100, profile="paper", pool=300)
    times = np.bincount(table["sample"])
    used = times[times > 0]
    assert len(used) == 3000  # 300 images of each class, read round and round: each as often as any other
    for c in range(10):
        of_class = np.bincount(table["sample"][data.y[table["sample"]] == c])
        assert np.ptp(of_class[of_class > 0]) <= 1


def test_shards_hold_few_classes():
    data = labels(*MNIST)
    table = deal("shards", data, clients=100)
    train, test = counts(data, table, data.train), counts(data, table, data.test)
    assert set(train.sum(1)) == {600} and (train > 0).sum(1).max() <= 4  # a shard may straddle two classes
    assert not (test[train == 0]).any()


def test_dirichlet_gives_train_and_test_the_same_proportions():
    data = labels(*MNIST)
    table = deal("dirichlet", data, clients=20, alpha=0.5)
    train, test = counts(data, table, data.train), counts(data, table, data.test)
    assert np.abs(train / MNIST[0] - test / MNIST[1]).max() < 0.005


def test_natural_clients_by_hand():
    """Owners 0, 1, 2, 3 have 3, 5, 2 and 4 training samples, 3 a test sample, too; one sample is nobody's.

    All of owner 0's are of group 0, all of 1's of group 1; the test sample of 3 is of another group than the rest.
    """
    owner = np.array([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, -1, 3])
    group = np.array([0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0])
    data = Labels(np.zeros(16, dtype=int), np.arange(15), np.arange(15, 16), owner, group)

    def dealt(**options: Any) -> dict[int, set[int]]:
        """The samples of each client."""
        table = deal("natural", data, **options)
        return {int(c): set(table["sample"][table["client"] == c].tolist()) for c in np.unique(table["client"])}

    of = [set(np.flatnonzero(owner == i).tolist()) for i in range(4)]
    assert dealt() == dict(enumerate(of))
    assert dealt(minimum=3) == dict(enumerate([of[0], of[1], of[3]]))  # just so many are enough
    assert dealt(clients=2, which="largest") == dict(enumerate([of[1], of[3]]))
    table = deal("natural", data, minimum=3)
    assert {(c, g) for c, g in zip(table["client"].tolist(), table["true_cluster"].tolist(), strict=True)} == {
        (0, 0), (1, 1), (2, -1)
    }  # fmt: skip


def test_groups_have_as_many_clients_as_a_list_says():
    table = deal("by-group", small(True), clients_per_cluster=[3, 1, 2])
    clients = np.unique(table["client"], return_index=True)[1]
    assert table["true_cluster"][clients].tolist() == [0, 0, 0, 1, 2, 2]


def test_sigma_is_the_deviation_of_the_sizes_logarithms():
    """Of 400 clients an estimate is off by .5 / sqrt(800) = .018; sizes of 150 on average are rounded by little."""
    sizes = np.bincount(deal("quantity", labels(*MNIST), clients=400, sigma=0.5)["client"])
    assert np.log(sizes).std() == pytest.approx(0.5, abs=0.07)


def test_top_up_takes_uniformly_from_the_surplus():
    """Two clients have 30 and 10 above the minimum: three quarters of what is moved comes from the first."""
    client = np.repeat([0, 1], [35, 15])
    moved = np.zeros(2)
    for seed in range(200):
        after = top_up(streams.generator(seed, "t"), client, 4, 5)
        assert np.bincount(after, minlength=4).min() == 5
        moved += np.bincount(client, minlength=4)[:2] - np.bincount(after, minlength=4)[:2]
    assert moved.sum() == 2000 and moved[0] / 2000 == pytest.approx(0.75, abs=0.03)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any), st.integers(0, 10**6))
def test_shares_are_whole_and_nearly_proportional(weights, total):
    for array in (np.array(weights), np.array(weights, dtype=float)):
        cut = shares(array, total)
        assert cut.sum() == total and cut.min() >= 0
        assert np.abs(cut - np.array(weights) * total / sum(weights)).max() < 1.001
        assert not cut[array == 0].any()


def test_tiny_alpha_leaves_no_empty_row():
    generator = streams.generator(0, "t")
    weights = proportions(generator, 1e-9, np.tile([True, True, False], (300, 1)))
    assert np.isfinite(weights).all() and (weights.sum(1) == 1).all()
    assert weights.sum(0)[2] == 0 and weights.sum(0)[:2].min() > 100
    drawn = proportions(generator, 2.0, np.ones((4000, 5), dtype=bool))
    shares_of_first = (drawn / drawn.sum(1, keepdims=True))[:, 0]
    assert shares_of_first.mean() == pytest.approx(0.2, abs=0.01)  # Dir(2): variance p (1 - p) / (5 * 2 + 1)
    assert shares_of_first.var() == pytest.approx(0.16 / 11, rel=0.1)


def test_real_targets_need_no_classes():
    data = Labels(np.linspace(0, 1, 60), np.arange(40), np.arange(40, 60), np.arange(60) % 5, np.arange(60) % 2)
    for name, options in {
        "iid": {"clients": 4},
        "quantity": {"clients": 4},
        "natural": {},
        "by-group": {"clients_per_cluster": 2},
        "rotated": {"clients": 4},
        "feature-skew": {"clients_per_cluster": 2},
    }.items():
        assert len(deal(name, data, **options)["sample"])
    with pytest.raises(UserError, match="targets are real numbers"):
        deal("dirichlet", data, clients=4)


ANONYMOUS = Labels(np.arange(100) % 10, np.arange(100), np.arange(0))


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("iid", {"clients": 101}, "101 clients of at least 1 for 100 training samples; at most 100"),
        ("dirichlet", {"clients": 11, "minimum": 10}, "11 clients of at least 10 .* at most 10"),
        ("quantity", {"clients": 51, "minimum": 2}, "at most 50"),
        ("shards", {"clients": 40, "shards": 3}, "at most 33"),
        ("dirichlet-clients", {"clients": 200}, "at most 100"),
        ("natural", {}, "doesn't tell who owns a sample; use iid"),
        ("by-group", {}, "no natural groups; use rotated"),
        ("mixture", {"clients": [1, 2]}, r"clients: \[1, 2\] for the 3 alphas"),
        ("mixture", {"clients": [0, 0, 0]}, "not all 0"),
        ("rotated", {"clients": 3}, "3 can't be divided over 4 groups"),
        ("rotated", {"clients": 8, "ratios": [1, 2]}, r"ratios: \[1, 2\] for 4 angles"),
        ("rotated", {"clients": 8, "ratios": [1, 2, 1, 0]}, "one whole number above 0"),
        ("rotated", {"clients": 8, "test_clients": 4}, "test part has 0 samples"),
        ("rotated", {"clients": 104}, "at most 100"),
        ("label-skew", {"sets": "pairs", "clients_per_cluster": 21}, "cluster 0 has 20 training samples for 21"),
        ("label-skew", {"sets": "pairs", "minimum": [21, 0]}, "cluster 0 has 20 samples where 21 are wanted"),
        ("label-skew", {"sets": "pairs", "minimum": [3]}, "give two numbers"),
        ("label-skew-released", {"sets": "pairs", "minimum": [21, 0]}, "cluster 0 has 20 samples where 21 are wanted"),
        ("label-skew-released", {"sets": "pairs", "minimum": [3]}, "give two numbers"),
        (
            "label-skew-released",
            {"sets": "pairs", "order": [0, 1, 1]},
            r"order: \[0, 1, 1\]; give each class from 0 to 9 once",
        ),
        ("dominant-class", {"clients_per_cluster": 10}, "cluster 0 has 5 training samples for 10 clients"),
        ("concept-shift", {}, "train_per_class: 1250 for 4 clusters, but class 0 has 10 samples; at most 2"),
        ("concept-shift", {"swaps": [[0, 10]]}, r"swaps: \[0, 10\]; give .* from 0 to 9"),
        ("concept-shift", {"swaps": [[0, 1, 2]]}, "an even number"),
        ("consecutive-classes", {"classes": 11}, "the dataset has 10"),
    ],
)
def test_impossible_options_are_reported(name, options, words):
    with pytest.raises(UserError, match=words):
        deal(name, ANONYMOUS, **options)


@pytest.mark.parametrize(
    "sets, classes, words",
    [
        ("overlapping", 3, "at least 4 classes, but there are 3; use single"),
        ("overlapping", 4, "no five sets of 4"),
        ("all-but-one", 3, "at least 4"),
        ("every-pair", 1, "at least 2"),
    ],
)
def test_label_sets_need_enough_classes(sets, classes, words):
    with pytest.raises(UserError, match=words):
        deal("label-skew", Labels(np.arange(30) % classes, np.arange(30), np.arange(0)), sets=sets)


def test_a_user_with_one_image_trains_on_it():
    table = deal("consecutive-classes", labels([1] * 5), clients=5, classes=1)
    assert table["split"].tolist() == ["train"] * 5


def test_a_class_without_training_samples_is_reported():
    data = Labels(np.repeat([0, 1, 3, 4], 9), np.arange(36), np.arange(0))
    with pytest.raises(UserError, match="class 2 has no training sample"):
        deal("consecutive-classes", data)


def test_owners_too_small_are_reported():
    with pytest.raises(UserError, match="no owner has 1000 training samples; the largest has"):
        deal("natural", small(False), minimum=1000)
