"""The promise that no bit depends on how work is cut: chunks, workers, who else takes part, memory that runs out."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from federations import cnn, engine, images, mlp, norm_and_dropout, uneven
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_equality import OPTIONS, ROUND, Residual, agree, clients_of, trained
from torch import nn

from clusterfl.engine import products, work
from clusterfl.engine.products import SMALL
from clusterfl.errors import UserError

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid)


@st.composite
def cases(draw):
    """A chain of linear layers, clients, and settings, small and of any shape."""
    outputs = draw(st.integers(1, 5))
    widths = [draw(st.integers(1, 40)), *draw(st.lists(st.integers(1, 20), max_size=2)), outputs]
    activation, bias = draw(st.sampled_from(ACTIVATIONS)), draw(st.booleans())
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=7))
    options = {
        "batch_size": draw(st.one_of(st.integers(1, 12), st.just("full"))),
        "epochs": draw(st.integers(1, 4)),
        "learning_rate": 0.05,
    }
    options |= draw(
        st.sampled_from(
            [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"proximal": 0.5}, {"optimizer": "adam"},
             {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.5}]
        )
    )  # fmt: skip
    return widths, activation, bias, sizes, options, draw(st.integers(1, 2)), draw(st.integers(0, 9))


def parts_of(case):
    """Return factory, federation and settings of a case, and how many models clients start from."""
    widths, activation, bias, sizes, options, starts, seed = case
    layers = [part for a, b in zip(widths, widths[1:], strict=False) for part in (nn.Linear(a, b, bias), activation())]
    return nn.Sequential(*layers[:-1]), clients_of(sizes, widths[0], widths[-1], seed), options, starts


def everything(used, starts=2, clients=None):
    """Return all that training and scoring give, as numpy arrays by name; those in SHARED aren't one for each client"""
    clients = np.arange(used.federation.clients) if clients is None else np.asarray(clients)
    theta = torch.stack([used.initial(k) for k in range(starts)])
    kept, summed = (trained(used, needs, clients, starts) for needs in (("updates", "curves", "last_gradient"), ()))
    weights = np.linspace(0.3, 1.7, len(clients))
    weighted = used.train(theta, clients % starts, clients, ROUND, weights=weights, participations=clients)
    return {
        "updates": kept.rows[:].numpy(),
        "last_gradient": kept.last_gradient[:].numpy(),
        "curves": kept.curves,
        "norms": kept.norms,
        "losses": used.losses(theta, clients),
        "own losses": used.own_scores(theta, clients % starts, clients, "train").loss,
        "sums": summed.sums[:].numpy(),
        "weighted sums": weighted.sums[:].numpy(),
    }


SHARED = ("sums", "weighted sums")


def same(one, other, of=slice(None)):
    """Whether clients `of` a result have the bits of another result, and the sums, too, if they are everybody."""
    for name, values in other.items():
        if name in SHARED and of != slice(None):
            continue
        expected = one[name] if name in SHARED else one[name][of]
        if name == "curves":
            expected = expected[:, : values.shape[1]]
        np.testing.assert_array_equal(values.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8), name)


@given(cases())
@settings(max_examples=40, deadline=None)
def test_dense_of_any_shape(case):
    factory, federation, options, starts = parts_of(case)
    with engine(factory, federation, **options) as used:
        assert used.backend == "dense"
        agree(used, trained(used, starts=starts), least=0)


@given(cases(), st.data())
@settings(max_examples=40, deadline=None)
def test_no_bit_of_any_shape_depends_on_the_chunk(case, data):
    factory, federation, options, starts = parts_of(case)
    with engine(factory, federation, **options) as used:
        whole = everything(used, starts)
        some = sorted(data.draw(st.sets(st.integers(0, federation.clients - 1), min_size=1)))
        same(whole, everything(used, starts, some), some)
    for chunk in (1, 2, 3):
        with engine(factory, federation, chunk=chunk, **options) as used:
            same(whole, everything(used, starts))
