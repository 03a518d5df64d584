"""`clusterfl test`: the package's own parts pass; a part that breaks one thing fails that check, and no other."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import ROOT
from federations import slow_but

from clusterfl.cli import main
from clusterfl.errors import UserError
from clusterfl.pipeline.contract.check import outcomes
from clusterfl.pipeline.contract.part import KINDS, checked, chosen, examine, kind_of

METHOD = """
from dataclasses import dataclass, field
from typing import Annotated, ClassVar
import numpy as np
from pydantic import Field
from clusterfl.methods.ifca import IFCA
from clusterfl.simulation.method import Assignment, Method
from clusterfl.simulation.state import State
from clusterfl.streams import generator

def two(context):
    return State(context.initial(0).repeat(2, 1), np.arange(context.clients) % 2)

@dataclass(frozen=True, kw_only=True)
class Mine(Method):
"""
METRIC = """
import numpy as np
from clusterfl.clustering.metric import computed_from

def plain(losses):
    half = np.abs(losses - np.diag(losses)[:, None])
    return half + half.T

@computed_from("losses")
def mine(losses):
"""
CLUSTERER = """
import numpy as np
from clusterfl.clustering.linkage import hierarchical

def mine(distance, k, seed):
"""
PARTITION = """
import numpy as np

def dealt(data, generator, clients=5):
    sample = np.concatenate([generator.permutation(rows) for rows in data.parts()])
    return {"sample": sample, "client": np.arange(len(sample)) % clients}

def mine(data, generator):
    table = dealt(data, generator)
"""
MODEL = """
import itertools
import math
import numpy as np
import torch
from torch import nn

counter = itertools.count()

class Net(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.first, self.last = nn.Linear(math.prod(shape), 4), nn.Linear(4, outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flatten(1))))

"""
DATASET = """
import numpy as np

