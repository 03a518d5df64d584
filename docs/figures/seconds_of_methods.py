"""Measure what a run of each method takes, for docs/three-federations.md.

    python docs/figures/seconds_of_methods.py workflow/studies/reduced/{common,rotated-mnist}.yaml > seconds.csv

They are in seconds-of-methods.csv beside this file.
Processor seconds of the first seed's jobs in this process, one after another, of a method's own and of all that it is
made from but data and partition. Results go into the working folder; the figures are those of the machine it runs on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from clusterfl.claims.pages.site_parts import chain
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan

APART = ("download", "partition")


def main(*files: Path) -> None:
    """Print method and seconds as CSV."""
    plan = Plan.from_files(list(files))
    seconds: dict[Path, float] = {}
    own = [job for job in plan.jobs() if job.seed in (None, plan.study.seeds.runs[0]) and job.stage != "report"]
    print("method,seconds")
    for job in own:
        began = time.process_time()
        execute(job, needed=True)
        seconds[job.first] = time.process_time() - began
        if job.stage == "federate":
            needed = {one.first for one in chain(job) if one.stage not in APART}
            print(f"{job.name},{sum(seconds[path] for path in needed):.2f}", flush=True)


if __name__ == "__main__":
    main(*[Path(name) for name in sys.argv[1:]])
