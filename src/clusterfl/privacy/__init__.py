"""Differential privacy of clients, and RR-Cluster's rebalancing: pure functions, and methods that wrap a method.

Any method's block may contain two further blocks, `settings.Rebalance` and `settings.Privacy`; `wrapper` applies them.
docs/privacy.md explains what is guaranteed, by which argument, and what isn't.
"""

from ..engine.clipping import clip
from .accounting import epsilon, noise_for
from .rebalancing import rebalance

__all__ = ["clip", "epsilon", "noise_for", "rebalance"]
