"""Moreau envelopes: steps on one mini-batch with a pull to a centre, and then a step of the centre to where they led.

With ``F(w) = min_t f(t) + lambda / 2 |t - w|^2`` the gradient of F is ``lambda (w - t)`` for the t of the minimum (Dinh
et al., NeurIPS 2020, eq. 3). A client's K steps on a mini-batch are towards that t, from where those before led; then
its centre takes a step of gradient descent on F. It sends how far the centre went, and keeps t.

Axes: C clients, P columns of a model's row.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Envelope:
    """How clients train."""

    pull: float  # lambda
    steps: int  # K, on each mini-batch
    rate: float  # eta, of the centre

    @property
    def times(self) -> int:
        """How often a model is trained on each mini-batch."""
        return self.steps


class Centres:
    """The centres of some clients, ``rows [C, P]``, which begin where the clients do."""

    def __init__(self, envelope: Envelope, start: Tensor):
        self.envelope, self.rows = envelope, start.clone()

    def pull(self, gradient: Tensor, theta: Tensor, centre: Tensor) -> None:
        """Add the pull's gradient at `theta` to `gradient`, in place; all are of one shape."""
        gradient.add_((theta - centre) * self.envelope.pull)  # rounded twice everywhere, also at a tensor's end

    def follow(self, theta: Tensor, step: int, first: int = 0) -> None:
        """Take the centres' step after the last one on a mini-batch, for the clients ``first:``; theirs are `theta`."""
        if (step + 1) % self.envelope.steps == 0:
            far = self.envelope.rate * self.envelope.pull
            self.rows[first:] += (theta - self.rows[first:]) * far
