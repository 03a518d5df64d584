"""Tensors that all models have in common: a plain loop beside them, momentum, noise, what is sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from federations import engine, uneven

from clusterfl.engine.personal import Columns
from clusterfl.privacy.private import _add_noise
from clusterfl.privacy.settings import Privacy
from clusterfl.privacy.wrapper import wrap
from clusterfl.simulation import loop
from clusterfl.simulation.method import Method, State
from clusterfl.simulation.record import Record

SIZES = (30, 31, 25, 40, 36, 30, 1, 33)
FIRST = ("1.weight", "1.bias")


@dataclass(frozen=True, kw_only=True)
class Sharing(Method):
    """Three groups, the last one without anybody, whose models have some tensors in common."""

    names: tuple[str, ...] = FIRST

    def begin(self, context):
        theta = torch.stack([context.initial(k) for k in range(3)])
        columns = Columns.of(context.tensors, self.names)
        if len(columns):
            columns.put(theta, columns.taken(theta[0]))
        return State(theta, np.arange(context.clients) % 2)

    def common(self, context):
        return self.names


def run(method, used, **how):
    return loop.run(method, loop.context(used), used, **how)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("settings", [{}, {"server_momentum": 0.5}, {"server_learning_rate": 0.7, "divisor": "all"}])
def test_it_is_a_plain_loop(settings, on_disk, monkeypatch):
    """Common columns move by the mean over all, others by their group's, and where nobody is they stay."""
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1 if on_disk else 1 << 30)
    with engine(federation=uneven(SIZES), rounds=4, participation=0.5, epochs=1, **settings) as used:
        seen = []
        state, _ = run(
            Sharing(), used, needs=frozenset({"updates"}),
            observe=lambda r, s, u: seen.append((u.clients, u.rows[:].double())),
        )  # fmt: skip
        begun, context = Sharing().begin(loop.context(used)).theta.double(), loop.context(used)
        rate, momentum = settings.get("server_learning_rate", 1.0), settings.get("server_momentum", 0.0)
        here = np.concatenate([np.arange(used.layout.columns)[context.tensors[name]] for name in FIRST])
        velocity = torch.zeros_like(begun)
        for clients, rows in seen:
            n = torch.as_tensor(used.federation.splits["train"].sizes[clients]).double()
            everybody = (n[:, None] * rows).sum(0) / n.sum()
            velocity[:, here] = momentum * velocity[:, here] + everybody[here]
            begun[:, here] += rate * velocity[:, here]
            rest = np.setdiff1d(np.arange(begun.shape[1]), here)
            for k in np.unique(clients % 2):
                mine = torch.as_tensor(clients % 2 == k)
                own = (n[mine, None] * rows[mine]).sum(0) / (n.sum() if "divisor" in settings else n[mine].sum())
                velocity[k, rest] = momentum * velocity[k, rest] + own[rest]
                begun[k, rest] += rate * velocity[k, rest]
            begun = begun.float().double()
        torch.testing.assert_close(state.theta[:].double(), begun, rtol=1e-4, atol=1e-6)
        assert torch.equal(state.theta[0][here], state.theta[2][here])
        assert torch.equal(state.theta[2][rest], context.initial(2)[rest])


@pytest.mark.parametrize("divisor", ["ratio", "expected", "all", "participants"])
def test_all_columns_in_common_are_fedavg(divisor):
    """Whatever groups there are; `expected` and `ratio` divide by as many as take part."""
    settings = {"rounds": 3, "epochs": 1, "weights": "uniform"}
    with engine(federation=uneven(SIZES), **settings, divisor=divisor) as used:
        state, _ = run(Sharing(names=tuple(loop.context(used).tensors)), used)
        fedavg, _ = run(Method(), used)
    for k in range(3):
        torch.testing.assert_close(state.theta[k], fedavg.theta[0], rtol=1e-5, atol=1e-6)


def test_noise_of_what_is_common_is_one_sums():
    """Not that of K sums: its standard deviation is the scale, as of each model's own columns."""
    columns = Columns(np.array([[0, 20000]]))
    with engine() as used:
        context = loop.context(used)
        object.__setattr__(context, "parameter_columns", 40000)
    sums = torch.zeros(4, 40000, dtype=torch.float64)
    _add_noise(sums, range(4), 3.0, context, 1, None, columns)
    assert all(torch.equal(sums[k, :20000], sums[0, :20000]) for k in range(4))
    assert sums[0, :20000].std().item() == pytest.approx(3, rel=0.03)
    own = sums[:, 20000:]
    assert own.std().item() == pytest.approx(3, rel=0.03)
    assert np.abs(np.corrcoef(own) - np.eye(4)).max() < 0.03


def test_private_models_keep_it_in_common():
    privacy = Privacy(clip=0.1, noise_multiplier=1.0, delta=1e-3)
    with engine(federation=uneven(SIZES), rounds=3, epochs=1, weights="uniform", divisor="all") as used:
        method = wrap(Sharing(), "sharing", privacy=privacy)
        state, record = run(method, used)
        here = slice(0, loop.context(used).tensors["1.bias"].stop)
        plain, _ = run(Sharing(), used)
    assert torch.equal(state.theta[0][here], state.theta[2][here])
    assert not torch.equal(state.theta[0][here], plain.theta[0][here])
    assert np.isfinite(Record.table(record.rounds)["epsilon"]).all()
