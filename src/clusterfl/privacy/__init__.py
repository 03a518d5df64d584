"""Differential privacy of clients, and RR-Cluster's rebalancing: pure functions, and methods around a method.

Two blocks that any method's block may carry: `settings.Rebalance` and `settings.Privacy`; `wrapper` puts them to work.
What is guaranteed, by which argument, and what isn't: docs/privacy.md.
"""

from ..engine.clipping import clip
from .accounting import epsilon, noise_for
from .rebalancing import rebalance

__all__ = ["clip", "epsilon", "noise_for", "rebalance"]
