"""FeSEM: nearest centres, both variants and starts against slow loops, its collapse, planted groups."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import engine, uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.methods.fesem import LastModels, nearest
from clusterfl.metrics import adjusted_rand_index
from clusterfl.simulation import loop
from clusterfl.simulation.method import Known
from clusterfl.simulation.state import State

EIGHT = (40,) * 8


def run(federation, rounds=8, seed=0, observe=lambda round_, state, update: None, **options):
    training = {n: options.pop(n) for n in ("participation", "weights", "epochs", "divisor") if n in options}
    with engine(federation=federation, rounds=rounds, seed=seed, **training) as used:
        return loop.run(METHODS["fesem"](clusters=2, **options), loop.context(used), used, observe=observe)[0]


def test_nearest_by_hand():
    centres = np.array([[0.0, 0.0], [4.0, 0.0]])
    assert nearest(np.array([[1.0, 1.0], [3.0, 0.0], [2.0, 5.0]]), centres).tolist() == [0, 1, 0]  # the last is a tie
    assert torch.equal(nearest(torch.tensor([[3.0, 0.0]]), torch.as_tensor(centres)), torch.tensor([1]))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 20), models=st.integers(1, 6))
def test_nearest_is_scipys(seed, clients, models):
    draws = np.random.default_rng(seed)
    theta, centres = draws.normal(size=(clients, 5)), draws.normal(size=(models, 5))
    np.testing.assert_array_equal(nearest(theta, centres), cdist(theta, centres).argmin(1))


@pytest.mark.parametrize("seed", range(2))
def test_far_random_centres_collapse(seed):
    """All clients hold one initial model and join the centre nearest to it; training carries none over to the other."""
    apart = []
    state = run(
        uneven(EIGHT, seed=seed), seed=seed,
        observe=lambda round_, state, update: apart.append(
            (float((state.theta[0] - state.theta[1]).norm()), float(update.norms.max()))
        ),
    )  # fmt: skip
    assert len(np.unique(state.labels)) == 1
    assert all(between > 2 * moved for between, moved in apart)


@pytest.mark.parametrize("variant", ["flexcfl", "single", "kmeans"])
@pytest.mark.parametrize("layer", [None, "1.weight"])
def test_planted_groups_are_found_from_clients_models(variant, layer):
    for seed in range(2):
        federation = uneven(EIGHT, seed=seed)
        state = run(federation, seed=seed, start="clients", variant=variant, layer=layer)
        assert adjusted_rand_index(federation.true_cluster, state.labels) == 1


def test_flexcfl_is_the_slow_loop():
    """Centres are means of their participants' models; who joins which is by each one's own last model."""
    own, centres, checks = {}, {}, []

    def observe(round_, state, update):
        theta = state.theta[:].double()
        for k in centres:
            torch.testing.assert_close(theta[k], centres[k], rtol=0, atol=1e-6)
            checks.append(k)
        models = theta[torch.as_tensor(state.labels[update.clients])] + update.rows[:].double()
        for i, model in zip(update.clients, models, strict=True):
            if i in own:
                distances = [float((own[i] - centre).norm()) for centre in theta]
                assert state.labels[i] == int(np.argmin(distances))
            own[i] = model
        for k in range(2):
            chosen = torch.as_tensor(state.labels[update.clients] == k)
            centres[k] = models[chosen].mean(0) if chosen.any() else theta[k]
        if round_ == 1:
            centres.clear()  # the first round's models are drawn as centres after it

    run(uneven(EIGHT), start="clients", participation=0.5, weights="uniform", observe=observe)
    assert len(checks) == 2 * 6


def test_of_each_centres_updates_one_is_taken_whole():
    """Three of centre 0, of which one was left out, and one of centre 2: nothing is averaged, nobody moves centre 1."""
    method, seen = METHODS["fesem"](clusters=3, variant="single"), set()
    rows = torch.tensor([[1.0, 2.0], [9.0, 9.0], [3.0, 4.0], [5.0, 6.0]])
    for round_ in range(20):
        update = SimpleNamespace(
            rows=rows, sums=torch.zeros(3, 2, dtype=torch.float64), round=round_, dropped=np.array([0, 1, 0, 0], bool)
        )
        centres, weights = method._single(SimpleNamespace(seed=1), update, np.array([0, 0, 2]))
        assert (centres.tolist(), weights.tolist()) == ([0, 2], [1, 1])
        assert update.sums[1:].tolist() == [[0, 0], [5, 6]]
        seen.add(tuple(update.sums[0].tolist()))
    assert seen == {(1, 2), (3, 4)}  # each is drawn now and then


def test_single_is_the_slow_loop():
    """A centre is the model that one of its participants sent, and the one who sent it is not always the first."""
    began, places = {}, []

    def observe(round_, state, update):
        theta, labels = state.theta[:].double(), state.labels[update.clients]
        if began:
            models = began["theta"][torch.as_tensor(began["labels"])] + began["rows"]
            for k in range(2):
                own = models[torch.as_tensor(began["labels"] == k)]
                if not len(own):
                    assert torch.equal(theta[k], began["theta"][k])
                    continue
                gaps = (own - theta[k]).norm(dim=1)
                places.append(int(gaps.argmin()))
                assert gaps.min() < 1e-6 and len(own) > 2 and (own.mean(0) - theta[k]).norm() > 1e-3
        began.update(theta=theta.clone(), labels=labels.copy(), rows=update.rows[:].double())
        if round_ == 1:
            began.clear()  # the first round's models are drawn as centres after it

    run(uneven(EIGHT), start="clients", variant="single", observe=observe)
    assert len(places) == 2 * 6 and len(set(places)) > 1


def test_kmeans_is_scikit_learns():
    """From the same centres, over the models of all who have trained."""
    kept = {}

    def observe(round_, state, update):
        kept[round_] = state.theta[:].double().numpy(), state.own.models, state.own.seen.copy()

    state = run(uneven(EIGHT), start="clients", variant="kmeans", participation=0.5, weights="uniform", observe=observe)
    centres = kept[8][0]
    rows = state.own.models[:].double().numpy()[state.own.seen]
    found = KMeans(2, init=centres, n_init=1, tol=0).fit(rows)
    np.testing.assert_array_equal(state.labels[state.own.seen], found.labels_)
    np.testing.assert_allclose(state.theta.numpy(), found.cluster_centers_, atol=1e-5)
    assert not kept[2][2].all() and state.own.seen.all()


def test_centres_of_k_means_are_means_by_samples():
    """Clients 1, 2 and 3 have 30, 10 and 20 samples and models 0, 4 and 9; of the first two (0 x 30 + 4 x 10) / 40 = 1.

    Client 0 has never trained, and nobody is at centre 1, which stays.
    """
    with engine(federation=uneven((99, 30, 10, 20))) as used:
        context = loop.context(used)
    seen, models = np.array([False, True, True, True]), torch.tensor([[5.0], [0.0], [4.0], [9.0]])
    state = State(torch.full((3, 1), 7.0), np.array([-1, 0, 0, 2]), LastModels(seen, models))
    METHODS["fesem"](clusters=3, variant="kmeans")._recentre(context, state, np.array([1, 2, 3]))
    assert state.theta[:, 0].tolist() == [1, 7, 9]


def test_who_never_sent_a_sound_update_moves_no_centre_of_k_means():
    """From centres 0 and 6, clients 0 and 2 have models 1 and 5. Client 1's update is left out, it still has 50."""
    with engine(federation=uneven((10, 20, 30))) as used:
        context = replace(loop.context(used), parameter_columns=1)
    own = LastModels(np.zeros(3, dtype=bool), torch.tensor([[1.0], [50.0], [5.0]]))
    state = State(torch.tensor([[0.0], [6.0]]), np.array([0, 1, 0]), own)
    update = SimpleNamespace(clients=np.arange(3), dropped=np.array([False, True, False]), round=1)
    kmeans = METHODS["fesem"](clusters=2, variant="kmeans")
    kmeans.merge(context, state, update, np.array([0, 0]), np.array([10.0, 30.0]))
    assert own.seen.tolist() == [True, False, True] and state.theta[:, 0].tolist() == [1, 5]


