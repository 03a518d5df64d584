"""LCFL by landmarks: columns of the whole matrix, at a cost that grows with the clients, and clusters from these."""

from __future__ import annotations

import html
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import put, undrawn, write_yaml
from federations import engine, mlp, uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matrices import blocks, taken
from torch import Tensor

from clusterfl import api as notebook
from clusterfl.clustering.choice import find, joined
from clusterfl.clustering.distances import METRICS, check_distance, landmarks, loss_distance
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.metrics import adjusted_rand_index
from clusterfl.pipeline.assign import assign
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.stages import Work, cluster, distance
from clusterfl.pipeline.stages.distance import measure
from clusterfl.progress import bar
from clusterfl.simulation import loop
from clusterfl.simulation.method import prepared
from clusterfl.simulation.warm_up import warm_up
from clusterfl.storage import blocks as memory
from clusterfl.storage.store import read_json, read_table, write_table

ALL = np.arange(6)


@pytest.fixture(scope="module")
def warm():
    """Six clients of different sizes, an engine and their warmed-up models."""
    with engine(federation=uneven(), rounds=1) as used:
        yield used, warm_up(used, gradients=True, deltas=True)


def array(warm, metric: str) -> Tensor:
    """What a metric is computed from."""
    of = {"gradients": warm[1].gradients, "deltas": warm[1].deltas}
    return of.get(METRICS.input(metric), warm[1].theta)


def test_eq_2_by_hand():
    """Client 2 is the landmark; D[0, 2] = |4 - 1| + |5 - 3| = 5, D[1, 2] = |0 - 2| + |9 - 3| = 8, D[2, 2] = 0."""
    here, there, own = [[4.0], [0.0], [3.0]], [[5.0], [9.0], [3.0]], [1.0, 2.0, 3.0]
    assert loss_distance((here, there, own), np.array([2])).tolist() == [[5], [8], [0]]


@given(arrays(np.float64, (5, 5), elements=st.floats(0, 10)), st.sets(st.integers(0, 4), min_size=1))
@settings(deadline=None)
def test_every_metric_gives_columns_of_its_matrix(values, chosen):
    chosen = np.array(sorted(chosen))
    for name in METRICS:
        parts = whole = taken(name, values)
        if METRICS.input(name) == "losses":
            parts = (values[:, chosen], values[chosen].T, np.diag(values))
        assert np.array_equal(METRICS[name](parts, chosen), METRICS[name](whole)[:, chosen])


@pytest.mark.parametrize("metric", ["parameters", "gradient-cosine"])
def test_no_bit_depends_on_the_other_rows(metric):
    """Rows come in blocks of 64 MB, here 932 and 68 of them; long rows are where products of matrices may differ."""
    rows = np.random.default_rng(0).normal(size=(1000, 9000)).astype(np.float32)
    some = np.array([0, 3, 931, 932, 999])
    chosen = np.array([3, 999])
    found = METRICS[metric](rows, chosen)
    assert found[some].tolist() == METRICS[metric](rows[some])[:, [1, 4]].tolist()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("data", ["train", "all"])
def test_measured_distances_are_columns_of_the_whole_matrix(warm, metric, data):
    whole, cost = measure(warm[0], array(warm, metric), metric, {}, data)
    for chosen in (np.array([1]), np.array([0, 3, 5]), ALL):
        found, _ = measure(warm[0], array(warm, metric), metric, {}, data, chosen=chosen)
        assert np.array_equal(found, whole[:, chosen])
    assert measure(warm[0], array(warm, metric), metric, {}, data, chosen=ALL)[1] == cost


@pytest.mark.parametrize("models", [1, 2, 4, 99])
def test_the_count_of_models_goes_forward_to_their_number(warm, models, monkeypatch):
    """Also where two splits are measured, and however many models are between two checkpoints."""
    monkeypatch.setattr(distance, "MODELS", models)
    for data in ("train", "all"):
        counts = []
        measure(warm[0], warm[1].theta, "loss", {}, data, counts.append)
        assert counts == sorted(counts) and counts[-1] == 6


