"""The same numbers on a GPU, up to rounding; and no step waits for it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from federations import cnn, engine, images, mlp, uneven
from waits import warned

from clusterfl.engine.worker import Worker

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
FORMS = [
    pytest.param(mlp, uneven, "dense", id="mlp-dense"),
    *(
        pytest.param(factory, federation, form, id=f"{factory.__name__}-{form}")
        for factory, federation in ((mlp, uneven), (cnn, images))
        for form in ("stacked", "loop")
    ),
]


@on_a_gpu
@pytest.mark.parametrize("factory, federation, form", FORMS)
def test_cuda_equals_cpu(factory, federation, form):
    found = []
    for device, backend in (("cpu", "loop"), ("cuda", form)):
        with engine(factory, federation(), momentum=0.5, device=device, backend=backend) as used:
            theta = torch.stack([used.initial(0), used.initial(1)])
            clients = np.arange(used.federation.clients)
            update = used.train(theta, clients % 2, clients, needs=frozenset({"updates"}), score=("test",))
            found.append((update.rows, used.losses(theta, clients), update.local["test"].loss))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-2, atol=1e-4)
    for cpu, cuda in zip(found[0][1:], found[1][1:], strict=True):
        np.testing.assert_allclose(cuda, cpu, rtol=1e-2, atol=1e-4)


def waits_of_a_round(factory, federation, form, device):
    clients = np.arange(federation.clients)
    with engine(factory, federation, device=device, backend=form) as used, warned() as found:
        used.train(used.initial(0)[None], 0 * clients, clients)
    return found


@on_a_gpu
@pytest.mark.parametrize("factory, federation, form", FORMS)
def test_no_step_waits(factory, federation, form):
    """What CUDA's own kernels wait for, too, which no other device shows."""
    found = waits_of_a_round(factory, federation(), form, "cuda")
    assert found
    assert [one for one in found if one.step] == []


def test_a_wait_in_a_step_is_seen(monkeypatch):
    """Without a GPU: PyTorch's warning, in a step and after it."""
    gradients = Worker.loss_gradients

    def waiting(*given):
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return gradients(*given)

    monkeypatch.setattr(Worker, "loss_gradients", waiting)
    found = waits_of_a_round(mlp, uneven(), "dense", "cpu")
    assert found and all(one.step and one.place == "engine/dense.py train_chunk" for one in found)
