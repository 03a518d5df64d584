"""Clipping, which bounds the influence of one client. m participants, P columns of an update."""

from __future__ import annotations

from typing import Any


def clip(updates: Any, bound: float) -> Any:
    """Return updates scaled down to a Euclidean norm of at most `bound`: ``v min(1, bound / |v|)``.

    Parameters
    ----------
    updates : [m, P]
        A row with NaN or infinity becomes zeros: it adds nothing, but is still counted.
    bound
        Above 0.

    Returns
    -------
    [m, P], of the same kind (numpy or torch) and type as the input. A row within the bound is unchanged; the norm of a
    scaled row exceeds the bound by rounding at most.
    """
    import torch

    if not isinstance(updates, torch.Tensor):
        return clip(torch.as_tensor(updates), bound).numpy()
    norm = updates.double().square().sum(dim=1).sqrt()  # in float64 the square of no float32 is infinite
    sound = norm.isfinite()
    factor = torch.where(sound, bound / norm, 0.0).clamp(max=1.0).to(updates.dtype)
    return torch.where(sound[:, None], updates, 0.0) * factor[:, None]