def mine(folder):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 4
"""
STARTS = {"method": METHOD, "metric": METRIC, "clusterer": CLUSTERER, "partition": PARTITION, "model": MODEL,
          "dataset": DATASET}  # fmt: skip

# Kind, check, what is written behind the kind's start, and words of the sentence.
FAILS = [
    ("method", "has defaults that its options allow", "margin: Annotated[float, Field(gt=0)] = 0.0",
     ["option 'margin' has the default 0.0", "greater than 0", "change the default or the bounds"]),
    ("method", "gives labels of models that there are", """
        def begin(self, context):
            state = two(context)
            state.labels += 1
            return state
     """, ["begin gives label 2 to client 1 (4 of 8), of 2 models", "whole numbers 0 to 1", "count from 0"]),
    ("method", "gives labels of models that there are", """
        def assign(self, context, state, round_, clients, losses):
            return Assignment(np.full(len(clients), np.nan))
     """, ["assign, in round 1, gives labels of float64, e.g. nan", "convert them with astype"]),
    ("method", "gives labels of models that there are", """
        def regroup(self, context, state, update):
            state.labels[:] = -5
     """, ["regroup, in round 1, gives label -5 to client 0 (8 of 8)"]),
    ("method", "runs", """
        def weights(self, context, clients):
            return np.ones(len(clients)) / (1 // int(clients[0]))
     """, ["mine_method_", ".py, line 17: ZeroDivisionError: integer"]),
    ("method", "runs", """
        def regroup(self, context, state, update):
            update.rows[0]
     """, ["TypeError", "correct that line"]),
    ("method", "runs with some of the clients", """
        def assign(self, context, state, round_, clients, losses):
            return Assignment(state.labels[clients].reshape(8))
     """, ["ValueError: cannot reshape array of size 3"]),
    ("method", "draws nothing from global generators", """
        def weights(self, context, clients):
            return context.sizes[clients] * np.random.random()
     """, ["the global generator of numpy.random was drawn from", "clusterfl.streams"]),
    ("method", "changes no input", """
        def begin(self, context):
            context.sizes[2] = 1000
            return super().begin(context)
     """, ["context.sizes[2] is 25, then 1000", "change a copy"]),
    ("method", "leaves its options as they are", """
        seen: list[int] = field(default_factory=list)
        def begin(self, context):
            self.seen.append(1)
            return super().begin(context)
     """, ["option 'seen' was [] and is [1] after a run", "State.own"]),
    ("method", "gives the same numbers twice", """
        def begin(self, context):
            state = super().begin(context)
            state.theta += np.random.default_rng().normal()
            return state
     """, ["theta[0, 0] is ", "in two runs with the same seed", "run's seed"]),
    ("method", "gives the same numbers in other chunks and processes", """
        def begin(self, context):
            state = super().begin(context)
            state.theta += context.survey.engine.workers
            return state
     """, ["theta[0, 0] is ", "without and with chunk 2, workers 2"]),
    ("method", "gives the same numbers whatever the order of rows", """
        def begin(self, context):
            state = super().begin(context)
            state.theta += float(context.survey.engine.federation.splits["train"].pool.x[0, 0])
            return state
     """, ["theta[0, 0] is ", "clients alternating", "never the positions of samples"]),
    ("method", "resumes", """
        def weights(self, context, clients):
            object.__setattr__(self, "seen", vars(self).get("seen", 0) + 1)
            return context.sizes[clients] if self.seen % 2 else np.ones(len(clients))
     """, ["resumed after round 1", "no checkpoint has 'seen', which the method stores", "State.own"]),
    ("method", "is FedAvg with one cluster", """
        clusters: int
        def begin(self, context):
            return State(context.initial(0).repeat(self.clusters, 1), np.arange(context.clients) % self.clusters)
        def weights(self, context, clients):
            return np.ones(len(clients))
     """, ["theta[0, 0] is ", "with clusters: 1", "departs: ClassVar[str]"]),
    ("method", "settles where it says so", """
        settles: ClassVar[bool] = True
        def begin(self, context):
            return two(context)
        def assign(self, context, state, round_, clients, losses):
            return Assignment((clients + round_) % 2)
     """, ["client 0 went from model 1 to 0 in round 2, though settles is True"]),
    ("method", "changes nothing in a round without participants", """
        def merge(self, context, state, update, target, weights):
            super().merge(context, state, update, target, weights)
            state.theta *= 0.5
     """, ["before and after round 2, in which nobody took part", "`merge`"]),
    ("method", "changes nothing in a round without participants", """
        asks: ClassVar[str] = "how many samples each has"
        def regroup(self, context, state, update):
            context.survey.samples.reduced(lambda x, y: np.array([len(y)]))
     """, ["round 2, in which nobody took part, cost bytes_up 32"]),
    ("method", "places newcomers", """
        def place(self, state, losses):
            return np.ones(len(losses), dtype=np.int64)
     """, ["place gives label 1 to client 0 (4 of 4), of 1 models"]),
    ("method", "has its costs counted", "communicates: ClassVar[bool] = False",
     ["clients 0 and 1 share model 0, but communicates is False"]),
    ("method", "says what it asks clients for", """
        def assign(self, context, state, round_, clients, losses):
            return Assignment(losses().argmin(axis=1))
     """, ["asks for losses, but reveals is 'nothing'", "ClassVar[Reveals]"]),
    ("method", "says what it asks clients for", """
        def begin(self, context):
            context.survey.samples.reduced(lambda x, y: np.array([len(y)]))
            return super().begin(context)
     """, ["asks clients for samples (context.survey), but asks is ''"]),
    ("metric", "returns a distance of every two clients", "return plain(losses)[:, :2]",
     ["shape (7, 2) for 7 clients; allowed: (7, 7)"]),
    ("metric", "returns finite numbers from 0 on", "return -plain(losses)",
     ["the distance of clients 0 and 1 is -", "0 or more"]),
    ("metric", "has a zero diagonal", "return plain(losses) + 0.25 * np.eye(len(losses))",
     ["client 0 is at distance 0.25 from itself", "np.fill_diagonal"]),
    ("metric", "is symmetric", "return np.abs(losses - np.diag(losses)[:, None])",
     ["from client 0 to 1 it is ", "return d + d.T"]),
    ("metric", "draws nothing from global generators", """
        np.random.random()
        return plain(losses)
     """, ["the global generator of numpy.random"]),
    ("metric", "changes no input", """
        found = plain(losses)
        losses[-1, 0] = 7
        return found
     """, ["the input[6, 0] is ", "then 7.0", "change a copy"]),
    ("method", "runs with a client whose updates are excluded", """
        needs = frozenset({"updates"})
        def regroup(self, context, state, update):
            if len(update.clients) and not np.isfinite(np.asarray(update.rows[:])).all():
                raise ValueError("input contains NaN")
     """, ["ValueError: input contains NaN; correct that line"]),
    ("method", "runs with a client whose updates are excluded", """
        needs = frozenset({"updates"})
        def merge(self, context, state, update, target, weights):
            if len(update.clients):
                state.theta += update.rows[:].mean(axis=0)
     """, ["where client 2 sends NaN, round 1: model 0 became NaN or infinite", "leave out the clients"]),
    ("metric", "gives the same numbers twice", "return plain(losses) * np.random.default_rng().uniform(1, 2)",
     ["distance[0, 1] is ", "in two calls"]),
    ("metric", "gives the same distances in any order of clients", """
        place = np.arange(len(losses))
        return plain(losses) * (1 + place + place[:, None])
     """, ["if clients are in the order", "not on their positions"]),
    ("metric", "takes one client", """
        found = plain(losses)
        return found + 0 * found[0, 1]
     """, ["mine_", "IndexError: index 1 is out of bounds"]),
    ("metric", "puts equal clients together", "return plain(losses) + 1 - np.eye(len(losses))",
     ["two clients with equal losses are 1.0 apart; allowed: 0"]),
    ("clusterer", "returns a label for each client", "return hierarchical(distance, k) / 1.0",
     ["float64 of shape (24,) for 24 clients"]),
    ("clusterer", "counts labels from 0", """
        labels = hierarchical(distance, k)
        return np.where(labels == 3, -1, labels)
     """, ["client 3 has label -1 (6 clients have negative ones)", "as `dbscan` does"]),
    ("clusterer", "puts all together for k = 1", "return hierarchical(distance, max(k, 2))",
     ["with k=1 it makes 2 clusters"]),
    ("clusterer", "draws nothing from global generators", """
        np.random.seed(seed)
        return hierarchical(distance, k)
     """, ["numpy.random was drawn from or seeded"]),
    ("clusterer", "changes no input", """
        labels = hierarchical(distance, k)
        distance[0, -1] = 0
        return labels
     """, ["distance[0, 23] is ", "then 0.0"]),
    ("clusterer", "gives the same labels twice", """
        return np.random.default_rng().permutation(hierarchical(distance, k))
     """, ["labels[", "in two calls with seed=0"]),
    ("clusterer", "settles ties", """
        labels = hierarchical(distance, k)
        tied = len(labels) == 6
        return np.random.default_rng().integers(0, 1 << 40, 6) if tied else labels
     """, ["if all distances are 1", "by the order of clients"]),
    ("clusterer", "gives the same clusters in any order of clients", "return np.arange(len(distance)) % k",
     ["if clients are in the order", "not on the clients' order"]),
    ("partition", "returns columns", """
        del table["client"]
        return table
     """, ["the columns ['sample']", "'client' among them"]),
    ("partition", "returns columns", """
        table["true_cluster"] = np.zeros(3, dtype=int)
        return table
     """, ["'true_cluster' has shape (3,), 'sample' (895,)"]),
    ("partition", "gives out samples that are there", """
        table["sample"] += 1
        return table
     """, ["gets sample 895; allowed: 0 to 894"]),
    ("partition", "gives a client no sample twice", """
        return {name: np.append(column, column[0]) for name, column in table.items()}
     """, ["client 0 gets sample ", "twice (1 such cases)"]),
    ("partition", "numbers clients and lets each train", """
        table["client"] *= 2
        return table
     """, ["there is no client 1 of 0 to 8"]),
    ("partition", "numbers clients and lets each train", """
        table["client"][np.isin(table["sample"], data.test[:9])] = 5
        return table
     """, ["client 5 (1 of 6) has no training sample"]),
    ("partition", "keeps test samples from training", """
        return table | {"split": np.full(len(table["sample"]), "train")}
     """, ["of data.test (250 such cases)"]),
    ("partition", "has one true cluster for each client", """
        return table | {"true_cluster": table["sample"] % 2}
     """, ["client 0 has true_cluster 0 and 1"]),
    ("partition", "draws nothing from global generators", """
        np.random.shuffle(table["client"])
        return table
     """, ["the global generator of numpy.random"]),
    ("partition", "changes no input", """
        data.y[0] = 77
        return table
     """, ["y[0] is ", "then 77"]),
    ("partition", "gives the same table for a seed", """
        return dealt(data, np.random.default_rng())
     """, ["sample[0] is ", "with two equal generators"]),
    ("partition", "is taken by the stage", """
        return table | {"transform": np.full(len(table["sample"]), "twisted")}
     """, ["twisted"]),
    ("model", "takes samples", "def mine(sample_shape, outputs):\n    raise ValueError('never')",
     ["takes none of 10 kinds of samples", "ValueError: never"]),
    ("model", "returns as many numbers as asked for",
     "def mine(sample_shape, outputs):\n    return Net(sample_shape, outputs + 1)",
     ["returns shape (5, 4); allowed: (5, 3)"]),
    ("model", "keeps the order of its parameters",
     "def mine(sample_shape, outputs):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))",
     ["the model's '1.weight' has no shape before it sees data"]),
    ("model", "keeps the order of its parameters",
     "def mine(sample_shape, outputs):\n    return Net(sample_shape, outputs).requires_grad_(False)",
     ["no parameter that can be trained: all 4 have requires_grad False"]),
    ("model", "keeps the order of its parameters", """
def mine(sample_shape, outputs):
    net = Net(sample_shape, outputs)
    if next(counter) % 2:
        net.first, first = None, net.first
        del net.first
        net.first = first
    return net
     """, ["two modules have ('first.weight'", "then ('last.weight'", "in a fixed order"]),
    ("model", "has the same initial values from one stream", """
def mine(sample_shape, outputs):
    net = Net(sample_shape, outputs)
    net.last.bias.data += float(np.random.default_rng().normal())
    return net
     """, ["last.bias[0] is ", "draw with torch"]),
    ("model", "changes no input", """
class Halves(Net):
    def forward(self, x):
        with torch.no_grad():
            y = x.clone()
            x.copy_(x * 0.5)
        return super().forward(y)

def mine(sample_shape, outputs):
    return Halves(sample_shape, outputs)
     """, ["samples[0, 0] is ", "change a copy"]),
    ("model", "gives each sample its own output", """
class Centres(Net):
    def forward(self, x):
        return super().forward(x - x.mean(0))

def mine(sample_shape, outputs):
    return Centres(sample_shape, outputs)
     """, ["sample 0 gives outputs that differ by", "never over the batch"]),
    ("model", "is trained by the engine", """
class Cut(Net):
    def forward(self, x):
        return super().forward(x).detach()

def mine(sample_shape, outputs):
    return Cut(sample_shape, outputs)
     """, ["the model Cut returns torch.float32 without a gradient", "look for argmax, detach"]),
    ("model", "is trained by the engine", """
def mine(sample_shape, outputs):
    net = Net(sample_shape, outputs)
    net.register_buffer("features", torch.rand(1), persistent=False)
    return net
     """, ["buffer 'features' has other values each time the model is made"]),
    ("model", "is trained with the same bits in other chunks", """
class Noisy(Net):
    def forward(self, x):
        factor = float(np.random.default_rng().uniform(1, 2)) if self.training else 1.0
        return super().forward(x * factor)

def mine(sample_shape, outputs):
    return Noisy(sample_shape, outputs)
     """, ["updates[", "trained together and one by one"]),
    ("dataset", "returns x and y", "return x, y[1:]", ["x and y need equally many rows", "(20, 3)", "(19,)"]),
    ("dataset", "returns x and y", "return x[:0], y[:0]", ["it returns no sample"]),
    ("dataset", "returns finite numbers", """
        x[7, 1] = np.nan
        return x, y
     """, ["x has NaN or infinity in row 7 (1 row in all)"]),
    ("dataset", "counts classes from 0", "return x, y - 1", ["sample 0 has class -1; allowed: 0, 1, 2"]),
    ("dataset", "draws nothing from global generators", """
        np.random.shuffle(y)
        return x, y
     """, ["the global generator of numpy.random"]),
    ("dataset", "gives the same samples twice", "return x + np.float32(np.random.default_rng().normal()), y",
     ["x[0, 0] is ", "in two calls"]),
]  # fmt: skip

# What may be meant so: a note, and nothing fails.
NOTES = [
    ("method", "imports no torch at its top", "...\n>import torch",
     ["imports torch", "inside the functions that use it"]),
    ("method", "has no names that are nearly hooks'", """
        def sampel(self, context, state, round_):
            return np.zeros(1, dtype=np.int64)
     """, ["'sampel' isn't called as a hook; if 'sample' is meant", "may begin with _"]),
    ("method", "is FedAvg with one cluster", """
        clusters: int
        departs: ClassVar[str] = "weighs clients equally"
        def begin(self, context):
            return State(context.initial(0).repeat(self.clusters, 1), np.arange(context.clients) % self.clusters)
        def weights(self, context, clients):
            return np.ones(len(clients))
     """, ["it states that it weighs clients equally"]),
    ("method", "leaves the labels of absent clients alone", """
        def begin(self, context):
            return two(context)
        def regroup(self, context, state, update):
            state.labels = 1 - state.labels
     """, ["in round 2 client ", "without taking part"]),
    ("method", "places newcomers", """
        def keeps(self, context):
            return list(context.tensors)[-1:]
     """, ["no model for clients that never trained"]),
    ("clusterer", "counts labels from 0", "return 2 * hierarchical(distance, k)", ["no client has label 1 of 0 to 6"]),
    ("clusterer", "finds as many clusters as there are", "return hierarchical(distance, k - (k == 4))",
     ["and k=4 it makes 3"]),
    ("clusterer", "puts all apart for k = M", "return hierarchical(distance, min(k, 10))", ["with k=24", "makes 10"]),
    ("partition", "gives a client no sample twice", """
        other = {"sample": table["sample"], "client": (table["client"] + 1) % 5}
        return {name: np.append(column, other[name]) for name, column in table.items()}
     """, ["895 samples have several clients each, sample 0 has 2"]),
    ("partition", "gives out every sample", "return {name: column[:-5] for name, column in table.items()}",
     ["5 of 895 samples aren't assigned"]),
    ("partition", "gives another table for another seed", "return dealt(data, np.random.default_rng(3))",
     ["two seeds give the same table"]),
    ("partition", "gives as many samples in any order of rows", """
        table["client"] = np.where(np.isin(table["sample"], np.flatnonzero(data.y == 3)[:9]), 0, table["sample"] % 5)
        return table
     """, ["file order and reversed"]),
    ("model", "has other initial values from another stream", """
def mine(sample_shape, outputs):
    torch.manual_seed(0)
    return Net(sample_shape, outputs)
     """, ["two streams give equal initial values"]),
    ("model", "has a last layer", """
def mine(sample_shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), outputs))
     """, ["fedper, fedproto and fedpac can't use it"]),
    ("model", "is trained by the engine", """
