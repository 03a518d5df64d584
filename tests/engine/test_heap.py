"""Freed memory stays with the process, so that a step's pages aren't new."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from federations import engine

from clusterfl.engine import heap

FAULTS = """
import resource, sys
import torch
from clusterfl.engine import heap
if sys.argv[1] == "kept":
    assert heap.keep(16 << 20, {}) is not None
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(10 << 20)  # 40 MB: 10,240 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def test_how_much_is_kept_goes_by_the_model():
    """Of 2 MB the least, of 47 MB three and twelve of them, of 1 GB what a number of C can say."""
    if heap.keep(0, {}) is None:
        pytest.skip("this C library has no mallopt")
    try:
        assert heap.keep(2 << 20, {}) == (32 << 20, 64 << 20)
        assert heap.keep(47 << 20, {}) == (141 << 20, 564 << 20)
        assert heap.keep(1 << 30, {}) == (2**31 - 1, 2**31 - 1)
    finally:
        heap.keep(0, {})


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_a_user_asks_for_stays(name):
    assert heap.keep(1, {name: "1"}) is None


@pytest.mark.skipif(heap.keep(0, {}) is None, reason="this C library has no mallopt")
def test_a_second_array_as_large_has_no_new_pages():
    """Of 40 MB: 10,240 pages without, next to none with."""
    found = [
        int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout)
        for how in ("default", "kept")
    ]
    assert found[0] > 5000 and found[1] < 500


def test_an_engine_asks_for_its_model(monkeypatch):
    asked = []
    monkeypatch.setattr(heap, "keep", asked.append)
    with engine() as used:
        assert asked == [4 * used.layout.columns]
        assert np.isfinite(used.initial(0).numpy()).all()
