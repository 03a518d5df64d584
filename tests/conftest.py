"""What the tests share: a study that takes seconds, and a place to run it in."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import clusterfl  # noqa: F401  (before anything multiplies matrices)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent))  # tests share the small federations of federations.py

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def mirror_put_back() -> Iterator[None]:
    """Settings and commands may name a mirror in the environment; no test hands it on to the next."""
    before = os.environ.get("CLUSTERFL_MIRROR")
    yield
    os.environ.pop("CLUSTERFL_MIRROR", None)
    if before is not None:
        os.environ["CLUSTERFL_MIRROR"] = before


def tiny() -> dict[str, Any]:
    """Return the settings of a study with every stage, each as small as can be."""
    return {
        "study": "tiny",
        "seeds": {"runs": [0]},
        "engine": {"device": "cpu", "backend": "loop"},
        "model": {"model": "mlp", "hidden": [4]},
        "training": {"rounds": 3, "epochs": None, "steps": 1, "learning_rate": 0.1},
        "federations": {
            "digits": {
                "dataset": "digits",
                "partition": {"scheme": "rotated", "clients": 8, "angles": [0, 90]},
            }
        },
        "warmups": {"short": {"rounds": 1}},
        "distances": {
            "loss": {"metric": "loss", "warmup": "short"},
            "diffnorm": {"metric": "parameters", "warmup": "short"},
        },
        "clusterings": {
            "lcfl": {"clusterer": "hierarchical", "distance": "loss", "clusters": 2},
            "lcfl-diffnorm": {"clusterer": "hierarchical", "distance": "diffnorm", "clusters": 2},
        },
        "methods": {
            "fedavg": {"method": "fedavg"},
            "local": {"method": "local"},
            "ifca": {"method": "ifca", "clusters": 2},
            "lcfl": {"method": "lcfl", "clustering": "lcfl"},
            "lcfl-diffnorm": {"method": "lcfl", "clustering": "lcfl-diffnorm"},
        },
        "baseline": "fedavg",
    }


def put(settings: dict[str, Any], place: str, value: Any, separator: str = ".") -> dict[str, Any]:
    """Set the value at a dotted place and return the settings; `...` deletes the key."""
    *path, last = place.split(separator)
    block = settings
    for key in path:
        block = block.setdefault(key, {})
    if value is ...:
        del block[last]
    else:
        block[last] = value
    return settings


def write_yaml(path: Path, settings: Any) -> Path:
    """Write settings to a YAML file."""
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return path


def undrawn(patch: pytest.MonkeyPatch) -> None:
    """Let reports have empty figures, for tests of something else: drawing takes most of a small study's time."""

    def save_all(figures: Sequence[tuple[Figure, Path, str]], pdf: bool = True) -> None:
        for _, folder, name in figures:
            for ending in ("svg", "png"):
                (folder / f"{name}.{ending}").write_text("<svg/>", encoding="utf-8")

    patch.setattr("clusterfl.report.canvas.save_all", save_all)


def measured_briefly(patch: pytest.MonkeyPatch) -> None:
    """Let an estimate measure no work for long, and start no processes to measure how long they take to start."""
    patch.setattr("clusterfl.pipeline.estimate.speed.SECONDS", 0.02)
    measured = defaultdict(lambda: (1.0, 1e8))
    patch.setattr("clusterfl.pipeline.estimate.startup.measure", lambda config, kinds: measured)
    patch.setattr("clusterfl.pipeline.estimate.speed.figure", lambda folder, clients: (0.1, 1e5))


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have empty figures."""
    undrawn(monkeypatch)


@pytest.fixture
def study() -> dict[str, Any]:
    """Settings of a tiny study, to be changed at will."""
    return tiny()