def test_what_landmarks_cost(warm):
    """Sizes 3, 10, 25, 7, 16, 40; landmarks 1 and 4 get the 5 models of others, everyone else 2 of theirs: 18 models.

    Samples seen: (10 + 16) x 6 models, (3 + 25 + 7 + 40) x 2 and their own.
    """
    used, columns = warm[0], warm[0].layout.columns
    cost = {
        m: measure(used, array(warm, m), m, {}, chosen=np.array([1, 4]))[1]
        for m in ("loss", "cross-loss", "parameters")
    }
    assert cost["loss"] == {
        "bytes_down": 18 * columns * 4, "bytes_up": 18 * 4, "client_forwards": 26 * 6 + 75 * 3
    }  # fmt: skip
    assert cost["cross-loss"] == cost["loss"] | {"bytes_up": (18 + 6) * 4}
    assert not any(cost["parameters"].values())


def test_draws():
    ids = np.array([3, 5, 8, 13, 21, 34])
    few, more = landmarks(ids, 2, seed=1), landmarks(ids, 4, seed=1)
    assert len(few) == 2 and set(few) < set(more) and more.tolist() == sorted(more)
    assert landmarks(ids, 6, 1).tolist() == landmarks(ids, 99, 1).tolist() == ALL.tolist()
    order = np.array([4, 1, 5, 0, 3, 2])
    assert set(ids[order][landmarks(ids[order], 3, 1)]) == set(ids[landmarks(ids, 3, 1)])
    drawn = np.array([landmarks(ids, 2, seed) for seed in range(600)])
    counts = np.bincount(drawn.reshape(-1), minlength=6)
    assert (np.abs(counts - 200) < 5 * np.sqrt(600 * 2 / 9)).all()  # each with probability 1/3; five deviations


def test_joining_by_hand():
    """Landmarks 1, 2, 4 in clusters 0, 1, 1: client 0 has means 3 and (1 + 4) / 2, client 3 has 2 and 2, a tie."""
    distance = np.array([[3, 1, 4], [0, 5, 5], [5, 0, 9], [2, 1, 3], [5, 9, 0]], dtype=float)
    assert joined(distance, np.array([1, 2, 4]), np.array([0, 1, 1])).tolist() == [0, 1, 0, 1, 0]  # by first client
    # Landmark 2 would be nearer to cluster 0, but keeps its own.
    distance[2] = [1, 0, 9]
    assert joined(distance, np.array([1, 2, 4]), np.array([0, 1, 1])).tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("clusterer", ["fasterpam", "hierarchical", "spectral", "dbscan"])
@pytest.mark.parametrize("clusters", [3, "silhouette", "eigengap"])
def test_clusters_from_landmarks(clusterer, clusters):
    """With all clients as landmarks nothing changes; with some of each group the planted groups are found."""
    distance, groups = blocks((20, 15, 25))
    whole = find(distance, clusterer, clusters)
    everyone = find(distance, clusterer, clusters, landmarks=np.arange(60))
    assert everyone.labels.tolist() == whole.labels.tolist() and everyone.k == whole.k
    some = landmarks(np.arange(60), 15, seed=0)
    options = {"eps": 2.5, "min_samples": 2} if clusterer == "dbscan" else {}
    found = find(distance[:, some], clusterer, clusters, options=options, landmarks=some)
    assert adjusted_rand_index(groups, found.labels) == 1


def test_a_group_without_a_landmark_is_lost():
    """Its clients join others' clusters, whatever number of clusters is asked for."""
    distance, groups = blocks((20, 3))
    some = np.flatnonzero(groups == 0)[:8]
    for clusters in (2, 5):
        found = find(distance[:, some], "fasterpam", clusters, landmarks=some).labels
        assert set(found[groups == 1]) <= set(found[groups == 0])


