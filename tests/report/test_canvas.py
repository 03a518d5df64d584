"""Figures' files: the same bytes by one process and by several, and what a process can't write is said."""

from __future__ import annotations

import os

import numpy as np
import pytest
from federations import slow_but

from clusterfl.report import canvas


def drawing(seed):
    """Return a figure whose layout has something to find."""
    figure, axes = canvas.grid(4, 3, 1, 2)
    for place in axes.flat:
        place.plot(np.random.default_rng(seed).random(20).cumsum(), label=f"seed {seed}")
        place.set(xlabel="round", ylabel="accuracy, %")
    canvas.legend(figure, "outside lower center", handles=axes[0, 0].lines)
    return figure


@pytest.mark.parametrize("cores", slow_but([2], [1, 2, 3]))
def test_all_figures_have_the_bytes_of_each_by_itself(cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    for seed in range(3):
        canvas.save(drawing(seed), alone, f"figure-{seed}", pdf=True)
    canvas.save_all([(drawing(seed), together, f"figure-{seed}") for seed in range(3)])
    names = sorted(path.name for path in alone.iterdir())
    assert names == [f"figure-{seed}.{ending}" for seed in range(3) for ending in ("pdf", "png", "svg")]
    assert sorted(path.name for path in together.iterdir()) == names
    for name in names:
        assert (alone / name).read_bytes() == (together / name).read_bytes()
    assert not canvas._waiting


@pytest.mark.parametrize("cores", [1, 2])
def test_a_figure_that_cannot_be_written_is_an_error(cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        canvas.save_all([(drawing(0), tmp_path, "here"), (drawing(1), tmp_path / "nowhere", "there")])
    assert not canvas._waiting
