"""The optimiser of a module beside PyTorch's own classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from clusterfl.engine.optimizers import OfModule
from clusterfl.engine.training import Training

PYTORCHS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@pytest.mark.parametrize("optimizer, momentum", [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0)])
@pytest.mark.parametrize("decays", [(0.0,), (0.1, 0.0)])
def test_steps_are_pytorchs_to_the_bit(optimizer, momentum, decays):
    """With groups of other penalties, and a parameter that has no gradient in every second step."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)).to(memory_format=torch.channels_last)
    theirs = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)).to(memory_format=torch.channels_last)
    theirs.load_state_dict(ours.state_dict())

    def groups(module):
        parts = list(module.parameters())
        return [{"params": parts[i :: len(decays)], "weight_decay": decay} for i, decay in enumerate(decays)]

    options = {"momentum": momentum} if optimizer == "sgd" else {}
    one = OfModule(Training(optimizer=optimizer, learning_rate=0.05, momentum=momentum), groups(ours), 0.05)
    other = PYTORCHS[optimizer](groups(theirs), lr=0.05, fused=True, **options)
    for step in range(5):
        x = torch.randn(8, 2, 4, 4)
        for module, optimiser in ((ours, one), (theirs, other)):
            module.zero_grad()
            module(x).square().sum().backward()
            if step % 2:
                module[2].bias.grad = None
            optimiser.step()
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert not torch.equal(ours[0].weight, nn.Conv2d(2, 4, 3).weight)


def test_two_steps_of_momentum_by_hand():
    """From 1 by gradients 2 and 1 at rate .1 and momentum .5: velocities 2 and 2, so 1 - .2 - .2."""
    parameter = nn.Parameter(torch.tensor([1.0]))
    made = OfModule(
        Training(optimizer="sgd", learning_rate=0.1, momentum=0.5), [{"params": [parameter], "weight_decay": 0.0}], 0.1
    )
    for gradient in (2.0, 1.0):
        parameter.grad = torch.tensor([gradient])
        made.step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([0.6]))
    assert made.memory["client_velocity"][parameter].tolist() == [2.0]


@pytest.mark.slow
def test_training_does_not_import_the_compiler():
    """It would take every process that trains a convolution 1.6 s."""
    code = (
        "import sys; import numpy as np; from federations import cnn, engine, images\n"
        "for optimizer in ('sgd', 'adam'):\n"
        "    with engine(cnn, images(2), optimizer=optimizer, learning_rate=0.1) as used:\n"
        "        update = used.train(used.initial(0)[None], np.zeros(2, dtype=int), np.arange(2), 0)\n"
        "    print(len(update.clients), 'torch._dynamo' in sys.modules)"
    )
    folder = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"] * 2