def mine(sample_shape, outputs):
    net = Net(sample_shape, outputs)
    net.register_buffer("seen", torch.zeros(1))
    return net
     """, ["one after another, which is slower: its buffer 'seen'"]),
    ("model", "is trained by the engine", """
def mine(sample_shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), 4), nn.BatchNorm1d(4), nn.Linear(4, outputs))
     """, ["client 1 has a batch of one sample, which batch normalisation can't train on"]),
    ("dataset", "returns samples of a kind that is stored", "return x.astype(np.float64), y", ["x holds float64"]),
    ("dataset", "counts classes from 0", "return x, y + (y == 3)", ["no sample has class 3 of 0 to 4"]),
]  # fmt: skip


def written(folder: Path, kind: str, text: str, number: str) -> str:
    """Write a module with a part of a kind; return the part's name. What begins with > stands outside of it."""
    module = f"mine_{kind}_{number}"
    if kind != "model":
        lines = textwrap.dedent(text).strip().splitlines()
        text = "\n".join(line[1:] if line.startswith(">") else "    " + line for line in lines)
    (folder / f"{module}.py").write_text(STARTS[kind] + text + "\n", encoding="utf-8")
    return f"{module}:{'Mine' if kind == 'method' else 'mine'}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def needed(kind: str, name: str) -> list:
    """The checks that one needs, in order, and it."""
    by_name = {check.name: check for check in KINDS[kind].checks}
    found, waiting = {name}, [name]
    while waiting:
        new = set(by_name[waiting.pop()].needs) - found
        found |= new
        waiting += new
    return [check for check in KINDS[kind].checks if check.name in found]


