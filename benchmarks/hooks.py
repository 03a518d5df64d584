"""What methods do beside FedAvg: a round with each hook of the engine, and what the server does with updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clusterfl.clustering.distances import update_cosine_distance
from clusterfl.clustering.linkage import hierarchical
from clusterfl.clustering.subspaces import principal_angles
from clusterfl.engine.engine import Engine
from clusterfl.engine.envelope import Envelope
from clusterfl.engine.features import Features, Head
from clusterfl.engine.lockstep import Lockstep
from clusterfl.engine.personal import Columns, Personal
from clusterfl.engine.training import Training
from clusterfl.methods.flux import moments

from . import plain_hooks as plain
from .loop import LoopProcess, shuffled
from .measure import in_turn, timed
from .works import Bench, Round, Row, Work, fedavg

HALF = 0.5  # two processes that do what the loop does


def _names(used: Engine) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the tensors of the last layer, and of all others."""
    assert isinstance(used.worker.head, Head)
    head = frozenset(used.worker.head.tensors)
    return head, frozenset(name for name, _ in used.layout.parameters) - head


def _own(used: Engine, names: frozenset[str] | None, *, sent: bool) -> Personal:
    """Return what each client keeps of tensors, or of all: the initial model's."""
    tensors = {name: part for name, _, part in used.layout.slices()}
    columns = Columns.of(tensors, tensors if names is None else names)
    return Personal(columns, columns.taken(used.initial(0)).expand(used.federation.clients, -1).clone(), sent)


Sides = Callable[[], Tensor]


def _kept(used: Engine) -> Sides:
    return partial(fedavg, used, used.initial(0), personal=_own(used, _names(used)[0], sent=False))


def _pulled(used: Engine) -> Sides:
    return partial(fedavg, used, used.initial(0), personal=_own(used, None, sent=True), towards="given")


def _summed(used: Engine) -> Sides:
    return partial(fedavg, used, used.initial(0))


def _shared(used: Engine) -> Sides:
    sizes, start = used.federation.splits["train"].sizes, used.initial(0)
    clients = np.repeat(np.arange(len(sizes)), plain.MODELS)
    target = np.tile(np.arange(plain.MODELS), len(sizes))
    weights = sizes[clients].astype(np.float64)
    shares = torch.full((int(sizes.sum()) * plain.MODELS,), 1 / plain.MODELS)

    def round_() -> Tensor:
        sums = used.train(start.expand(plain.MODELS, -1), target, clients, weights=weights, shares=shares).sums
        assert sums is not None
        return start + (sums[:].sum(0) / weights.sum()).float()

    return round_


def _centred(used: Engine) -> Sides:
    envelope = Envelope(1.0, plain.STEPS, used.training.learning_rate)
    return partial(fedavg, used, used.initial(0), personal=_own(used, None, sent=True), beside=envelope)


def _paired(used: Engine) -> Sides:
    mixed, second = _own(used, None, sent=True), _own(used, None, sent=True).rows
    beside = Lockstep(second, np.full(used.federation.clients, plain.SHARE), "never")
    return partial(fedavg, used, used.initial(0), personal=mixed, beside=beside)


def _featured(used: Engine) -> Sides:
    assert isinstance(used.worker.head, Head)
    features = Features(torch.zeros(used.federation.classes, used.worker.head.features), 1.0, "moving")
    return partial(fedavg, used, used.initial(0), needs=frozenset({"features"}), features=features)


def _turned(used: Engine) -> Sides:
    return partial(fedavg, used, used.initial(0), turns=_names(used))


def _given(used: Engine) -> Sides:
    clients, start = np.arange(used.federation.clients), used.initial(0)
    models, shares = start.repeat(len(clients), 1), torch.as_tensor(_shares(used))

    def round_() -> Tensor:
        update = used.train(models, clients, clients, needs=frozenset({"updates"}), free=_names(used)[1])
        assert update.rows is not None
        return start + (shares @ update.rows[:].double()).float()

    return round_


def _second(used: Engine) -> Sides:
    clients, start = np.arange(used.federation.clients), used.initial(0)
    models, weights = start.repeat(2, 1), _shares(used)
    apart = used.training.model_copy(update={"proximal": 0.0})

    def round_() -> Tensor:
        pulled = used.train(models, np.ones_like(clients), clients, weights=weights, towards=0)
        assert pulled.sums is not None
        return (start + pulled.sums[1].float() + fedavg(used, start, training=apart)) / 2

    return round_


def _described(used: Engine) -> Sides:
    assert isinstance(used.worker.head, Head)
    clients, classes, start = np.arange(used.federation.clients), used.federation.classes, used.initial(0)
    places = pairwise(used.federation.splits["train"].offsets.tolist())
    targets = [used.worker.data["train"].y[slice(*place)].numpy() for place in places]
    ways = plain.ways(used.worker.head.features)

    def asked() -> Tensor:
        every = zip(used.features(start, clients, "train"), targets, strict=True)
        return torch.as_tensor(np.stack([moments(z.numpy() @ ways, y, classes) for z, y in every]))

    return asked


