"""The keys common to all partitions: what holds for random small datasets, with and without a test part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from clusterfl.config.federation import Partition
from clusterfl.data import PARTITIONS
from clusterfl.data.samples import Samples, Table
from clusterfl.errors import UserError
from clusterfl.pipeline.stages.partition import COLUMNS, class_counts, content, make, rule

SCHEMES = {
    "iid": {"clients": 4},
    "quantity": {"clients": 5, "sigma": 0.5, "minimum": 5},
    "rotated": {"clients": 6, "angles": [0, 90, 180]},
    "natural": {},
    "by-group": {"clients_per_cluster": 3},
}
SEEDS = st.integers(0, 2**32)
SHARES = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3])


def dataset(seed: int, official: bool) -> Samples:
    """A few dozen samples of 3 classes, 4 owners and 2 groups; every owner has 10 training samples at least."""
    rng = np.random.default_rng(seed)
    n, tests = int(rng.integers(45, 90)), int(rng.integers(12, 30))
    test = rng.permutation(np.arange(n + tests) < tests) if official else None
    owner = np.empty(n + tests, dtype=np.int64)
    for part in (test, ~test) if test is not None else (np.ones(n + tests, dtype=bool),):
        owner[part] = rng.permutation(np.arange(part.sum()) % 4)
    return Samples(np.empty(0), rng.integers(0, 3, n + tests), test, owner, owner % 2)


def dealt(samples: Samples, scheme: str, seed: int = 0, **keys: Any) -> Table:
    block = Partition(scheme=scheme, **SCHEMES.get(scheme, {}), **keys)
    try:
        return make(block.resolved(), samples, seed)
    except UserError as error:
        if "has no training sample" in str(error) or "is left" in str(error):
            reject()  # so few samples that shares or limits took all of a client's
        raise


def counted(table: Table, split: str) -> np.ndarray:
    """Samples of each client that isn't the server in a split, [M]."""
    own = table["client"][table["split"] == split]
    return np.bincount(own[own >= 0], minlength=table["client"].max() + 1)


CASES = st.tuples(st.sampled_from(list(SCHEMES)), SEEDS, SEEDS, st.booleans())  # scheme, seeds, official test part
FEW = settings(deadline=None, max_examples=100)


@given(CASES, SHARES, SHARES, st.sampled_from([None, 3, 8]), st.sampled_from([None, 0, 2]), st.integers(0, 3))
@FEW
def test_what_holds_whatever_the_keys(case, share, validation, train, test, newcomers):
    scheme, data_seed, seed, official = case
    samples = dataset(data_seed, official)
    domains = [{"transform": "swap(0,1)"}, {"transform": "none", "weight": 2}]
    keys = {"test": share, "validation": validation, "limit": {"train": train, "test": test}, "domains": domains}
    keys |= {"newcomers": newcomers, "server": {"train": 2, "test": 3}}
    table = dealt(samples, scheme, seed, **keys)
    again = dealt(samples, scheme, seed, **keys)
    assert list(table) == list(COLUMNS) and all(np.array_equal(table[name], again[name]) for name in COLUMNS)
    client, sample = table["client"], table["sample"]
    assert np.array_equal(np.lexsort((sample, client)), np.arange(len(sample)))
    assert len(set(zip(client.tolist(), sample.tolist(), strict=True))) == len(sample)  # none twice in a client
    if scheme != "by-group":  # splits are disjoint in the whole federation, not in each client only
        assert len(np.unique(sample)) == len(sample)
    for column in ("role", "true_cluster", "transform"):
        pairs = set(zip(client.tolist(), table[column].tolist(), strict=True))
        assert len(pairs) == len(np.unique(client))
    if official:
        assert np.array_equal(samples.test[sample], table["split"] == "test")
    member = table["role"] == "member"
    assert set(client[member & (table["split"] == "train")]) == set(client[member])


@given(CASES, SHARES, SHARES)
@FEW
def test_shares_are_exact(case, test, validation):
    """round(n * share) of each client's training rows; with an official test part that part stays as it is."""
    scheme, data_seed, seed, official = case
    samples = dataset(data_seed, official)
    whole = dealt(samples, scheme, seed, test=0, validation=0)
    table = dealt(samples, scheme, seed, test=test, validation=validation)
    for name in ("sample", "client", "role", "transform", "true_cluster"):
        assert np.array_equal(whole[name], table[name])
    n = counted(whole, "train")
    tests = counted(whole, "test") if official else np.array([round(k * test) for k in n])
    validations = np.array([round(k * validation) for k in n])
    assert np.array_equal(counted(table, "test"), tests)
    assert np.array_equal(counted(table, "validation"), validations)
    assert np.array_equal(counted(table, "train"), n - validations - (0 if official else tests))
    if official:  # validation comes from training rows only
        assert not samples.test[table["sample"][table["split"] == "validation"]].any()


