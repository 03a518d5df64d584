"""No number changes unseen: a tiny run of each method, metric, clusterer and partition against what was pinned.

Digests are of bits, so each branch of kernels has its own; where a branch has none, the numbers are compared up to
rounding. A part whose numbers change on purpose gets a new revision (`clusterfl.pipeline.revisions`), then new pins:
CLUSTERFL_PIN=1 pytest tests/methods/test_pins.py
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from federations import engine, uneven
from matrices import scattered, taken
from test_contract import SIZES, engine_for, numbers, run

from clusterfl import streams
from clusterfl.clustering import CLUSTERERS
from clusterfl.clustering.distances import METRICS
from clusterfl.data import PARTITIONS
from clusterfl.data.samples import Labels
from clusterfl.engine import processor
from clusterfl.methods import METHODS
from clusterfl.pipeline import revisions
from clusterfl.privacy.settings import Privacy, Rebalance
from clusterfl.privacy.wrapper import wrap

FOLDER = Path(__file__).parents[1] / "pins"
PINNING = os.environ.get("CLUSTERFL_PIN") == "1"
OF_BITS = ("method", "wrapper", "privacy")  # what kernels of a branch compute; the rest is NumPy, on small arrays
CLUSTERED = {"dbscan": {"eps": 0.7, "min_samples": 3}}
DEALT = {
    "natural": {"clients": 9, "minimum": 5}, "mixture": {"clients": [5, 0, 15]}, "by-group": {},
    "rotated": {"clients": 22, "angles": [0, 180]}, "dominant-class": {}, "feature-skew": {},
    "label-skew": {"sets": "pairs", "clients_per_cluster": 2},
    "label-skew-released": {"sets": "all-but-one", "clients_per_cluster": 2, "order": [9, *range(9)]},
    "concept-shift": {"train_per_class": 12, "test_per_class": 3},
}  # fmt: skip


def method(name):
    with engine_for(name, federation=uneven(SIZES), rounds=3, participation=0.6, epochs=1) as used:
        return numbers(*run(name, used))


def wrapper(name):
    """IFCA with rebalancing; and with noise."""
    from clusterfl.simulation import loop

    privacy = None
    if name == "privacy":
        privacy = Privacy(clip=0.1, epsilon=4, delta=1e-3, accounting="replace-one")
    with engine(federation=uneven(SIZES), rounds=3, participation=1.0, epochs=1, weights="uniform") as used:
        method = wrap(METHODS["ifca"](clusters=2), "ifca", Rebalance(minimum=2), privacy)
        return numbers(*loop.run(method, loop.context(used), used))


def metric(name):
    draw = streams.generator(1, "pins")
    given = draw.random((12, 12 if METRICS.input(name) == "losses" else 40))
    return {"distance": METRICS[name](taken(name, given))}


def clusterer(name):
    if name == "kmedoids":
        pytest.importorskip("sklearn_extra.cluster")
    return {"labels": CLUSTERERS[name](scattered(seed=3), k=4, seed=1, **CLUSTERED.get(name, {}))}


def partition(name):
    draw = np.random.default_rng(0)
    y = draw.permutation(np.repeat(np.arange(10), 80)).astype(np.uint8)
    labels = Labels(y, np.arange(600), np.arange(600, 800), draw.integers(-1, 40, 800), draw.integers(0, 3, 800))
    options = PARTITIONS.options(name)(**DEALT.get(name, {"clients": 20})).model_dump()
    return PARTITIONS[name](labels, streams.generator(0, "partition"), **options)


PARTS = {f"method {name}": (method, name) for name in METHODS}
PARTS |= {name: (wrapper, name) for name in ("wrapper", "privacy")}
PARTS |= {f"metric {name}": (metric, name) for name in METRICS}
PARTS |= {f"clusterer {name}": (clusterer, name) for name in CLUSTERERS}
PARTS |= {f"partition {name}": (partition, name) for name in PARTITIONS}


def of(arrays):
    """Return what is pinned: a digest of all bits, and some numbers for where bits are others."""
    found, values = hashlib.sha256(), {}
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(array)
        found.update(
            f"{name} {array.dtype} {array.shape}".encode()
            + (repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
        )
        if array.dtype.kind in "fiub" and array.size:
            finite = array.astype(float)[np.isfinite(array.astype(float))]
            values[name] = [round(float(v), 6) for v in (finite.mean(), np.abs(finite).max())] if finite.size else []
    return {"digest": found.hexdigest()[:32], "values": values}


def file_of(part):
    """Return where a part's pins are: of this branch, if its bits are those of kernels."""
    return FOLDER / f"{processor.branch() if part.split()[0] in OF_BITS else 'any'}.json"


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize("part", PARTS)
def test_numbers_are_those_of_the_revision(part):
    call, name = PARTS[part]
    found = of(call(name)) | {"revision": revisions.of([part])[part]}
    if part.startswith(OF_BITS):
        found["engine"] = revisions.of(["engine"])["engine"]
    path = file_of(part)
    if PINNING:
        path.write_text(json.dumps(dict(sorted((read(path) | {part: found}).items())), indent=1) + "\n")
    pins = read(path)
    elsewhere = next((kept for other in sorted(FOLDER.glob("*.json")) if part in (kept := read(other))), {})
    pinned, exact = (pins[part], True) if part in pins else (elsewhere.get(part), False)
    assert pinned, f"nothing is pinned of {part}: CLUSTERFL_PIN=1 pytest {Path(__file__).name}"
    numbers_alone = ("revision", "engine")
    said = {key: found.get(key) for key in numbers_alone}
    assert said == {key: pinned.get(key) for key in numbers_alone}, f"a new revision: pin {part} again"
    words = f"{part} gives other numbers than revision {found['revision']}: a fault, or a new revision is needed"
    if exact:
        assert found["digest"] == pinned["digest"], f"{words} (on branch {path.stem})"
    assert found["values"].keys() == pinned["values"].keys(), words
    for key, values in pinned["values"].items():
        np.testing.assert_allclose(found["values"][key], values, rtol=2e-3, atol=2e-4, err_msg=f"{words}: {key}")


def test_a_changed_number_is_seen():
    """Of one bit, of a shape, of a type."""
    array = np.linspace(0, 1, 7)
    other = array.copy()
    other[3] = np.nextafter(other[3], 1)
    digests = {of({"a": a})["digest"] for a in (array, other, array[:, None], array.astype(np.float32))}
    assert len(digests) == 4


def test_every_pin_is_of_a_part():
    pinned = {part for path in FOLDER.glob("*.json") for part in read(path)}
    assert pinned == PARTS.keys()