def found_by(checks, kind, part):
    options = checked(kind, part, chosen(kind, part, {}))
    path = sys.path[0] + "/" + part.partition(":")[0] + ".py"
    return {one.check: one for one in outcomes(checks, KINDS[kind].case(part, options), path)}


def cases(rows):
    return [pytest.param(*row, id=f"{row[0]} {row[1]} {i}") for i, row in enumerate(rows)]


@pytest.mark.parametrize("kind, check, text, words", cases(FAILS))
def test_what_breaks_one_thing_fails_that_check(kind, check, text, words, folder, request):
    part = written(folder, kind, text, str(abs(hash(request.node.name))))
    assert kind_of(part) == kind
    found = found_by(needed(kind, check), kind, part)
    assert [one.check for one in found.values() if one.verdict == "FAIL"] == [check], found
    for word in words:
        assert word in found[check].sentence


@pytest.mark.slow
@pytest.mark.parametrize("kind, check, text, words", cases(FAILS))
def test_and_no_other(kind, check, text, words, folder, request):
    part = written(folder, kind, text, str(abs(hash(request.node.name))))
    verdicts = examine(part)
    assert [one.check for one in verdicts.outcomes if one.verdict == "FAIL"] == [check], verdicts.outcomes
    assert not verdicts.sound


