"""Sums of networks, and tensors that are trained in turns: by hand, as plain trainings one after another, refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import OPTIONS, Residual, cnn, engine, images, mlp, norm_and_dropout, slow_but, uneven
from torch import nn

from clusterfl.engine.modules import Sum, summed
from clusterfl.errors import UserError

SIZES = (30, 31, 25, 1, 33)
FORMS = {
    "dense": (mlp, lambda: uneven(SIZES), (("3.weight", "3.bias"), ("1.weight", "1.bias"))),
    "dense, first layer": (mlp, lambda: uneven(SIZES), (("1.weight",), ("1.bias", "3.weight", "3.bias"))),
    "dense, of a sum": (
        lambda: Sum([mlp(), mlp()]),
        lambda: uneven(SIZES),
        (("0.1.weight", "0.1.bias", "0.3.weight", "0.3.bias"), ("1.1.weight", "1.1.bias", "1.3.weight", "1.3.bias")),
    ),
    "stacked": (Residual, lambda: uneven(SIZES), (("last.weight",), ("first.weight", "second.weight"))),
    "loop": (cnn, images, (("4.weight", "4.bias"), ("0.weight",))),
    "batch normalisation": (norm_and_dropout, images, (("1.weight", "1.bias"), ("5.weight", "0.weight"))),
}
QUICK = {"dense": "plain", "stacked": "adam, proximal, decay", "loop": "all", "batch normalisation": "momentum"}


def turns(named):
    return tuple(frozenset(names) for names in named)


def everybody(used, **options):
    """Let all clients train their initial model."""
    ids = np.arange(used.federation.clients)
    given = {"needs": frozenset({"updates", "curves"}), "score": ["test"]} | options
    return used.train(used.initial()[None], np.zeros_like(ids), ids, **given)


class Writing(nn.Module):
    """Writes into its inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)
        self.weight_decays = {"layer.weight": 0.5}

    def forward(self, x):
        return self.layer(x.relu_())


def test_a_sum_by_hand():
    """(1, 2) and (3, 5) on relu(1, -1) = (1, 0): 1 + 3; the inputs stay what they were."""
    module = Sum([Writing(), Writing()])
    for part, values in zip(module.children(), ([1.0, 2.0], [3.0, 5.0]), strict=True):
        part.layer.weight.data = torch.tensor([values])
    x = torch.tensor([[1.0, -1.0]])
    assert module(x).item() == 4 and x.tolist() == [[1.0, -1.0]]
    assert module.weight_decays == {"0.layer.weight": 0.5, "1.layer.weight": 0.5}
    assert [name for name, _ in module.named_parameters()] == ["0.layer.weight", "1.layer.weight"]
    assert summed(mlp, 1) is mlp


def test_a_models_networks_are_drawn_one_after_another():
    with engine(copies=2) as used, engine() as one:
        half = one.layout.columns
        assert used.layout.columns == 2 * half
        assert torch.equal(used.initial()[:half], one.initial())
        assert not torch.equal(used.initial()[half:], one.initial())


@pytest.mark.parametrize("factory, data", [(mlp, uneven), (cnn, images)])
def test_a_network_beside_zeros_trains_as_if_alone(factory, data):
    """Where the other's outputs are and stay zeros, for it isn't trained."""
    with engine(factory, data(), copies=2) as used, engine(factory, data(), backend="loop") as one:
        half = one.layout.columns
        row = used.initial()
        row[half:] = 0
        names = frozenset(name for name, _ in used.layout.parameters if name.startswith("1."))
        ids = np.arange(used.federation.clients)
        needs = {"needs": frozenset({"updates"})}
        both = used.train(row[None], np.zeros_like(ids), ids, fixed=names, **needs)
        alone = one.train(row[None, :half], np.zeros_like(ids), ids, **needs)
    torch.testing.assert_close(both.rows[:, :half], alone.rows[:], rtol=1e-4, atol=1e-5)
    assert not both.rows[:, half:].any()


@pytest.mark.parametrize(
    "form, options", slow_but(QUICK.items(), [(f, o) for f in FORMS for o in ("all", *dict.fromkeys(QUICK.values()))])
)
def test_turns_are_trainings_one_after_another(form, options):
    """Each client alone, from where its turn before ended, all but the turn's tensors fixed; to the bit."""
    factory, federation, named = FORMS[form]
    with engine(factory, federation(), **OPTIONS[options] | {"epochs": 2}) as used:
        found = everybody(used, turns=turns(named))
        names = {name for name, _ in used.layout.parameters}
        for i in range(used.federation.clients):
            row, curve = used.initial(), []
            for own in named:
                apart = used.train(
                    row[None], np.array([0]), np.array([i]), needs=frozenset({"updates", "curves"}),
                    score=["test"], fixed=frozenset(names - set(own)),
                )  # fmt: skip
                row = row + apart.rows[0]
                curve += apart.curves[0].tolist()
            torch.testing.assert_close(used.initial() + found.rows[i], row, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(found.curves[i, : len(curve)], curve, rtol=1e-5)
            assert found.steps[i] == len(curve) and np.isnan(found.curves[i, len(curve) :]).all()
            assert found.local["test"].correct[i] == apart.local["test"].correct[0]
        still = names - {name for own in named for name in own}
        for name, _, part in used.layout.slices():
            assert name not in still or not found.rows[:, part].any(), name
            assert name in still or found.rows[:, part].any() or "batches" in name, name


@pytest.mark.parametrize("form", FORMS)
def test_one_turn_of_all_tensors_is_none(form):
    factory, federation, _ = FORMS[form]
    with engine(factory, federation(), epochs=1) as used:
        whole = turns([[name for name, _ in used.layout.parameters]])
        one, two = everybody(used), everybody(used, turns=whole)
    assert torch.equal(one.rows[:], two.rows[:])
    np.testing.assert_array_equal(one.curves, two.curves)
    np.testing.assert_array_equal(one.steps, two.steps)


@pytest.mark.parametrize("form", ["dense", "stacked", "loop"])
def test_what_is_fixed_stays_in_every_turn(form):
    """As if no turn had named it."""
    factory, federation, named = FORMS[form]
    fixed = frozenset([named[-1][-1]])
    with engine(factory, federation(), epochs=1) as used:
        found = everybody(used, turns=turns(named), fixed=fixed).rows[:]
        without = everybody(used, turns=turns([[name for name in own if name not in fixed] for own in named])).rows[:]
        here = {name: part for name, _, part in used.layout.slices()}[named[-1][-1]]
    assert not found[:, here].any() and found.any(dim=1).all()
    assert torch.equal(found, without)


def test_turns_are_free_of_chunks_and_workers():
    found = []
    for cut in ({}, {"chunk": 1}, {"chunk": 3, "workers": 2}):
        with engine(mlp, uneven(SIZES), copies=2, **cut) as used:
            halves = [[n for n, _ in used.layout.parameters if n.startswith(half)] for half in ("0.", "1.")]
            found.append(everybody(used, turns=turns(halves)).rows[:])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    "settings, given",
    [
        ({"average": "gradients", "batch_size": "full", "steps": 1}, {}),
        ({}, {"needs": frozenset({"last_gradient"})}),
        ({"momentum": 0.9, "optimizer_state": "kept"}, {"kept": {"client_velocity": torch.zeros(6, 75)}}),
    ],
)
def test_what_turns_do_not_have_is_refused(settings, given):
    with engine(**settings) as used, pytest.raises(UserError, match=r"with turns: optimizer_state: fresh"):
        everybody(used, turns=turns([["1.weight"]]), **given)
