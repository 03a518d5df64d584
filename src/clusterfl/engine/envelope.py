"""Moreau envelopes: several steps on a mini-batch with a pull to a centre, then a step of the centre.

With ``F(w) = min_t f(t) + lambda / 2 |t - w|^2`` the gradient of F is ``lambda (w - t)`` for the minimising t (Dinh et
al., NeurIPS 2020, eq. 3). A client takes K steps on each mini-batch to approximate t, starting from its last t; then
its centre w takes a step of gradient descent on F. The client sends the centre's change and keeps t.

Axes: C clients, P columns of a model's row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Envelope:
    """The settings of training with Moreau envelopes."""

    pull: float  # lambda
    steps: int  # K, on each mini-batch
    rate: float  # eta, of the centre

    @property
    def times(self) -> int:
        """Steps on each mini-batch."""
        return self.steps


class Centres:
    """The centres of some clients, ``rows [C, P]``, which begin as the clients' models."""

    def __init__(self, envelope: Envelope, start: Tensor):
        self.envelope, self.rows = envelope, start.clone()

    def pull(self, gradient: Tensor, theta: Tensor, centre: Tensor) -> None:
        """Add the gradient of the pull at `theta` to `gradient`, in place; all have the same shape."""
        gradient.add_((theta - centre) * self.envelope.pull)  # no fused operation: the same rounding everywhere

    def follow(self, theta: Tensor, step: int, first: int = 0) -> None:
        """After the last step on a mini-batch, move the centres of the clients ``first:``, whose models are `theta`."""
        if (step + 1) % self.envelope.steps == 0:
            far = self.envelope.rate * self.envelope.pull
            self.rows[first:] += (theta - self.rows[first:]) * far
