"""The federations of the papers, by name: `federations.yaml`, and facts about each without building it."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from ..errors import UserError, choices
from ..registry import Typed, table

TABLE = Path(__file__).with_name("federations.yaml")
PINS = Path(__file__).with_name("federations.pins.json")


class Known(Typed):
    """A federation of the catalogue."""

    paper: str = Field(description="the paper that it is from: lcfl, rr-cluster, clove, fedgwc or ifca; or clusterfl")
    about: str = Field(description="one sentence, with where the paper or its code says so")
    stand_in_for: str | None = Field(None, description="the federation that this one only resembles")
    dataset: str | dict[str, Any] = Field(description="as in a study")
    partition: dict[str, Any] = Field(description="as in a study")
    inputs: dict[str, Any] = Field({}, description="as in a study")
    model: dict[str, Any] | None = Field(None, description="as in a study")

    def block(self) -> dict[str, Any]:
        """Return the federation as a study's configuration has it."""
        keys = {"dataset", "partition", "inputs", "model"}
        return self.model_dump(include=keys, exclude_none=True)


class Pin(Typed):
    """What a built federation of the catalogue was: run seed 0."""

    clients: int
    groups: int
    train: int
    test: int
    digest: str


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Known]:
    """Return all federations of the catalogue."""
    return {name: Known(**row) for name, row in table(TABLE).items()}


@lru_cache(maxsize=1)
def pins() -> dict[str, Pin]:
    """Return what is pinned, of those federations whose data were at hand."""
    return {name: Pin(**row) for name, row in json.loads(PINS.read_text(encoding="utf-8")).items()}


def known(name: str) -> Known:
    """Return a federation of the catalogue.

    Raises
    ------
    UserError
        If there is none of that name.
    """
    if name not in catalogue():
        raise UserError(f"no federation '{name}' in the catalogue; {choices(catalogue(), name)}")
    return catalogue()[name]