@pytest.mark.parametrize(("layer", "expected"), [(None, 0), ("last", 1)])
def test_distances_are_over_all_parameters_or_those_of_one_layer(layer, expected):
    """Of centres (0, 5) and (9, 0), whose second column is the layer, (0, 0) is 5 and 9 away, by the layer 5 and 0.

    The third column is no parameter.
    """
    context = SimpleNamespace(parameter_columns=2, tensors={"first": slice(0, 1), "last": slice(1, 2)})
    theta, models = torch.tensor([[0.0, 5, 99], [9, 0, 0]]), torch.tensor([[7.0, 7, 7], [0, 0, 0]])
    state = State(theta, np.array([-1, -1]), LastModels(np.ones(2, dtype=bool), models))
    method = METHODS["fesem"](clusters=2, layer=layer)
    assert method._nearest(context, state, np.array([1])).tolist() == [expected]


def test_first_centres_are_drawn_by_squared_distance_among_who_has_trained():
    """Of models 0, 0, 1 and 3: next to a 0, the 3 is drawn 9 times of 10. The fifth client hasn't trained."""
    models, method, seconds = torch.tensor([[0.0], [0.0], [1.0], [3.0], [50.0]]), METHODS["fesem"](clusters=2), []
    for seed in range(600):
        first, second = method._drawn(SimpleNamespace(seed=seed, parameter_columns=1), models, np.arange(4))
        assert models[first] != models[second] and 4 not in (first, second)
        if first < 2:
            seconds.append(second)
    assert abs(np.mean(np.array(seconds) == 3) - 0.9) < 0.06  # a standard deviation is .017


