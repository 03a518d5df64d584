"""Federations that change: names by hand, which data clients have in which round, groups, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from clusterfl import api
from clusterfl.config.federation import Event, Partition
from clusterfl.data import drift
from clusterfl.data.inputs import Inputs
from clusterfl.data.load import clients
from clusterfl.data.prepared import samples_of
from clusterfl.data.samples import Samples
from clusterfl.errors import UserError
from clusterfl.pipeline.stages import partition

SHIFT = "relabel(1,2,0)"


def samples(n=120):
    draws = np.random.default_rng(0)
    return Samples(draws.integers(0, 256, (n, 1, 4, 4)).astype(np.uint8), draws.integers(0, 3, n))


def table(events, scheme="rotated", seed=0, **options):
    given = {"scheme": scheme, "clients": 12, "test": 0.25, **({"angles": [0, 90]} if scheme == "rotated" else {})}
    settings = Partition(**(given | options), drift=events).resolved()
    return partition.make(settings, samples(), seed)


def by_client(rows, column):
    return {int(c): set(rows[column][rows["client"] == c].tolist()) for c in np.unique(rows["client"])}


def test_a_name_says_what_a_transform_becomes():
    name = "rotate90@11:2:rotate180@21:5:rotate180+swap(0,1)"
    assert drift.phases(name) == [(1, None, "rotate90"), (11, 2, "rotate180"), (21, 5, "rotate180+swap(0,1)")]
    rows = {"transform": np.array([name, "none"]), "true_cluster": np.array([1, 0]), "client": np.array([3, 4])}
    assert drift.begins(rows["transform"]) == [1, 11, 21]
    for round_, turned, group in ((0, "rotate90", 1), (10, "rotate90", 1), (11, "rotate180", 2), (20, "rotate180", 2),
                                  (21, "rotate180+swap(0,1)", 5), (99, "rotate180+swap(0,1)", 5)):  # fmt: skip
        now = drift.at(rows, round_)
        assert now["transform"].tolist() == [turned, "none"] and now["true_cluster"].tolist() == [group, 0]
        assert now["client"] is rows["client"]


def test_moves_labels_and_groups_by_hand():
    """Even ids turn by 0, odd by 90 (see below). Clients 0 and 1 swap places, then 0 and 2 have other labels."""
    plain = table([])
    rows = table([{"round": 3, "clients": [0, 1], "move": "next"}, {"round": 5, "clients": [0, 2], "transform": SHIFT}])
    for name in ("sample", "client", "split", "role"):
        np.testing.assert_array_equal(rows[name], plain[name])
    groups, turns = by_client(plain, "true_cluster"), by_client(plain, "transform")
    of = {g: t for c in groups for g, t in zip(groups[c], turns[c], strict=True)}
    third, fifth = drift.at(rows, 3), drift.at(rows, 5)
    for client in range(12):
        (before,) = groups[client]
        after = 1 - before if client < 2 else before
        assert by_client(third, "true_cluster")[client] == {after}
        assert by_client(third, "transform")[client] == {of[after]}
        later = {of[after]}
        if client in (0, 2):
            later = {SHIFT} if of[after] == "none" else {f"{of[after]}+{SHIFT}"}
        assert by_client(fifth, "transform")[client] == later
    final = by_client(fifth, "true_cluster")
    assert len({frozenset(v) for v in final.values()}) == 2 + len(
        {next(iter(by_client(third, "true_cluster")[c])) for c in (0, 2)}
    )
    assert min(final[0]) >= 2


def test_a_turn_into_another_groups_turn_is_that_group():
    rows = table([{"round": 2, "transform": "rotate270"}], angles=[0, 90])
    before, after = by_client(rows, "true_cluster"), by_client(drift.at(rows, 2), "true_cluster")
    turned = {c for c, names in by_client(drift.at(rows, 1), "transform").items() if names == {"rotate90"}}
    assert all(after[c] == before[next(iter(set(range(12)) - turned))] for c in turned)
    assert all(min(after[c]) == 2 for c in set(range(12)) - turned)


def test_samples_and_labels_are_those_of_the_round():
    """The arrays of each phase are those of a federation that has these transforms throughout."""
    rows = table([{"round": 4, "clients": 0.5, "move": "drawn"}, {"round": 6, "clients": 0.5, "transform": SHIFT}])
    found = clients(samples(), rows, Inputs())
    assert [phase.begins for phase in (found, *found.later)] == [1, 4, 6]
    for round_ in (1, 3, 4, 5, 6, 50):
        alone = clients(samples(), drift.at(rows, round_), Inputs())
        now = found.at(round_)
        np.testing.assert_array_equal(now.true_cluster, alone.true_cluster)
        for split in ("train", "test"):
            np.testing.assert_array_equal(samples_of(now.splits[split]), samples_of(alone.splits[split]))
            np.testing.assert_array_equal(now.splits[split].y, alone.splits[split].y)
            np.testing.assert_array_equal(now.splits[split].offsets, found.splits[split].offsets)
            np.testing.assert_array_equal(now.splits[split].rows, found.splits[split].rows)
    assert (found.at(5).true_cluster != found.true_cluster).any()
    assert (found.at(6).splits["train"].y != found.splits["train"].y).any()


def test_draws_are_of_clients_and_seed_alone():
    events = [{"round": 4, "clients": 0.5, "move": "drawn"}]
    one, same, other = (table(events, angles=[0, 90, 180], seed=seed)["transform"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    moved = {c for c, names in by_client(table(events, angles=[0, 90, 180]), "transform").items() if "@" in min(names)}
    assert len(moved) == 6
    rows = table(events, angles=[0, 90, 180])
    before, after = (by_client(drift.at(rows, round_), "true_cluster") for round_ in (3, 4))
    assert all((before[c] != after[c]) == (c in moved) for c in before)  # nobody is drawn into its own group


def test_digests_say_a_drift_and_counts_are_of_the_first_round():
    events = [{"round": 4, "transform": SHIFT}]
    plain, rows = table([]), table(events)
    assert partition.content(plain, "x") != partition.content(rows, "x") != partition.content(table(
        [{"round": 5, "transform": SHIFT}]), "x")  # fmt: skip
    one, other = (partition.class_counts(t, samples()) for t in (plain, rows))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert "drift" not in Partition(scheme="rotated", clients=4).resolved()  # so that old digests stay


def test_newcomers_stay_as_they_are():
    rows = table([{"round": 2, "transform": SHIFT}], newcomers=3)
    assert not any("@" in name for name in rows["transform"][rows["role"] == "newcomer"])
    assert all("@" in name for name in rows["transform"][rows["role"] == "member"])


@pytest.mark.parametrize(
    ("scheme", "options", "said"),
    [
        ("iid", {}, "no groups are planted; .* as scheme: rotated"),
        ("rotated", {"domains": [{"transform": "none"}, {"transform": "noise(0.5)"}]}, "adds noise, which stays"),
        ("rotated", {"angles": [0]}, "drift.0.move: there is only one group"),
    ],
)
def test_what_cannot_drift_is_refused(scheme, options, said):
    with pytest.raises(UserError, match=said):
        table([{"round": 2, "move": "next"}], scheme, **options)


def test_groups_of_label_sets_cannot_move(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="transform 'none' is in groups 0 and 1"):
        api.load(scheme="label-skew", sets="pairs", clients_per_cluster=2, drift=[{"round": 2, "move": "next"}])


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"round": 1, "move": "next"}, "greater than or equal to 2"),
        ({"round": 2}, "give one of them"),
        ({"round": 2, "move": "next", "transform": SHIFT}, "give one of them"),
        ({"round": 2, "transform": "blur(2)"}, "allowed in a drift: rotate90"),
        ({"round": 2, "transform": "none"}, "allowed in a drift: rotate90"),
        ({"round": 2, "transform": "turn"}, "unknown transform 'turn'"),
    ],
)
def test_events_are_checked(block, said):
    with pytest.raises(ValidationError, match=said):
        Event(**block)


def test_rounds_rise_and_labels_change_once():
    events = [{"round": 5, "transform": SHIFT}, {"round": 5, "move": "next"}]
    with pytest.raises(ValidationError, match=r"rounds are \[5, 5\]; give them in increasing order"):
        Partition(scheme="rotated", drift=events)
    with pytest.raises(ValidationError, match="drift and flipped"):
        Partition(scheme="rotated", drift=events[:1], flipped={"clients": 0.1})
