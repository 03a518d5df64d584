"""Adding and removing rows of models, for clusters that split, merge or are left out. Axes: K models."""

from __future__ import annotations

import numpy as np

from ..storage.blocks import blocks
from .method import Context
from .state import SERVER, Ids, State


def append_copies(context: Context, state: State, models: Ids) -> None:
    """Append copies of `models`, e.g. of clusters that split, to the models' rows and the server optimiser's memory."""
    take_models(context, state, np.append(np.arange(len(state.theta)), models))


def take_models(context: Context, state: State, models: Ids) -> None:
    """Replace the models' rows and the server optimiser's memory by those of `models` [K]; labels don't change."""
    import torch

    for name in ("theta", *SERVER):
        old = getattr(state, name)
        if old is None:
            continue
        taken = context.allocate(len(models), old.shape[1], old.dtype)
        for part in blocks(len(models), old.shape[1] * old.dtype.itemsize):
            taken[part] = old[torch.as_tensor(models[part])]
        setattr(state, name, taken)
    if state.server_steps is not None:
        state.server_steps = state.server_steps[models]