def test_shares_are_drawn_at_random():
    """Every sample is as likely a test sample as another: 400 seeds, a fifth of 10 samples of one client."""
    samples = Samples(np.empty(0), np.zeros(10, int))
    hits = np.zeros(10)
    for seed in range(400):
        table = make(Partition(scheme="iid", clients=1, test=0.2).resolved(), samples, seed)
        hits[table["sample"][table["split"] == "test"]] += 1
    assert hits.sum() == 800 and abs(hits - 80).max() < 4.5 * np.sqrt(400 * 0.2 * 0.8)


@given(CASES, st.integers(1, 9), st.integers(0, 9), SHARES)
@FEW
def test_limits_are_kept_and_leave_out_no_more(case, train, test, validation):
    scheme, data_seed, seed, official = case
    samples = dataset(data_seed, official)
    whole = dealt(samples, scheme, seed, validation=validation)
    table = dealt(samples, scheme, seed, validation=validation, limit={"train": train, "test": test})
    before = counted(whole, "train") + counted(whole, "validation")
    assert np.array_equal(counted(table, "train") + counted(table, "validation"), np.minimum(before, train))
    assert np.array_equal(counted(table, "test"), np.minimum(counted(whole, "test"), test))
    rows = [set(zip(t["client"].tolist(), t["sample"].tolist(), t["split"], strict=True)) for t in (table, whole)]
    assert rows[0] <= rows[1]


@given(CASES, st.lists(st.sampled_from([0.5, 1, 2, 3]), min_size=1, max_size=3))
@FEW
def test_domains_divide_each_planted_group_by_weight(case, weights):
    scheme, data_seed, seed, official = case
    samples = dataset(data_seed, official)
    names = ["none", "swap(0,1)", "noise(0.5)"][: len(weights)]
    domains = [{"transform": name, "weight": weight} for name, weight in zip(names, weights, strict=True)]
    plain, table = dealt(samples, scheme, seed), dealt(samples, scheme, seed, domains=domains)
    for name in ("sample", "client", "split", "role"):
        assert np.array_equal(plain[name], table[name])
    first = np.unique(plain["client"], return_index=True)[1]
    groups, found = plain["true_cluster"][first], table["true_cluster"][first]
    domain = found - np.maximum(groups, 0) * len(domains)
    for group in np.unique(groups):
        own = domain[groups == group]
        assert (np.diff(own) >= 0).all()  # ids in blocks
        for i, weight in enumerate(weights):
            assert abs((own == i).sum() - weight / sum(weights) * len(own)) < 1
    for i, before, after in zip(domain, plain["transform"][first], table["transform"][first], strict=True):
        own = [step for step in (before, names[i].replace(")", f",{seed})") if i == 2 else names[i]) if step != "none"]
        assert after == ("+".join(own) or "none")  # the scheme's own first; noise is of this run


def test_weights_that_come_out_even_are_exact():
    samples = Samples(np.empty(0), np.zeros(60, int))
    domains = [{"transform": "none", "weight": 3}, {"transform": "noise ( 0.5 )"}, {"transform": "blur(2)"}]
    table = make(Partition(scheme="iid", clients=10, domains=domains).resolved(), samples, 7)
    first = np.unique(table["client"], return_index=True)[1]
    assert table["true_cluster"][first].tolist() == [0] * 6 + [1] * 2 + [2] * 2
    assert table["transform"][first].tolist() == ["none"] * 6 + ["noise(0.5,7)"] * 2 + ["blur(2)"] * 2


