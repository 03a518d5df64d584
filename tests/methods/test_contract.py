"""The contract of all methods. A new method joins by being in the table; an exception has its reason beside it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from federations import changed, engine, slow_but, uneven

from clusterfl.clustering import CLUSTERERS
from clusterfl.data.federation import Federation
from clusterfl.data.inputs import Inputs
from clusterfl.data.load import clients as load_clients
from clusterfl.data.prepared import samples_of
from clusterfl.data.samples import Samples
from clusterfl.engine.training import Training
from clusterfl.errors import Diverged, UserError
from clusterfl.methods import METHODS
from clusterfl.metrics import adjusted_rand_index
from clusterfl.pipeline.checkpoint import Unfinished
from clusterfl.pipeline.stages.common import arrays, keeping, read_state, resumed
from clusterfl.pipeline.stages.distance import measure
from clusterfl.simulation import loop
from clusterfl.simulation.evaluation import newcomer_labels
from clusterfl.simulation.participation import Faults, attendance, factors
from clusterfl.simulation.record import Record
from clusterfl.simulation.warm_up import warm_up
from clusterfl.storage.store import write_tensors

SIZES = (30, 31, 25, 40, 36, 30, 1, 33)
NOT_FEDAVG = {  # with one cluster they still aren't FedAvg
    "fairavg": "weighs clients equally",
    "fedavgm": "has momentum on the server",
    "fedprox": "has a proximal term",
    "local": "never averages",
    "flexcfl": "begins with the mean of pre-trained models",
    "fedper": "has a last layer for each client",
    "per-fedavg": "looks a step ahead",
    "fedala": "begins with a mixture",
    "fedproto": "never averages models",
    "fedpac": "has a last layer for each client",
    "apfl": "steps with two models, which rounds otherwise",
    "pfedme": "sends what follows its models, not these",
    "fedcam": "adds a cluster's model to the common one",
    "fedsoft": "goes on from each client's own model",
    "fpfc": "has a model for each client",
    "stocfl": "pulls its clusters' models to a common one",
}
QUICK = {
    "fedala": {"window": 2, "spread": 1.0},  # three passes until weights settle, not eleven or more
    "fl-hc": {"common_rounds": 1},
}
STARTED = {"fedcam": {"first_round": "random"}}  # by losses all of six clients take one model
ONE = ("feddrift",)  # losses are on the one model that there is
LOOKING = ("fedala", "fedpac", "flux")  # samples go through models for other things than losses
# Numbers of the model that clients keep: the weight and the bias of its last layer.
HEADS = dict.fromkeys(("fedper", "fedpac"), 8 * 3 + 3)
ALONE = ("local", "fedproto")  # no models are sent, and every client has a label of its own
SUMS = ("fedcam",)  # half of a model is common to all, and sent once; the halves are trained one after the other
OWN = ("ditto", "apfl")  # clients take as many steps for a model of their own
SHOWN = ("flux",)  # each client is sent the first round's model, for which it describes its samples
TWO = ("stocfl",)  # they train, and send, a model for all and their cluster's
FIVE = ("pfedme",)  # steps on each mini-batch
MIXED = ("fedem", "fedrc")  # participants train all models, by their samples' losses, and predict by all of them
NOT_KEPT = dict.fromkeys(SUMS, "has a new optimiser for each half") | {"apfl": "has a new optimiser for each model"}
NOT_KEPT |= dict.fromkeys(MIXED, "trains several models")
NOT_TWINS = dict.fromkeys(ALONE, "every client has a label of its own")
PROTOTYPE = 4 * (1 + 8)  # bytes of a class's prototype: its number and eight features
# Least adjusted Rand index over the seeds, on two planted groups with opposite rules after 8 rounds, of those that find
# them. By their defaults CFL splits no earlier than in round 21, all clients of FeSEM join one centre, and FedGWC looks
# for groups with losses of their own for many rounds; PACFL and k-FED look at samples, which both groups have from one
# source.
FOUND = {"oracle": 1.0, "ifca": 1.0, "clove": 1.0, "lcfl": 1.0, "flexcfl": 1.0, "fl-hc": 1.0, "fedcam": 1.0}

# One of each kind: one model, models by losses, by updates, of one's own, one-shot, splits, kept columns, asked before.
KINDS = ["fedavg", "ifca", "fesem", "local", "lcfl", "cfl", "fedala", "pacfl"]


def options(name, clusters=2):
    """Options with which a method runs here: a number of models where it takes one."""
    many = {"clusters": clusters} if "clusters" in METHODS.options(name).model_fields else {}
    return many | QUICK.get(name, {})


def chain(used, clusters=2):
    """What a one-shot method continues, from the very stages: warm-up, distance, clustering."""
    tuned = Training(**(used.training.model_dump() | {"rounds": 1, "participation": 1.0}))
    with engine(used.factory, used.federation, seed=used.seed, newcomers=used.newcomers, **tuned.model_dump()) as alone:
        warm = warm_up(alone)
        distance, _ = measure(alone, warm.theta, "loss", {})
    labels = CLUSTERERS["hierarchical"](distance, k=clusters)
    return {"clustering": labels, "warmup": warm.state, "members": lambda: warm.theta}


def start(name, used, clusters=2, **extra):
    """Return the method, what it may know, and the first round it has to run."""
    given = chain(used, clusters) if one_shot(name) else {}
    return METHODS[name](**options(name, clusters)), loop.context(used, **(given | extra)), 2 if given else 1


def engine_for(name, **settings):
    """Return an engine whose models are sums of as many networks as the method wants."""
    return engine(copies=METHODS[name].copies, **settings)


def one_shot(name):
    return METHODS[name].one_shot


def sampling(method, change):
    """Return a method whose participants are what `change` makes of those drawn and the round."""
    return changed(method, sample=lambda old, context, state, round_: change(old(context, state, round_), round_))


def asked(name, used):
    """What a method asks of all clients with the first round: models sent to and fro, other numbers up, steps."""
    data = used.federation.splits["train"]
    parts = [np.bincount(data.y[first:last]) for first, last in pairwise(data.offsets)]
    return {
        "flexcfl": (len(parts), 0, 50 * len(parts)),
        "pacfl": (0, 5 * sum(int(np.minimum(counts, 3).sum()) for counts in parts), 0),  # 5 features
        "fl-hc": (len(parts), 0, used.training.epochs * sum(-(-n // 10) for n in data.sizes.tolist())),  # with round 1
        "k-fed": (0, (5 + 1) * len(parts), 0),
        "flux": (0, 3 * (2 + 2 * 3) * len(parts), 0),  # moments of three directions, of all and of three classes
        "stocfl": (len(parts), 0, 20 * sum(-(-n // 10) for n in data.sizes.tolist())),
    }.get(name, (0, 0, 0))


def prototypes(name, used, rounds):
    """Bytes of the prototypes of all clients, and of those that a client is sent, in each round."""
    if "features" not in METHODS[name].needs:
        return 0, 0
    data = used.federation.splits["train"]
    owned = sum(len(np.unique(data.y[first:last])) for first, last in pairwise(data.offsets))
    return PROTOTYPE * owned, PROTOTYPE * 3 * (rounds > 1)


def sent(name, columns):
    """Return the bytes of a model that is sent."""
    return 4 * (columns - HEADS.get(name, 0))


def shared(name, columns):
    """Return the bytes of what all models have in common."""
    return 4 * columns // 2 if name in SUMS else 0


def run(name, used, clusters=2, **how):
    method, context, first = start(name, used, clusters)
    return loop.run(method, context, used, first_round=first, **how)


def numbers(state, record):
    """Everything a run gives, but for its times, to be compared bit by bit."""
    tables = [Record.table(part) for part in (record.history, record.rounds, record.clusters)]
    found = {name: np.asarray(value[:]) for name, value in state.arrays().items()}
    return found | {f"{i}.{name}": column for i, table in enumerate(tables) for name, column in table.items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def kept_in(folder, name):
    """Return the checkpoint that lies in a folder."""
    return resumed(Unfinished(folder), METHODS[name].own)


EVERYTHING = ["aggregated", "local", "stale", "personalised"]


def scored(name, evaluations=EVERYTHING):
    """Return those of some evaluations that a method has."""
    return evaluations[:1] if name in MIXED else evaluations


@pytest.mark.parametrize("name", slow_but(["fedavg", "ifca", "cfl", "pacfl"], METHODS))
@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=pytest.mark.slow), 0.4])
def test_deterministic_and_free_of_chunks_and_workers(name, participation):
    results = []
    settings = {"rounds": 3, "participation": participation, "epochs": 1, "evaluations": scored(name)}
    for cut in ({}, {}, {"chunk": 3}, {"chunk": 2, "workers": 2}):
        with engine_for(name, federation=uneven(SIZES), **settings, **cut) as used:
            results.append(numbers(*run(name, used)))
    for other in results[1:]:
        same(results[0], other)


@pytest.mark.parametrize("name", slow_but(KINDS, METHODS))
def test_rows_of_the_input_may_come_in_any_order(name):
    data = uneven(SIZES)
    parts = [(split, i, data.splits[split]) for split in ("train", "test") for i in range(len(SIZES))]
    rows = [(s.rows[j], 10 * i, name_) for name_, i, s in parts for j in range(s.offsets[i], s.offsets[i + 1])]
    sample, client, split = map(np.array, zip(*rows, strict=True))
    y = np.empty(len(sample), dtype=np.int64)
    for s in data.splits.values():
        y[s.rows] = s.y
    table = {
        "sample": sample, "client": client, "split": split, "role": np.full(len(sample), "member"),
        "transform": np.full(len(sample), "none"), "true_cluster": client // 10 % 2,
    }  # fmt: skip
    found = []
    for order in (np.arange(len(sample)), np.random.default_rng(0).permutation(len(sample))):
        samples = Samples(data.splits["train"].pool.x, y)
        shuffled = load_clients(samples, {key: column[order] for key, column in table.items()}, Inputs())
        with engine_for(name, federation=shuffled, rounds=3, epochs=1) as used:
            found.append(numbers(*run(name, used)))
    same(*found)


@pytest.mark.parametrize("name", [n for n in METHODS if n not in NOT_FEDAVG])
def test_one_cluster_is_fedavg(name):
    federation = uneven(SIZES, groups=1)
    with engine_for(name, federation=federation, rounds=3, epochs=1, participation=0.5) as used:
        method, context, _ = start(name, used, clusters=1)
        if one_shot(name):  # it goes on from the warm-up: FedAvg does so, too
            method = replace(method, start="initial")
        one, _ = loop.run(method, context, used)
        fedavg, _ = run("fedavg", used)
    assert torch.equal(one.theta, fedavg.theta)


@pytest.mark.parametrize("name", [n for n in METHODS if n not in NOT_TWINS])
def test_equal_data_and_streams_give_equal_labels(name):
    """Full batches and a network that draws nothing: then clients with equal data have equal streams."""
    half = uneven((20, 24, 22, 30))
    twice = {}
    for key in ("x", "y", "client", "split", "group"):
        columns = []
        for split, data in half.splits.items():
            owner = np.repeat(np.arange(4), data.sizes)
            made = {
                "x": samples_of(data),
                "y": data.y,
                "client": owner,
                "split": np.full(len(data), split),
                "group": owner % 2,
            }
            columns += [made[key], made[key] + 4 if key == "client" else made[key]] if len(data) else []
        twice[key] = np.concatenate(columns)
    federation = Federation.from_arrays(*twice.values())
    with engine_for(name, federation=federation, rounds=4, steps=3, epochs=None, batch_size="full") as used:
        state, _ = run(name, used)
    np.testing.assert_array_equal(state.labels[:4], state.labels[4:])


@pytest.mark.parametrize("name", slow_but(["fedavg", "ifca", "fesem", "cfl", "fedgwc"], METHODS))
@pytest.mark.parametrize(
    "participation, on_disk",
    [
        (0.25, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0.25, False), (1.0, False), (1.0, True))),
    ],
)
def test_interrupted_and_resumed_equals_uninterrupted(name, participation, on_disk, tmp_path, monkeypatch):
    """At every round's end, by the very checkpoints of the stages."""
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1 if on_disk else 1 << 30)
    settings = {"rounds": 4, "participation": participation, "epochs": 1, "evaluations": scored(name)}
    rounds = []

    def keep(checkpoint):
        rounds.append(checkpoint.round)
        keeping(Unfinished(tmp_path / str(checkpoint.round), seconds=0))(checkpoint)

    with engine_for(name, federation=uneven(SIZES), **settings) as used:
        whole = numbers(*run(name, used, save=keep))
    assert rounds == list(range(2 if one_shot(name) else 1, 5))
    for round_ in rounds:
        with engine_for(name, federation=uneven(SIZES), **settings) as used:
            same(whole, numbers(*run(name, used, resume=kept_in(tmp_path / str(round_), name))))


