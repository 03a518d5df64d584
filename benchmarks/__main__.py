"""Run the benchmarks and write ``benchmark.parquet``, ``benchmark-growth.parquet`` and ``benchmark.html``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

from clusterfl.errors import UserError, choices

from . import page
from .hooks import HOOKS
from .networks import NETWORKS
from .works import WORKS as GENERAL
from .works import Bench, Row, Work

WORKS: list[Work] = [*GENERAL, *NETWORKS, *HOOKS]


def main(arguments: list[str] | None = None) -> int:
    """Run and return the exit code: 0 done, 2 something to mend. Bars that aren't met don't change it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure clusterfl beside a plain loop.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="works to do, or beginnings of their names")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="times each side is run (default: 5)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes of ours (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="folder (default: results)")
    options = parser.parse_args(arguments)
    try:
        if min(options.pairs, options.workers) < 1:
            raise UserError(f"--pairs {options.pairs}, --workers {options.workers}: both should be 1 or more")
        works = chosen(options.only)
        bench = run(works, Bench(options.pairs, options.workers))
        print(f"{page.write(bench, options.out)}", file=sys.stderr)
    except UserError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


def chosen(names: list[str] | None) -> list[Work]:
    """Return the works of these names, or whose names begin so, or all; of them those that this machine can do."""
    found = list(WORKS) if names is None else []
    for name in names or []:
        same = [work for work in WORKS if work.name == name] or [w for w in WORKS if w.name.startswith(name)]
        if not same:
            raise UserError(f"--only: no work's name begins with '{name}'; {choices((w.name for w in WORKS), name)}")
        found += same
    return [work for work in WORKS if work in found and work.possible()]


def run(works: list[Work], bench: Bench) -> Bench:
    """Do the works, with a line on each and on the time that is left."""
    began, done, total = perf_counter(), 0.0, sum(work.expected for work in works)
    try:
        for number, work in enumerate(works, 1):
            before = len(bench.rows)
            work.run(bench)
            done += work.expected
            spent = perf_counter() - began
            left = f"{spent:.0f} s so far, about {spent * (total - done) / done:.0f} s left"
            found = "; ".join(map(_words, bench.rows[before:]))
            print(f"[{number}/{len(works)}] {found}; {left}", file=sys.stderr, flush=True)
    finally:
        bench.close()
    return bench


def _words(row: Row) -> str:
    return f"{row.work}: {row.ratio:.3g} (bar {row.bar:g}{'' if row.met else ', NOT met'})"


if __name__ == "__main__":
    sys.exit(main())