def _shares(used: Engine) -> NDArray[np.float64]:
    """Return each client's share of all samples, [M]."""
    sizes = used.federation.splits["train"].sizes
    shares: NDArray[np.float64] = sizes / sizes.sum()
    return shares


@dataclass(frozen=True)
class Hook(Round):
    """A round with something besides, of both sides."""

    ours: Callable[[Engine], Sides] = _kept
    loops: Callable[..., object] = plain.kept

    group = "hooks"

    def training(self) -> Training:
        """See `Compared.training`."""
        pulls = self.loops in (plain.pulled, plain.given, plain.second)
        return super().training().model_copy(update={"proximal": plain.PULL if pulls else 0.0})

    def sides(self, used: Engine, loop: LoopProcess) -> tuple[Callable[[], object], Callable[[], float]]:
        """See `Compared.sides`."""
        return self.ours(used), partial(loop.timed, self.loops, self.local, shuffled)


@dataclass(frozen=True)
class Server(Work):
    """What the server does with what clients sent; `made` returns what both sides are given."""

    bar: float
    made: Callable[[], dict[str, Any]]
    ours: Callable[..., object]
    loops: Callable[..., object]

    group = "hooks"

    def run(self, bench: Bench) -> None:
        """See `Work.run`."""
        given = self.made()
        bench.loop.hold(torch.nn.Linear(1, 1), [], [])
        sides = partial(self.ours, **given), partial(self.loops, **given)
        found = in_turn(lambda: timed(sides[0]), partial(bench.loop.timed, sides[1]), bench.pairs)
        ratios = [mine / theirs for mine, theirs in found]
        seconds, loop_seconds = (median(side) for side in zip(*found, strict=True))
        bench.rows.append(
            Row(
                self.name, self.what, self.group, "s", seconds, loop_seconds, median(ratios), self.bar, "all",
                seconds, loop_seconds, min(ratios), max(ratios), len(ratios),
            )
        )  # fmt: skip


def _updates() -> dict[str, Any]:
    return {"rows": np.random.default_rng(0).normal(size=(100, 159_010)).astype(np.float32)}


def _samples() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"samples": [(rng.random((50, 784), dtype=np.float32), np.arange(50) % 5) for _ in range(100)], "vectors": 3}


def _distances() -> dict[str, Any]:
    places = np.random.default_rng(0).normal(size=(1_000, 8))
    return {"distance": np.linalg.norm(places[:, None] - places, axis=2), "threshold": 3.0}


def _cosines(rows: Any) -> object:
    return update_cosine_distance(rows)


NETWORKS = {"MLP 784-200-10": ("mlp", 200), "LCFL's CNN": ("lcfl-cnn", 16)}
ROUNDS: dict[str, tuple[str, Callable[[Engine], Sides], Callable[..., object], int]] = {
    "kept": ("the last layer is each client's own (FedPer)", _kept, plain.kept, 1),
    "pulled": ("each client's own model is pulled to the given one (FedSoft)", _pulled, plain.pulled, 1),
    "summed": ("outputs of two networks are added up (FedCAM)", _summed, plain.summed, 2),
    "shared": ("four models, each on shares of all samples' losses (FedEM)", _shared, plain.shared, 1),
    "centred": ("five steps on each mini-batch near a centre (pFedMe)", _centred, plain.centred, 1),
    "paired": ("a second model in lockstep, by gradients at a mix of both (APFL)", _paired, plain.paired, 1),
    "featured": ("features pulled to centres, and summed (FedProto)", _featured, plain.featured, 1),
    "turned": ("last layer first, then the others (FedPAC)", _turned, plain.turned, 1),
    "given": ("each has its own start, to which its last layer is pulled; all kept (FPFC)", _given, plain.given, 1),
    "second": ("a model pulled to a common one, which is trained, too (StoCFL)", _second, plain.second, 1),
}

HOOKS: list[Work] = [
    *(
        Hook(f"hook-{name}-{model}", f"one round, {what}, batch 20, 5 epochs, SGD, {clients} clients x 50 images: "
             f"{network}", 20, HALF, model, clients, clients, copies=copies, ours=ours, loops=loops)
        for name, (what, ours, loops, copies) in ROUNDS.items()
        for network, (model, clients) in NETWORKS.items()
    ),
    *(
        Hook(f"hook-described-{model}", f"moments of the features of {clients} clients x 50 images, by class (FLUX): "
             f"{network}", 10, HALF, model, clients, clients, ours=_described, loops=plain.described)
        for network, (model, clients) in NETWORKS.items()
    ),
    Server("hook-deltas", "cosine distance of 100 clients' updates of 159,010 numbers (FL+HC)", 10, 1.0, _updates,
           _cosines, plain.cosines),
    Server("hook-samples", "singular vectors of 100 clients' 50 images by class, and angles between them (PACFL)", 30,
           1.25, _samples, principal_angles, plain.angles),
    Server("hook-threshold", "average linkage of 1,000 clients, cut at a threshold", 10, 1.0, _distances,
           hierarchical, plain.agglomerated),
]  # fmt: skip