@pytest.mark.parametrize("kind, check, text, words", cases(NOTES))
def test_what_may_be_meant_so_is_noted(kind, check, text, words, folder, request):
    part = written(folder, kind, text, str(abs(hash(request.node.name))))
    found = found_by(needed(kind, check), kind, part)
    assert {one.verdict for one in found.values()} <= {"ok", "note"}, found
    assert found[check].verdict == "note"
    for word in words:
        assert word in found[check].sentence


def test_every_check_has_a_part_that_does_not_hold_it():
    seen = {(row[0], row[1]) for row in FAILS + NOTES}
    assert seen == {(kind, check.name) for kind, row in KINDS.items() for check in row.checks}


def test_every_check_says_what_holds_and_needs_checks_before_it():
    for row in KINDS.values():
        names = [check.name for check in row.checks]
        assert len(set(names)) == len(names)
        for i, check in enumerate(row.checks):
            assert check.look.__doc__.startswith("Hold that ") and check.holds[0].isupper()
            assert set(check.needs) <= set(names[:i])


# Options with which the package's own parts are tried, where they need some or smaller ones.
OPTIONS = {
    "fedala": {"window": 2, "spread": 1.0},
    "mixture": {"clients": [5, 0, 15]},
    "label-skew": {"sets": "pairs", "clients_per_cluster": 2},
    "label-skew-released": {"sets": "pairs", "clients_per_cluster": 2},
    "concept-shift": {"train_per_class": 12, "test_per_class": 5, "clients_per_cluster": 3},
    "consecutive-classes": {"clients": 30},
}
QUICK = {
    "method": ["ifca"],
    "metric": [*KINDS["metric"].table.table],
    "clusterer": ["hierarchical"],
    "partition": [*KINDS["partition"].table.table],
    "model": ["linear", "mlp"],
    "dataset": ["linear"],
}
OWN = [(kind, name) for kind, row in KINDS.items() for name in row.table.table if kind != "dataset"]
OWN += [("dataset", "linear"), ("dataset", "digits")]  # the others' files are elsewhere


