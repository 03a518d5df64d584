"""Readers of files from outside under damaged files: few in the normal suite, as many as fit into minutes with -m slow.

FUZZ_MINUTES is how long all readers together are fuzzed (default: 10), FUZZ_SEED the first seed (default: of the day).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import fuzz_harness
import pytest
from fuzz_readers import READERS

SMOKE = 50


@pytest.mark.parametrize("name", READERS)
def test_few(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    counts = fuzz_harness.campaign(READERS[name], tmp_path, None, SMOKE)
    assert counts.total() == SMOKE or counts.total() > 20  # a small space has fewer
    assert counts["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many(name: str, tmp_path: Path) -> None:
    seconds = 60 * float(os.environ.get("FUZZ_MINUTES", "10")) / len(READERS)
    seed = os.environ.get("FUZZ_SEED", str(int(time.time() // 86400) * 1_000_000))
    command = [sys.executable, "-m", "fuzz_harness", name, str(seconds), seed, str(tmp_path)]
    tests = Path(__file__).parent
    paths = [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + 120, check=False)
    assert done.returncode == 0, f"FUZZ_SEED={seed}: {tmp_path / READERS[name].name}\n{done.stderr[-4000:]}"
    counts = json.loads(done.stdout)
    print(f"{name}: {sum(counts.values())} inputs, {counts}")