def test_clients_of_unknown_groups_stay_unknown():
    owner = np.repeat(np.arange(4), 6)
    group = np.where(owner == 1, np.arange(24) % 2, owner // 2)  # owner 1 has samples of both groups
    samples = Samples(np.empty(0), np.zeros(24, int), None, owner, group)
    domains = [{"transform": "none"}, {"transform": "noise(1)"}]
    for keys, groups in (({}, [0, -1, 1, 1]), ({"domains": domains}, [0, -1, 2, 3])):
        table = make(Partition(scheme="natural", **keys).resolved(), samples, 0)
        assert table["true_cluster"][np.unique(table["client"], return_index=True)[1]].tolist() == groups


@given(CASES, st.integers(0, 2), st.sampled_from(["all", "test"]))
@FEW
def test_newcomers_are_counted_and_never_members(case, number, data):
    scheme, data_seed, seed, official = case
    samples = dataset(data_seed, official)
    plain = dealt(samples, scheme, seed)
    table = dealt(samples, scheme, seed, newcomers=number, newcomer_data=data)
    new = table["role"] == "newcomer"
    assert len(np.unique(table["client"][new])) == number
    assert not set(table["client"][new]) & set(table["client"][table["role"] == "member"])
    assert set(table["role"]) <= {"member", "newcomer"}
    for name in ("sample", "client", "transform", "true_cluster"):
        assert np.array_equal(plain[name], table[name])
    assert np.array_equal(table["split"][~new], plain["split"][~new])
    expected = plain["split"][new] if data == "all" else np.full(new.sum(), "test")
    assert np.array_equal(table["split"][new], expected)


@given(CASES, st.integers(0, 9), st.integers(0, 9))
@FEW
def test_the_servers_samples_are_with_nobody_else(case, train, test):
    scheme, data_seed, seed, official = case
    samples = dataset(data_seed, official)
    table = dealt(samples, scheme, seed, server={"train": train, "test": test})
    server = table["role"] == "server"
    assert np.array_equal(server, table["client"] == -1)
    kept, split = table["sample"][server], table["split"][server]
    assert (split == "train").sum() == train and (split == "test").sum() == test and server.sum() == train + test
    assert len(np.unique(kept)) == len(kept) and not np.isin(kept, table["sample"][~server]).any()
    assert set(table["transform"][server]) <= {"none"} and set(table["true_cluster"][server]) <= {-1}
    if official:
        assert np.array_equal(samples.test[kept], split == "test")
    if scheme in ("iid", "quantity", "rotated", "natural"):  # all else is dealt
        assert len(table["sample"]) == len(samples.y)


@given(CASES, st.data())
@FEW
def test_digest_of_content(case, data):
    """Equal for equal values whatever their type; another one for every entry that differs."""
    scheme, data_seed, seed, official = case
    table = dealt(dataset(data_seed, official), scheme, seed, validation=0.1)
    found = content(table, "abc")
    smaller = {n: c.astype(np.int32) if c.dtype.kind == "i" else c.astype(object) for n, c in table.items()}
    assert content(smaller, "abc") == found and content(table, "abd") != found
    column = data.draw(st.sampled_from(COLUMNS))
    row = data.draw(st.integers(0, len(table["sample"]) - 1))
    changed = {
        name: values.astype(object) if values.dtype.kind == "U" else values.copy() for name, values in table.items()
    }
    changed[column][row] = changed[column][row] + (1 if column in ("sample", "client", "true_cluster") else "x")
    assert content(changed, "abc") != found
    if column not in ("sample", "client", "true_cluster"):  # one value by another throughout
        value = table[column][row]
        renamed = np.where(table[column] == value, f"{value}x", table[column])
        assert content(table | {column: renamed}, "abc") != found
    longer = {name: np.concatenate([values, values[:1]]) for name, values in table.items()}
    assert content(longer, "abc") != found


OWN = """
import numpy as np

def shuffled(data, generator, *, order: int):
    table = {"sample": np.arange(30), "client": np.arange(30) % 3, "true_cluster": np.arange(30) % 3}
    rows = np.random.default_rng(order).permutation(30)
    return {name: column[rows] for name, column in table.items()}

def given(data, generator, *, columns: dict):
    return columns.get("instead", {name: np.asarray(values) for name, values in columns.items()})
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Make partitions of a module of the user's own."""
    (tmp_path / "own_partitions.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    def partitioned(function: str, keys: dict[str, Any] | None = None, test: bool = False, **options: Any) -> Table:
        samples = Samples(np.empty(0), np.arange(30) % 4, np.arange(30) >= 24 if test else None)
        return make(Partition(scheme=f"own_partitions:{function}", **options, **(keys or {})).resolved(), samples, 5)

    return partitioned


def test_order_of_a_schemes_rows_changes_nothing(own):
    keys = {"test": 0.3, "validation": 0.1, "limit": {"train": 5}, "newcomers": 1}
    first, second = (own("shuffled", keys, order=order) for order in (0, 1))
    assert all(np.array_equal(first[name], second[name]) for name in COLUMNS)
    assert content(first, "") == content(second, "")


def test_a_schemes_own_splits_are_kept(own):
    split = ["train", "test", "validation"] * 10
    table = own("given", {"test": 0.5}, columns={"sample": list(range(30)), "client": [0] * 30, "split": split})
    assert table["split"].tolist() == split


ONE = {"sample": [0, 1, 2], "client": [0, 0, 1]}
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no columns": ({"instead": [1]}, ["should return columns by name; it returned list"]),
    "missing column": ({"sample": [1]}, ["no column 'client'; needed: sample, client"]),
    "nothing": ({"sample": [], "client": []}, ["at least one"]),
    "lengths": (ONE | {"client": [0, 0]}, ["every column needs as many rows", "'client' has shape (2,)", "(3,)"]),
    "real clients": (ONE | {"client": [0, 0, 0.5]}, ["'client' holds float64; whole numbers are needed"]),
    "named clients": (ONE | {"client": ["a", "b", "c"]}, ["'client' holds <U1", "number clients and groups 0, 1, 2"]),
    "twice": ({"sample": [1, 2, 1], "client": [0, 0, 0]}, ["gives sample 1 to client 0 twice"]),
    "too far": (ONE | {"sample": [0, 1, 30]}, ["names sample 30; the dataset has samples 0 to 29"]),
    "below": (ONE | {"sample": [0, -4, 3]}, ["names sample -4; the dataset has samples 0 to 29"]),
    "negative client": (ONE | {"client": [0, -1, 0]}, ["names client -1; clients are numbered 0, 1, 2"]),
    "split": (ONE | {"split": ["train", "tset", "train"]}, ["the split 'tset'; did you mean 'test'?"]),
    "role": (
        ONE | {"role": ["member", "member", "guest"]},
        ["the role 'guest'", "allowed: excluded, member, newcomer, server"],
    ),
    "transform": (ONE | {"transform": ["none", "none", "rotate45"]}, ["unknown transform 'rotate45'", "rotate90"]),
    "no training": (ONE | {"split": ["train", "train", "test"]}, ["client 1 (1 in all) has no training sample"]),
    "no members": (ONE | {"role": ["newcomer"] * 3}, ["leaves no members; use fewer newcomers"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_partitions_are_reported(own, name):
    columns, words = WRONG[name]
    with pytest.raises(UserError) as error:
        own("given", {"test": 0.0}, columns=columns)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "keys, words",
    [
        (
            {"split": "official"},
            "partition.split: 'official', but the dataset has no test part of its own; use 'share'",
        ),
        ({"newcomers": 4}, "partition.newcomers: 4 of 4 clients; allowed: 0 to 3"),
        ({"server": {"train": 46}}, "partition.server.train: 46 samples; allowed: at most 45"),
        ({"server": {"test": 20, "train": 26}}, "partition.server.train: 26 samples; allowed: at most 25"),
        ({"server": {"test": 46}}, "partition.server.test: 46 samples; allowed: at most 45"),
        ({"server": {"train": 45}}, "clients"),
        ({"domains": [{"transform": "swap(0,3)"}]}, "transform 'swap(0,3)' doesn't fit the labels: they are 0 to 2"),
    ],
)
def test_wrong_settings_are_reported(keys, words):
    samples = Samples(np.empty(0), np.arange(45) % 3)
    with pytest.raises(UserError) as error:
        class_counts(make(Partition(scheme="iid", clients=4, **keys).resolved(), samples, 0), samples)
    assert words in str(error.value)


def test_where_test_samples_come_from():
    with_part, without = dataset(0, True), dataset(0, False)
    for asked, samples, found in (
        ("auto", with_part, "official"), ("auto", without, "share"), ("share", with_part, "share"),
        ("official", with_part, "official"), ("share", without, "share"),
    ):  # fmt: skip
        assert rule({"split": asked}, samples) == found
    pooled = make(Partition(scheme="iid", clients=3, split="share", test=0.2).resolved(), with_part, 0)
    assert np.unique(with_part.test[pooled["sample"][pooled["split"] == "train"]]).tolist() == [False, True]


@given(CASES)
@FEW
def test_class_counts_are_those_of_a_slow_loop(case):
    scheme, data_seed, seed, official = case
    samples = dataset(data_seed, official)
    domains = [{"transform": "swap(0,2)"}, {"transform": "relabel(1,2,0)+swap(0,1)"}, {"transform": "none"}]
    table = dealt(samples, scheme, seed, validation=0.1, domains=domains, newcomers=1, server={"test": 4})
    expected: dict[tuple[Any, ...], int] = {}
    for row in range(len(table["sample"])):
        label = int(samples.y[table["sample"][row]])
        if "swap(0,2)" in table["transform"][row]:
            label = {0: 2, 2: 0}.get(label, label)
        elif "relabel" in table["transform"][row]:
            label = [1, 2, 0][label]
            label = {0: 1, 1: 0}.get(label, label)
        key = (*(table[name][row] for name in ("client", "role", "true_cluster", "split")), label)
        expected[key] = expected.get(key, 0) + 1
    found = class_counts(table, samples)
    assert list(found) == ["client", "role", "true_cluster", "split", "class", "n"]
    *keys, n = found.values()
    assert dict(zip(zip(*keys, strict=True), n.tolist(), strict=True)) == expected


def test_real_targets_count_as_one_class():
    samples = Samples(np.empty(0), np.linspace(0, 1, 10))
    found = class_counts(make(Partition(scheme="iid", clients=2).resolved(), samples, 0), samples)
    assert set(found["class"]) == {-1} and found["n"].tolist() == [1, 4, 1, 4]


def test_every_scheme_here_is_in_the_table():
    assert set(SCHEMES) <= set(PARTITIONS)
