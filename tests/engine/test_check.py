"""The check before training: it passes where the engine's products are sound, and fails for kernels that aren't."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from federations import engine, mlp, uneven
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfl.engine import bits, processor
from clusterfl.errors import UserError

SOUND = not bits._general()
# Engines in a process of its own, whose kernels are those that the environment asks for.
SCRIPT = """
import sys
sys.path[:0] = {paths!r}
from federations import engine, mlp, uneven
from test_bits import everything, same
from test_check import any_shape_is_sound
from clusterfl.engine import bits
try:
    any_shape_is_sound()
    print("any shape is sound")
except AssertionError:
    print("some shape isn't sound")
with engine(mlp, uneven()) as used:
    print("alone:", used.worker.alone)
    whole = everything(used)
for cut in (dict(chunk=1), dict(chunk=3), dict(workers=2)):
    with engine(mlp, uneven(), **cut) as used:
        same(whole, everything(used))
print("same bits")
"""


def elsewhere(**environment: str) -> subprocess.CompletedProcess[str]:
    here = os.path.dirname(__file__)
    script = SCRIPT.format(paths=[os.path.dirname(here), here])
    given = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", bits.ALONE)}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=given | environment, capture_output=True, text=True, check=False)


@given(st.integers(1, 300), st.integers(1, 900), st.integers(0, 1000))
@settings(max_examples=60, deadline=None, derandomize=True)
def any_shape_is_sound(outputs, inputs, seed):
    with bits.one_thread():
        assert bits.differing(outputs, inputs, seed) == ""


@pytest.mark.skipif(not SOUND, reason="on these kernels each client is computed by itself")
def test_any_shape_is_sound():
    any_shape_is_sound()


@pytest.mark.slow
@pytest.mark.skipif(processor.branch().partition(" ")[0].partition("-")[0] not in ("intel", "amd"), reason="no MKL")
def test_a_wrong_branch_is_found_and_falls_back():
    """MKL's default kernels: their bits depend on rows and places, here as on Intel's processors."""
    done = elsewhere(MKL_CBWR="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["some shape isn't sound", "alone: True", "same bits"]
    assert done.stderr.count("so each client is computed by itself") == 1  # once a process that has engines
    assert "MKL_CBWR=" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("branch", processor.able())
def test_each_branch_that_the_processor_has(branch):
    done = elsewhere(CLUSTERFL_BRANCH=branch)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "same bits"
    sound, alone = (word in done.stdout for word in ("any shape is sound", "alone: False"))
    assert sound == alone  # what the check says of a few shapes holds for any


def test_a_branch_that_it_has_not(monkeypatch):
    monkeypatch.setenv(processor.ASKED, "avx1024")
    words = r"CLUSTERFL_BRANCH='avx1024': this processor, .*, can run .*; allowed: auto"
    with pytest.raises(UserError, match=words):
        engine(mlp, uneven())


def test_alone_gives_the_same_bits(monkeypatch):
    """By itself a client is computed as it is beside others: what is safe everywhere, and slower."""
    from test_bits import everything, same

    with engine(mlp, uneven()) as used:
        whole = everything(used)
    monkeypatch.setenv(bits.ALONE, "1")
    with engine(mlp, uneven(), chunk=3) as used:
        assert used.worker.alone
        found = everything(used)
    if SOUND:
        same(whole, found)