@pytest.mark.parametrize("kind, name", slow_but([(kind, name) for kind, names in QUICK.items() for name in names], OWN))
def test_the_packages_own_parts_pass(kind, name, folder):
    if name == "kmedoids":
        pytest.importorskip("sklearn_extra.cluster")
    verdicts = examine(name, kind, OPTIONS.get(name))
    assert verdicts.sound, verdicts.outcomes
    assert len(verdicts.outcomes) == len(KINDS[kind].checks)
    waits = [one for one in verdicts.outcomes if one.verdict == "skip" and "has to hold first" in one.sentence]
    assert not waits


@pytest.mark.slow
def test_the_readmes_own_parts_pass(folder):
    """None has even a note: the file's model imports torch where it is used."""
    text = re.search(
        r"<!-- snippet: mine.py -->\n```\w+\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.DOTALL
    )[1]
    (folder / "mine.py").write_text(text, encoding="utf-8")
    for name in ("Sticky", "wide", "squared"):
        verdicts = examine(f"mine:{name}")
        assert verdicts.sound and not [one.check for one in verdicts.outcomes if one.verdict == "note"]


def test_a_line_for_each_check_counts_and_the_exit_code(folder, capsys):
    text = "return plain(losses) + 1 - np.eye(len(losses))"
    part = written(folder, "metric", text, "shown")
    assert main(["test", part]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == len(KINDS["metric"].checks)
    assert "ok   is symmetric" in lines
    assert lines[-1].startswith("FAIL puts equal clients together: two clients with equal losses are 1.0 apart")
    assert last == f"{part}, a metric: 9 ok, 0 noted, 0 skipped, 1 failed"
    assert main(["test", "loss"]) == 0
    assert capsys.readouterr().out.endswith("loss, a metric: 10 ok, 0 noted, 0 skipped, 0 failed\n")


def test_json_and_options(folder, capsys):
    assert main(["test", "hierarchical", "--option", "linkage=single", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["part"] == "hierarchical" and found["kind"] == "clusterer" and found["sound"] is True
    assert found["options"] == {"linkage": "single"} and found["counts"]["ok"] == 10
    assert found["checks"][0]["holds"] == "It returns a whole number for each client."
    assert {one["verdict"] for one in found["checks"]} == {"ok"}


@pytest.mark.parametrize(
    "hook, says",
    [
        (
            "def begin(self, context):\n        pass",
            ["method 'Mine': begin gives None; allowed: a State"],
        ),
        (
            "def sample(self, context, state, round_):\n        pass",
            ["method 'Mine': sample, in round 1, gives None; allowed: an array"],
        ),
        (
            "def weights(self, context, clients):\n        return len(clients)",
            ["method 'Mine': weights, in round 1, gives a value of the type int; allowed: an array"],
        ),
        (
            "def beside(self, context, state):\n        return 3",
            ["Mine.beside, the last hook of ", " called, returned a value of the type int, and the run failed: ",
             "AttributeError", "it has to return what participants train in addition to what they send"],
        ),
        (
            "def assign(self, context, state, clients):\n        pass",
            ["Mine.assign can't be called as in a run: TypeError", "it has to take self, context, state, round_, "],
        ),
    ],
)  # fmt: skip
def test_an_error_outside_the_users_file_names_the_hook(hook, says, folder, monkeypatch):
    """What stands in the package's files isn't the user's to mend."""
    name = f"blamed_{hook.partition('(')[0].removeprefix('def ')}"
    base = "@dataclass(frozen=True, kw_only=True)\nclass Mine(IFCA):\n    "
    text = METHOD.partition("@dataclass")[0] + base + hook + "\n"
    (folder / f"{name}.py").write_text(text)
    failed = [one for one in examine(f"{name}:Mine").outcomes if one.verdict == "FAIL"]
    assert [one.check for one in failed] == ["runs"]
    for words in says:
        assert words in failed[0].sentence
    assert "correct that line" not in failed[0].sentence


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["ifcb"], ["there is no part 'ifcb'; did you mean 'ifca'?", "my_module:name"]),
        (["linear"], ["'linear' is a model and a dataset; say which: --kind model or dataset"]),
        (["mine_other:plain"], ["takes a, b, which doesn't show its kind", "--kind method, metric, clusterer"]),
        (["mine_other:number"], ["'mine_other:number' is int; a part is a function or a class"]),
        (["mine_other:plain", "--kind", "metric"], ["doesn't say what it is computed from"]),
        (["mine_other:plain", "--kind", "method"], ["a method is a frozen dataclass derived from"]),
        (["mine_nowhere:Sticky"], ["no module 'mine_nowhere'"]),
        (["mine_other:needs"], ["mine_other:needs.power: missing; it is an exponent; give an option as --option"]),
        (["mine_other:named"], ["named has an option 'model', which no study can set", "give the option another name"]),
        (["ifca", "--option", "clusers=2"], ["ifca.clusers: unknown key", "did you mean 'clusters'?"]),
        (["ifca", "--option", "clusters=0"], ["ifca.clusters: found 0"]),
    ],
)
def test_what_cannot_be_tested_is_refused(arguments, says, folder, capsys):
    (folder / "mine_other.py").write_text("""
from typing import Annotated
from pydantic import Field
from clusterfl.clustering.metric import computed_from

number = 3

def named(sample_shape, outputs, *, model=3):
    return None

def plain(a, b):
    return a

@computed_from("losses")
def needs(losses, *, power: Annotated[float, Field(description="an exponent")]):
    return losses ** power
""")
    assert main(["test", *arguments]) == 2
    said = capsys.readouterr()
    assert not said.out
    for words in says:
        assert words in said.err


def test_an_unknown_kind_of_the_tables_names_them():
    with pytest.raises(UserError, match="say which: --kind"):
        kind_of("linear")
