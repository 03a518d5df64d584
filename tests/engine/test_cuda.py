"""The same numbers on a GPU, up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federations import cnn, images, mlp, uneven

from clusterfl.engine.engine import Engine
from clusterfl.engine.training import Training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("factory, federation", [(mlp, uneven), (cnn, images)], ids=["mlp", "cnn"])
@pytest.mark.parametrize("backend", ["stacked", "loop"])
def test_cuda_equals_cpu(factory, federation, backend):
    found = []
    for device, form in (("cpu", "loop"), ("cuda", backend)):
        with Engine(factory, federation(), Training(momentum=0.5), 3, device=device, backend=form) as used:
            theta = torch.stack([used.initial(0), used.initial(1)])
            clients = np.arange(used.federation.clients)
            update = used.train(theta, clients % 2, clients, needs=frozenset({"updates"}), score=("test",))
            found.append((update.rows, used.losses(theta, clients), update.local["test"].loss))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-2, atol=1e-4)
    for cpu, cuda in zip(found[0][1:], found[1][1:], strict=True):
        np.testing.assert_allclose(cuda, cpu, rtol=1e-2, atol=1e-4)