@pytest.mark.parametrize("name", slow_but(KINDS, METHODS))
def test_tables_are_complete_and_labels_in_range(name):
    with engine_for(name, federation=uneven(SIZES), rounds=4, evaluate_every=3, epochs=1) as used:
        state, record = run(name, used)
    history, rounds, clusters = (Record.table(p) for p in (record.history, record.rounds, record.clusters))
    assert {3, 4} <= set(history["round"]) <= {0, 3, 4}
    assert set(history["split"]) == {"train", "test"} and set(history["evaluation"]) == {"aggregated"}
    assert rounds["round"].tolist() == list(range(2 if one_shot(name) else 1, 5))
    assert (clusters["cluster"] >= 0).all() and clusters["cluster"].max() < len(state.theta)
    assert (state.labels >= 0).all() and state.theta.isfinite().all()
    assert clusters["participated"].all()
    assert state.participations.tolist() == [4] * len(SIZES)
    if METHODS[name].settles:
        by_round = clusters["cluster"].reshape(-1, len(SIZES))
        assert (by_round == by_round[0]).all()


@pytest.mark.parametrize("name", slow_but(KINDS, METHODS))
def test_costs_are_counted(name):
    """By the method's own rule: who sends models, who sends losses, who evaluates all models."""
    with engine_for(name, federation=uneven(SIZES), rounds=4, epochs=1) as used:
        _, record = run(name, used)
    rounds = Record.table(record.rounds)
    size, m = sent(name, used.layout.columns), len(SIZES)
    models = np.full(len(rounds["round"]), 0 if name in ALONE else 1)  # downloaded by each participant
    numbers_sent = np.zeros_like(models)  # besides the update
    if name in ("ifca", *SUMS):
        models[:], numbers_sent[:] = 2, 1
    if name in (*MIXED, "fedsoft"):
        models[:] = 2
    if name == "fedsoft":
        numbers_sent[:] = 2  # its samples by centre
    if name == "fedrc":
        numbers_sent[:] = 2 * 3  # for each model and class, up and down
    if name == "clove":
        models[1:], numbers_sent[1:] = 2, 2  # its first round assigns at random
    if name == "feddrift":
        numbers_sent[rounds["round"] % 2 == 1] = 1  # a step's first round, on the one model that there is
    curves = rounds["local_steps"] if name == "fedgwc" else 0  # the loss of each step
    surveyed, others, steps = (number * (rounds["round"] == 1) for number in asked(name, used))
    surveyed = surveyed + m * (name in TWO)
    owned, known = prototypes(name, used, rounds["round"])
    if name == "fedpac":  # also of the base that clients are given, with a variance; heads go up and mixed ones down
        owned, known = 2 * owned + m * (4 + 4 * HEADS[name]), known + 4 * HEADS[name]
        steps = sum(-(-n // 10) for n in SIZES)  # heads' own epoch
    known = known + 4 * numbers_sent if name == "fedrc" else known
    shown = m * ((name in SHOWN) & (rounds["round"] == 1))
    down = size * (m * models + surveyed + shown) - m * shared(name, used.layout.columns) + known * m
    np.testing.assert_array_equal(rounds["bytes_down"], down)
    updates = models if name in MIXED else models > 0
    up = size * (m * updates + surveyed) + 4 * (m * numbers_sent + curves + others) + owned
    np.testing.assert_array_equal(rounds["bytes_up"], up)
    forwards = sum(SIZES) * (np.ones_like(models) if name == "fedpac" else 2 * (models > 1))
    if name == "fedala":  # weights are learned on a part of the samples, the first time in passes until they settle
        forwards = sum(max(1, int(0.8 * n)) for n in SIZES) * np.ones_like(models)
        assert rounds["client_forwards"][0] >= 3 * forwards[0]
        forwards[0] = rounds["client_forwards"][0]
    if name == "feddrift":
        forwards = sum(SIZES) * (rounds["round"] % 2 == 1)
    if name in SHOWN:
        forwards = sum(SIZES) * (rounds["round"] == 1)
    np.testing.assert_array_equal(rounds["client_forwards"], forwards)
    trainings = 5 if name in FIVE else 1 + (name in (*SUMS, *OWN, *TWO, *MIXED))
    np.testing.assert_array_equal(rounds["local_steps"], trainings * sum(-(-n // 10) for n in SIZES) + steps)
    assert (rounds["excluded"] == 0).all()
    seconds = Record.table(record.timing)
    assert seconds["round"].tolist() == rounds["round"].tolist()
    assert (seconds["server_seconds"] >= 0).all() and (seconds["server_seconds"] <= seconds["seconds"]).all()


@pytest.mark.parametrize("name", slow_but(KINDS, METHODS))
def test_a_round_without_participants_changes_no_model(name):
    with engine_for(name, federation=uneven(SIZES), rounds=4, epochs=1) as used:
        method, context, first = start(name, used)
        method, thetas = sampling(method, lambda drawn, round_: drawn[:0] if round_ == 3 else drawn), []
        state, record = loop.run(
            method, context, used, first_round=first, save=lambda c: thetas.append(c.state.theta.clone())
        )
    rounds = Record.table(record.rounds)
    empty = rounds["round"].tolist().index(3)
    assert torch.equal(thetas[empty], thetas[empty - 1]) and not torch.equal(thetas[-1], thetas[empty])
    assert all(rounds[cost][empty] == 0 for cost in ("bytes_down", "bytes_up", "local_steps", "client_forwards"))
    assert (state.participations == 3).all()


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 5), marks=pytest.mark.slow)])
def test_planted_groups_are_found(name, seeds):
    found = []
    for seed in seeds:
        with engine_for(name, federation=uneven((40,) * 8, seed=seed), rounds=8, seed=seed) as used:
            state, _ = run(name, used)
        found.append(adjusted_rand_index(used.federation.true_cluster, state.labels))
    assert min(found) >= FOUND[name], found


def test_exceptions_name_methods():
    assert {*FOUND, *NOT_FEDAVG, *NOT_TWINS, *NOT_KEPT, *HEADS, *QUICK, *STARTED} <= set(METHODS)


@pytest.mark.parametrize("name", slow_but(KINDS, METHODS))
def test_newcomers_are_placed(name):
    """A newcomer of a planted group gets the model of its members; where clients keep theirs, or a part, none is."""
    data, others = uneven((40,) * 6, seed=1), uneven((12,) * 4, seed=1)
    with engine_for(name, federation=data, rounds=8, evaluations=["aggregated", "newcomer"], newcomers=others) as used:
        method, context, first = start(name, used)
        method = replace(method, **STARTED.get(name, {}))
        state, record = loop.run(method, context, used, first_round=first)
        labels, losses = newcomer_labels(used, method, state)
    history = Record.table(record.history)
    rows = history["evaluation"] == "newcomer"
    if name in (*ALONE, *HEADS):
        assert (labels == -1).all() and not rows.any()
        return
    assert losses.shape == (4, len(state.theta))
    assert set(history["split"][rows]) == {"test"} and (history["n"][rows] == 6).all()
    if name in FOUND:
        assert (labels == state.labels[:4]).all()  # uneven() deals groups in turn


@pytest.mark.parametrize("name", [n for n in METHODS if one_shot(n)])
def test_stale_models_come_from_the_warm_up(name):
    """A client's model of its previous participation is, in the first round of its cluster, the warm-up's."""
    with engine_for(name, federation=uneven(SIZES), rounds=2, epochs=1, evaluations=["local", "stale"]) as used:
        given = chain(used)
        _, record = loop.run(METHODS[name](), loop.context(used, **given), used, first_round=2)
    history = Record.table(record.history)
    first = (history["evaluation"] == "stale") & (history["round"] == 2)
    np.testing.assert_array_equal(history["loss"][first], given["warmup"].stale["test"].loss)
    assert (history["loss"][first] != history["loss"][(history["evaluation"] == "local")]).any()


SENT = ["nan", "infinity", "huge"]
LOST = {"dropout": 0.4, "stragglers": 0.4}
BAD = {"dropout": 0.2, "stragglers": 0.4, "straggled": "keep", "corrupt": [2, 5]}
NOT_AS_IF_UNDRAWN = {
    "clove": "its first round deals all participants out at random, before any loss is known",
    "stocfl": "those who send no sound update in rounds do so when they are first seen, and are in a cluster",
}


def faulty(name, faults, given=None, **settings):
    """Run a method with clients that misbehave; a one-shot method may go on from what is `given`."""
    settings = {"rounds": 3, "epochs": 2, "evaluations": scored(name, EVERYTHING[:3]), "diverged": "exclude"} | settings
    cut = {key: settings.pop(key) for key in ("chunk", "workers", "resume", "save", "undrawn") if key in settings}
    how, undrawn = {key: cut.pop(key) for key in ("resume", "save") if key in cut}, cut.pop("undrawn", None)
    with engine_for(name, federation=uneven(SIZES), faults=faults, **settings, **cut) as used:
        given = given or (chain(used) if one_shot(name) else {})
        method = METHODS[name](**options(name))
        if undrawn is not None:
            method = sampling(method, undrawn)
        context = loop.context(used, **given)
        return loop.run(method, context, used, first_round=2 if given else 1, **how), given


@pytest.mark.parametrize("name", slow_but(KINDS, METHODS))
def test_who_drops_out_or_straggles_is_as_if_never_drawn(name):
    (state, record), given = faulty(name, LOST)
    ids = np.arange(len(SIZES))

    def undrawn(drawn, round_):
        return attendance(Faults(**LOST), 2, 3, round_, drawn, ids).clients

    (other, without), _ = faulty(name, None, given, undrawn=undrawn)
    counts = [f"1.{n}" for n in ("bytes_down", "local_steps", "dropped", "straggled")]
    one, two = numbers(state, record), numbers(other, without)
    same(*({key: value for key, value in found.items() if key not in counts} for found in (one, two)))
    lost = len(SIZES) - one["2.participated"].reshape(-1, len(SIZES)).sum(axis=1)
    np.testing.assert_array_equal(one["1.dropped"] + one["1.straggled"], lost)
    assert lost.sum() and one["1.straggled"].sum() and one["1.dropped"].sum() and not one["1.excluded"].any()
    models = np.where(  # that each one received
        (one["1.client_forwards"] > 0) & (name not in (*LOOKING, *ONE)), 2, 0 if name in ALONE else 1
    )
    size = sent(name, state.theta.shape[1])
    twice = shared(name, state.theta.shape[1])
    known = PROTOTYPE * 3 * (one["1.round"] > 1) if "features" in METHODS[name].needs else 0
    np.testing.assert_array_equal(one["1.bytes_down"] - two["1.bytes_down"], lost * (models * size + known - twice))
    assert (one["1.local_steps"] > two["1.local_steps"])[one["1.straggled"] > 0].all()  # done for nothing
    assert (one["1.local_steps"] == two["1.local_steps"])[one["1.straggled"] == 0].all()


@pytest.mark.parametrize("name", slow_but(["fedavg", "cfl", "fesem", "pacfl"], METHODS))
def test_faults_are_free_of_chunks_and_workers_and_resumed(name, tmp_path):

    def keep(checkpoint):
        keeping(Unfinished(tmp_path / str(checkpoint.round), seconds=0))(checkpoint)

    run_, given = faulty(name, BAD, save=keep)
    whole = numbers(*run_)
    same(whole, numbers(*faulty(name, BAD, given, chunk=2, workers=2)[0]))
    same(whole, numbers(*faulty(name, BAD, given, resume=kept_in(tmp_path / "2", name))[0]))


@pytest.mark.parametrize(
    "name, sends",
    slow_but([(name, "nan") for name in KINDS], [(name, sends) for name in METHODS for sends in SENT]),
)
def test_what_bad_clients_send_is_in_no_number(name, sends):
    """Who sends no sound update or loss is excluded, counted, and, but where a method deals, as if never drawn."""
    bad = {"corrupt": [2, 5], "sends": sends}
    (state, record), given = faulty(name, bad)
    found = numbers(state, record)
    assert (found["1.excluded"] == 2).all() and not (found["1.dropped"] | found["1.straggled"]).any()
    assert np.isfinite(found["theta"]).all() and np.isfinite(found["0.loss"]).all()
    assert np.isfinite(found["0.correct"]).all() and (found["0.n"] > 0).all()
    for key in ("interaction", "models", "centroids"):  # what methods remember of clients
        assert np.isfinite(found.get(key, np.zeros(1))).all(), key
    if name not in NOT_AS_IF_UNDRAWN:
        (other, _), _ = faulty(name, None, given, undrawn=lambda drawn, round_: np.setdiff1d(drawn, [2, 5]))
        rest = np.setdiff1d(np.arange(len(SIZES)), [2, 5])
        rows = rest if name in ALONE else slice(None)
        np.testing.assert_array_equal(found["theta"][rows], np.asarray(other.theta[:])[rows])
        np.testing.assert_array_equal(found["labels"][rest], other.labels[rest])


@pytest.mark.parametrize("name", slow_but(KINDS, METHODS))
@pytest.mark.parametrize("bad", [{"dropout": 1.0}, {"corrupt": 1.0}])
def test_rounds_of_which_nothing_is_left_change_no_model(name, bad):
    thetas = []
    with engine_for(name, federation=uneven(SIZES), epochs=2) as used:  # as many as in `faulty`
        given = chain(used) if one_shot(name) else {}
        begun = METHODS[name](**options(name)).begin(loop.context(used, **given)).theta.numpy()
    (state, record), _ = faulty(name, bad, given, save=lambda c: thetas.append(c.state.theta.numpy().copy()))
    # FL+HC copies the one model that it begins with.
    assert thetas and all(np.array_equal(t, begun if len(t) == len(begun) else begun.repeat(len(t), 0)) for t in thetas)
    rounds = Record.table(record.rounds)
    if "dropout" in bad:
        assert (rounds["dropped"] == len(SIZES)).all() and (state.participations == one_shot(name)).all()
        size, first = sent(name, used.layout.columns), rounds["round"] == 1
        first &= name not in TWO  # it asks those who take part
        surveyed, others, steps = (number * first for number in asked(name, used))
        assert (rounds["bytes_up"] == size * surveyed + 4 * others).all() and (rounds["local_steps"] == steps).all()
        surveyed = surveyed + len(SIZES) * (first & (name in SHOWN))
        assert (rounds["bytes_down"] == size * surveyed + (0 if name in ALONE else len(SIZES) * size)).all()
    else:
        assert (rounds["excluded"] == len(SIZES)).all()


@pytest.mark.parametrize("name", slow_but(KINDS, METHODS))
def test_policies_stop_the_run_and_name_a_client(name):
    ids = np.arange(len(SIZES))
    first = 2 if one_shot(name) else 1
    with engine_for(name, federation=uneven(SIZES)) as used:
        given = chain(used) if one_shot(name) else {}
    for faults, word in (({"dropout": 0.4, "dropped": "stop"}, "dropped out"),
                         ({"stragglers": 0.4, "straggled": "stop"}, "straggled")):  # fmt: skip
        free = attendance(Faults(**faults | dict.fromkeys(["dropped", "straggled"], "exclude")), 2, 3, first, ids, ids)
        with pytest.raises(UserError, match=rf"round {first}: client {free.lost[0]} {word} .* set exclude"):
            faulty(name, faults, given)
    bad = np.flatnonzero(np.isnan(factors(Faults(corrupt=0.3), 3, ids)))
    assert len(bad) == 2
    with pytest.raises(Diverged, match=rf"client {bad[0]} .*NaN or infinite \(2 of 8 clients: .*diverged: exclude"):
        faulty(name, {"corrupt": 0.3}, given, diverged="stop")


KEPT = {
    "momentum": {"momentum": 0.9, "schedule": "round", "decay": 0.9, "decays_before": 1},
    "adam": {"optimizer": "adam", "learning_rate": 0.01},
}


# What clients keep is the engine's and the loop's; a method only decides from which model they start.
OPTIMISERS = [
    pytest.param(
        name,
        optimiser,
        marks=() if (name in ("fedavg", "cfl") and optimiser == "momentum") else pytest.mark.slow,
    )
    for name in METHODS
    if name not in NOT_KEPT
    for optimiser in KEPT
]


@pytest.mark.parametrize("name, optimiser", OPTIMISERS)
def test_optimisers_that_are_kept_are_free_of_chunks_and_workers_and_resumed(name, optimiser, tmp_path, monkeypatch):
    """With clients that misbehave and some who are absent; in memory and in files; they change the numbers."""

    def keep(checkpoint):
        keeping(Unfinished(tmp_path / str(checkpoint.round), seconds=0))(checkpoint)

    settings = KEPT[optimiser] | {"participation": 0.6}
    _, given = faulty(name, BAD, **settings, optimizer_state="kept")
    fresh = numbers(*faulty(name, BAD, given, **settings)[0])
    settings["optimizer_state"] = "kept"
    whole = numbers(*faulty(name, BAD, given, save=keep, **settings)[0])
    assert (whole["theta"] != fresh["theta"]).any() and not any(key.startswith("client_") for key in fresh)
    same(whole, numbers(*faulty(name, BAD, given, chunk=2, workers=2, **settings)[0]))
    same(whole, numbers(*faulty(name, BAD, given, resume=kept_in(tmp_path / "2", name), **settings)[0]))
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1)
    same(whole, numbers(*faulty(name, BAD, given, chunk=2, workers=2, **settings)[0]))
    same(whole, numbers(*faulty(name, BAD, given, resume=kept_in(tmp_path / "2", name), **settings)[0]))


