"""Feeds a reader with damaged and made-up files: each is refused with a sentence or gives a sound result, in time.

    PYTHONPATH=tests:tests/fuzz python -m fuzz_harness READER SECONDS SEED FOLDER

An input that harms stays in FOLDER. Memory is limited, so that a header which claims much and is believed fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
from fuzz_readers import READERS, Reader
from hypothesis import strategies as st

from clusterfl.errors import UserError

LIMIT = 10.0  # seconds for one input
MEMORY = 1 << 30  # bytes more than at the start
HUGE = st.sampled_from([0, 1, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**64 - 1])
STEP = st.tuples(
    st.sampled_from(["flip", "set", "cut", "drop", "insert", "repeat", "little", "big", "digits", "swap", "start"]),
    st.integers(0, 2**20), st.integers(0, 255), HUGE, st.binary(max_size=12),
)  # fmt: skip


class Hang(BaseException):
    """An input takes too long."""


def mutated(data: bytes, steps: list[tuple[str, int, int, int, bytes]]) -> bytes:
    """Return data with some bytes others."""
    new = bytearray(data)
    for kind, where, small, huge, extra in steps:
        # Half of the places are in the first or last bytes, where headers are.
        place = where % (len(new) + 1) if where % 4 < 2 else min(len(new), where % 64) if where % 4 < 3 else max(
            0, len(new) - where % 64)  # fmt: skip
        if kind == "flip" and place < len(new):
            new[place] ^= 1 << small % 8
        elif kind == "set" and place < len(new):
            new[place] = small
        elif kind == "cut":
            del new[place:]
        elif kind == "drop":
            del new[place : place + small]
        elif kind == "insert":
            new[place:place] = extra
        elif kind == "repeat":
            new[place:place] = new[place : place + small]
        elif kind in ("little", "big"):
            size = (2, 4, 8)[small % 3]
            new[place : place + size] = (huge % 256**size).to_bytes(size, kind)
        elif kind == "digits":
            found = list(re.finditer(rb"-?\d+", bytes(new)))
            if found:
                one = found[where % len(found)]
                new[one.start() : one.end()] = b"%d" % (huge if small % 2 else -huge)
        elif kind == "swap" and place:
            new = new[place:] + new[:place]
        elif kind == "start":
            new[: len(extra)] = extra
    return bytes(new)


def inputs(reader: Reader) -> st.SearchStrategy[bytes]:
    """Return the strategy of a reader's inputs."""
    found = st.builds(mutated, st.sampled_from(reader.genuine()), st.lists(STEP, min_size=1, max_size=4))
    return found if reader.structured is None else found | reader.structured


def examine(reader: Reader, data: bytes, folder: Path) -> str:
    """Read one input and return ``refused`` or ``taken``; anything else is an error."""
    path = folder / reader.name
    path.write_bytes(data)
    with deadline():
        try:
            found = reader.read(path)
        except reader.refusal as error:
            said = str(error)
            assert reader.refusal is not UserError or reader.name in said or str(folder) in said, f"no path: {said}"
            assert str(error).strip()
            return "refused"
        reader.check(found)
        return "taken"


@contextlib.contextmanager
def deadline() -> Iterator[None]:
    """Raise `Hang` after some seconds."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let this process have no more than `MEMORY` bytes more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    status = Path("/proc/self/status")
    now = 1024 * int(re.findall(r"VmSize:\s*(\d+)", status.read_text())[0]) if status.exists() else 0
    if now:
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def campaign(
    reader: Reader, folder: Path, seed: int | None, examples: int, until: float = float("inf")
) -> Counter[str]:
    """Try inputs and return how many were refused and taken. Without a seed they are the same each time."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in reader.genuine():
        examine(reader, data, folder)
    counts: Counter[str] = Counter()

    @hypothesis.settings(
        max_examples=examples, database=None, deadline=None, derandomize=seed is None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    @hypothesis.given(inputs(reader))
    def one(data: bytes) -> None:
        if time.monotonic() < until:
            counts[examine(reader, data, folder)] += 1

    test = one if seed is None else hypothesis.seed(seed)(one)
    with limited_memory(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test()
    return counts


def main(name: str, seconds: str, seed: str, folder: str) -> None:
    """Try inputs for so long, in rounds of their own seeds."""
    until, counts, number = time.monotonic() + float(seconds), Counter[str](), int(seed)
    os.chdir(folder)
    while time.monotonic() < until:
        counts += campaign(READERS[name], Path(folder), number, 300, until)
        number += 1
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