def test_equal_models_are_one_centre():
    """Nothing to draw by: no client has learned anything."""
    federation = uneven((5,) * 4, groups=1)
    with engine(federation=federation, rounds=1, learning_rate=1e-30) as used:
        state, _ = loop.run(METHODS["fesem"](clusters=3, start="clients"), loop.context(used), used)
    assert len(np.unique(state.labels)) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"server_learning_rate": 0.3},
        {"server_momentum": 0.9},
        {"divisor": "all"},
        {"average": "gradients", "batch_size": "full", "steps": 1},
    ],
)
def test_what_k_means_would_ignore_is_refused(given):
    """Its centres are means of models: no server takes a step. With FlexCFL's rule all of these count."""
    name, value = next(iter(given.items()))
    for variant, refused in (("kmeans", [f"training.{name}"]), ("flexcfl", [])):
        problems = list(METHODS["fesem"](clusters=2, variant=variant).check(Known(Training(**given))))
        assert [problem.option for problem in problems] == refused
    with engine(federation=uneven(EIGHT), **given) as used, pytest.raises(UserError, match=f"{name}: '{value}' has no"):
        loop.run(METHODS["fesem"](clusters=2, variant="kmeans"), loop.context(used), used)


def test_wrong_options_are_reported():
    with pytest.raises(UserError, match=r"allowed: 1\.bias, 1\.weight"):
        run(uneven(EIGHT), layer="2.weight")
    with pytest.raises(UserError, match="divisor is 'all', set it to 'participants'"):
        run(uneven(EIGHT), variant="single", divisor="all")
    with (
        engine(federation=uneven((5, 5))) as used,
        pytest.raises(UserError, match="3 clusters for 2 clients; allowed: 1 to 2"),
    ):
        loop.run(METHODS["fesem"](clusters=3), loop.context(used), used)
