"""Revisions of parts, increased when a part's numbers are changed on purpose and must not be mixed with older ones.

A part is named by its registry's kind and its own name, ``"method cfl"``; the engine with the loop over rounds is
``"engine"``; the blocks around a method are ``"wrapper"``, and with privacy also ``"privacy"``. ``"method clove
stable_rounds"`` is an option of a part, for numbers that change only if the option is given and isn't 0 or false. Parts
that aren't listed have revision 1. A revision is part of the identity of every job that uses the part, and of the
evidence made from it. `tests/methods/test_pins.py` fails if numbers change without a new revision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

REVISIONS: dict[str, int] = {
    "model ifca-cifar-cnn": 2,  # other last bits: normalisation by products and square roots
    "model resnet": 2,  # other last bits: convolutions to images of few pixels are products
    "model textcnn": 2,  # other last bits: gradients only of the largest responses
    "method ditto": 2,  # other last bits: a pull to another model is trained in the coordinates of the data
    "method fedsoft": 2,  # the same
    "method fpfc": 2,  # the same
    "method stocfl": 2,  # the same
    "method apfl": 2,  # other last bits: two models in lockstep are trained in the coordinates of the data
    "method fedcam": 2,  # other last bits: gradients of sums of linear layers are hand-written
    "method feddrift": 2,  # a model in a reused row merges with none; losses include those of the first step
    "method clove stable_rounds": 2,  # newcomers and new clients get models from the round of stability
    "privacy": 2,  # less noise with accounting: poisson and with all clients; a random first round draws independently
}


def of(parts: Iterable[str]) -> dict[str, int]:
    """Return the revision of each part, by name."""
    return {part: REVISIONS.get(part, 1) for part in sorted(parts)}


def of_options(parts: Iterable[str], options: Mapping[str, Any]) -> list[str]:
    """Return the parts' options that are given and have their own revision, as ``"part option"``."""
    return [
        name for part in parts for key, given in options.items() if given and (name := f"{part} {key}") in REVISIONS
    ]