@pytest.mark.parametrize("name", [n for n in METHODS if one_shot(n)])
@pytest.mark.parametrize("optimiser", KEPT)
@pytest.mark.parametrize("on_disk", [False, True])
def test_optimisers_go_on_from_the_warm_up(name, optimiser, on_disk, tmp_path, monkeypatch):
    """One cluster that goes on from the warm-up's model is FedAvg all through; by the file that the stages share."""
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1 if on_disk else 1 << 30)
    settings = KEPT[optimiser] | {"epochs": 1, "optimizer_state": "kept", "participation": 0.6}
    with engine_for(name, federation=uneven(SIZES), rounds=3, **settings) as short:
        warm = warm_up(short)
        write_tensors(tmp_path / "common.safetensors", arrays(warm.state))
    with engine_for(name, federation=uneven(SIZES), rounds=5, **settings) as used:
        given = {"clustering": np.zeros(len(SIZES), dtype=np.int64), "members": lambda: warm.theta}
        given["warmup"] = read_state(tmp_path / "common.safetensors")
        method = METHODS[name](start="common")
        continued, _ = loop.run(method, loop.context(used, **given), used, first_round=4)
        continued, whole = continued.arrays(), run("fedavg", used)[0].arrays()
    names = [key for key in whole if key.startswith("client_")]
    assert len(names) == (1 if optimiser == "momentum" else 3)
    for key in ["theta", "participations", *names]:
        np.testing.assert_array_equal(np.asarray(continued[key][:]), np.asarray(whole[key][:]), err_msg=key)
