"""Clipping, which bounds what one client can change. m participants, P parameters."""

from __future__ import annotations

from typing import Any


def clip(updates: Any, bound: float) -> Any:
    """Return updates shortened to a Euclidean norm of at most `bound`: ``v min(1, bound / |v|)``.

    Parameters
    ----------
    updates : [m, P]
        Rows; one that holds NaN or infinity becomes zeros, so that it stays in every count and adds nothing.
    bound
        Above 0.

    Returns
    -------
    [m, P], of the same kind (numpy or torch) and type as the input. A row that is short enough keeps its bits; the
    norm of another exceeds the bound by rounding at most.
    """
    import torch

    if not isinstance(updates, torch.Tensor):
        return clip(torch.as_tensor(updates), bound).numpy()
    norm = updates.double().square().sum(dim=1).sqrt()  # in float64 the square of no float32 is infinite
    sound = norm.isfinite()
    factor = torch.where(sound, bound / norm, 0.0).clamp(max=1.0).to(updates.dtype)
    return torch.where(sound[:, None], updates, 0.0) * factor[:, None]
