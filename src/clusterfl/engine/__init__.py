"""Training and scoring of many clients; see `Engine`."""

from ..training import Training
from .engine import Engine, Scores, Update

__all__ = ["Engine", "Scores", "Training", "Update"]