def test_wrong_matrices_are_reported():
    distance, chosen = np.array([[0, 2.0], [1, 3], [2, 0]]), np.array([0, 2])
    check_distance(distance, chosen)
    with pytest.raises(UserError, match="square; found shape"):
        check_distance(distance, np.array([0]))
    with pytest.raises(UserError, match="clients 1 and 2 is nan"):
        check_distance(np.where(distance == 3, np.nan, distance), chosen)
    with pytest.raises(UserError, match=r"client 0 is .* from client 2, and that one"):
        check_distance(np.where(distance == 2, [[5.0, 2.0]], distance), chosen)
    with pytest.raises(UserError, match="none is negative"):
        check_distance(-distance, chosen)


def test_memory_of_many_clients_is_that_of_their_columns():
    """50,000 clients and 32 landmarks: 12.8 MB for each array [M, r]; [M, M] would be 20 GB."""
    clients, chosen = 50_000, np.arange(0, 50_000, 1563)[:32]
    rng = np.random.default_rng(0)
    groups, theta = np.arange(clients) % 4, rng.normal(size=(clients, 5))
    theta[:, 0] += 20 * groups
    tracemalloc.start()
    distance = METRICS["parameters"](theta, chosen)
    check_distance(distance, chosen)
    found = find(distance, "fasterpam", 4, landmarks=chosen).labels
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert adjusted_rand_index(groups, found) == 1
    assert peak < 100e6


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study whose clusterings rest on all clients, on as many landmarks as there are clients, and on five."""
    block = {"metric": "loss", "warmup": "short"}
    marks = {"whole": None, "all": 99, "five": 5}
    settings = {
        "study": "marks",
        "seeds": {"runs": [2]},
        "engine": {"device": "cpu"},
        "model": {"model": "linear"},
        "training": {"rounds": 3, "learning_rate": 0.1},
        "federations": {
            "digits": {
                "dataset": "digits",
                "partition": {"scheme": "rotated", "clients": 12, "angles": [0, 180], "newcomers": 2},
            }
        },
        "warmups": {"short": {"rounds": 1, "training": {"epochs": 10}}},
        "distances": {n: block | ({"landmarks": r} if r else {}) for n, r in marks.items()},
        "clusterings": {n: {"clusterer": "fasterpam", "distance": n, "clusters": 2} for n in marks},
        "methods": {n: {"method": "lcfl", "clustering": n} for n in marks},
    }
    folder = tmp_path_factory.mktemp("marks")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        undrawn(patch)
        plan = Plan.from_files([write_yaml(Path("config.yaml"), settings)])
        for job in plan.jobs():
            execute(job)
        yield plan, folder / "results/marks"


def test_files_of_a_study(finished):
    run = finished[1] / "digits/seed2"
    tables = {n: read_table(run / f"distance/{n}.parquet") for n in ("whole", "all", "five")}
    whole, five = tables["whole"], tables["five"]
    assert list(whole) == ["client", "distance"]
    assert np.array_equal(tables["all"]["distance"], whole["distance"]) and tables["all"]["landmark"].all()
    assert five["landmark"].sum() == 5
    assert np.array_equal(five["distance"], whole["distance"][:, five["landmark"]])
    assert np.array_equal(five["client"], whole["client"])


def test_all_clients_as_landmarks_are_exactly_lcfl(finished):
    run = finished[1] / "digits/seed2"
    for file in ("clusters/{}.parquet", "clusters/{}.scores.parquet", "methods/{}/history.parquet"):
        assert (run / file.format("all")).read_bytes() == (run / file.format("whole")).read_bytes()


def test_rows_of_the_file_may_come_in_any_order(finished, tmp_path):
    table = read_table(finished[1] / "digits/seed2/distance/five.parquet")
    order = np.random.default_rng(0).permutation(10)
    ids, marked = table["client"][order], table["landmark"][order]
    columns = np.searchsorted(table["client"][table["landmark"]], ids[marked])
    shuffled = {"client": ids, "distance": table["distance"][order][:, columns], "landmark": marked}
    write_table(tmp_path / "in.parquet", shuffled)
    job = finished[0].job("cluster", "digits", 2, "five")
    outputs = {n: tmp_path / f"{n}.parquet" for n in job.outputs}
    cluster.run(Work(job.settings, job.identity, {"distance": tmp_path / "in.parquet"}, outputs, bar))
    for name, path in job.outputs.items():
        assert outputs[name].read_bytes() == (finished[1].parents[1] / path).read_bytes()


def test_cost_is_counted_with_the_warm_up(finished):
    run = finished[1] / "digits/seed2"
    costs = read_json(run / "distance/five.manifest.json")["costs"]
    assert costs["bytes_up"] == 5 * (9 + 5) * 4  # 10 members: 5 landmarks get 9 models, 5 others get 5
    warm = read_table(run / "warmup/short/rounds.parquet")
    rounds = read_table(run / "methods/five/rounds.parquet")
    for name, cost in costs.items():
        assert rounds[name][0] == warm[name][0] + cost


def test_report_says_that_it_shows_the_landmarks(finished):
    page = html.unescape((finished[1] / "report.html").read_text(encoding="utf-8"))
    assert "between the 5 landmarks (of 10 clients), clustering 'five'" in page
    assert "between clients, clustering 'whole'" in page


def test_newcomers_are_assigned(finished, monkeypatch):
    monkeypatch.chdir(finished[1].parents[1])
    assert assign(finished[0], method="all").equals(assign(finished[0], method="whole"))
    assert assign(finished[0], method="five")["cluster"].notna().all()


def test_notebook():
    options = {"clusterer": "fasterpam", "clusters": 2, "training": {"rounds": 2}}
    federation = uneven(sizes=(30,) * 8)
    runs = {r: notebook.run("lcfl", federation, mlp, landmarks=r, **options) for r in (None, 8, 4)}
    assert runs[8].clusters.equals(runs[None].clusters)
    assert runs[4].adjusted_rand_index() == 1


def test_too_many_clients_for_all_pairs_are_reported_what_to_do(warm, monkeypatch):
    memory.check_pairs(20_000, "")
    with pytest.raises(UserError, match="100000 clients are too many to compare all with all, in a matrix of 80 GB"):
        memory.check_pairs(100_000, "")
    monkeypatch.setattr(memory, "MOST", 5)
    for metric in METRICS:
        with pytest.raises(UserError, match=r"6 clients .* up to 5; set landmarks for this distance"):
            measure(warm[0], array(warm, metric), metric, {})
        assert measure(warm[0], array(warm, metric), metric, {}, chosen=ALL[:5])[0].shape == (6, 5)
    context = loop.context(warm[0])
    for options in ({"choose_k": True}, {"clusterer": "ward"}):
        with pytest.raises(UserError, match=r"6 clients .*; use clusterer: kmeans with choose_k: false"):
            prepared(METHODS["clove"](clusters=2, **options), context)
    prepared(METHODS["clove"](clusters=2), context)
    half = replace(context, training=context.training.model_copy(update={"participation": 0.5}))
    prepared(METHODS["clove"](clusters=2, choose_k=True), half)  # three of them take part


@pytest.mark.parametrize(
    "place, value, words",
    [
        ("distances.loss.landmarks", 1, "greater than or equal to 2"),
        ("clusterings.lcfl.clusters", 5, "5 clusters for the 4 landmarks of distance 'loss'; allowed: 1 to 4"),
        ("distances.loss", {"metric": "mine:own", "warmup": "short", "landmarks": 4}, "a metric of your own, which"),
    ],
)
def test_impossible_settings(study, tmp_path, monkeypatch, place, value, words):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from clusterfl.clustering.metric import computed_from\n\n\n"
        "@computed_from('parameters')\ndef own(rows):\n    return rows\n"
    )
    with pytest.raises(UserError, match=words):
        Plan.from_settings(put(put(study, "distances.loss.landmarks", 4), place, value), ["config.yaml"])
