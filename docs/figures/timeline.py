"""Draw when each job of a study ran, docs/figures/timeline.svg: python docs/figures/timeline.py STUDY=results/digits.

Each job's file of times says how long it took, and was written at its end: the study must be as it was run, not a copy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from clusterfl.report import canvas

TO = Path(__file__).with_suffix(".svg")
STAGES = ["download", "partition", "federate", "warmup", "distance", "cluster", "report"]
LONGEST = 20  # letters that a bar's height holds


def read(study: Path) -> pd.DataFrame:
    """Return the jobs with stage, name, begin and end in seconds after the first one's begin, in this order."""
    rows = []
    for file in sorted(study.rglob("*timing.parquet")):
        whole = pd.read_parquet(file).iloc[0]
        stage, name = _job(file.relative_to(study))
        seconds = float(whole["seconds"])
        rows.append((stage, name, file.stat().st_mtime - seconds, seconds))
    found = pd.DataFrame(rows, columns=["stage", "name", "begin", "seconds"])
    found["begin"] -= found["begin"].min()
    return found.sort_values(["begin", "seconds"]).reset_index(drop=True)


def _job(file: Path) -> tuple[str, str]:
    """Return a job's stage, and its name with the seed, from where its times lie."""
    if len(file.parts) == 1:
        return "report", ""
    _, seed, *rest = file.parts
    if len(rest) == 1:
        return rest[0].split(".")[0], seed
    kinds = {"methods": "federate", "clusters": "cluster"}
    return kinds.get(rest[0], rest[0]), f"{(rest[1] if len(rest) > 2 else rest[1].split('.')[0])} {seed}"


def main(study: Path) -> None:
    """Draw the jobs, one above another as cores are free."""
    jobs = read(study)
    figure, axes = canvas.blank(9.0, 3.4)
    lanes: list[float] = []
    for _, job in jobs.iterrows():
        free = [number for number, end in enumerate(lanes) if end <= job["begin"] + 0.1]
        lane = free[0] if free else len(lanes)
        begin = max(job["begin"], lanes[lane] if free else 0.0)
        lanes[lane : lane + 1] = [begin + job["seconds"]]
        colour = canvas.COLOURS[STAGES.index(job["stage"]) % len(canvas.COLOURS)]
        axes.barh(lane, job["seconds"], left=begin, height=0.8, color=colour, edgecolor="white", linewidth=0.5)
        text = job["name"] or job["stage"]
        if job["seconds"] > 1.2 and len(text) <= LONGEST:
            axes.text(begin + job["seconds"] / 2, lane, text, ha="center", va="center", fontsize=5, rotation=90,
                      color="white")  # fmt: skip
    axes.set(
        xlabel="seconds after the first job began",
        yticks=[],
        xlim=(0, np.ceil(max(lanes))),
        ylim=(-0.6, len(lanes)),
    )
    for stage in STAGES:
        if (jobs["stage"] == stage).any():
            axes.bar(0, 0, color=canvas.COLOURS[STAGES.index(stage) % len(canvas.COLOURS)], label=stage)
    canvas.legend(figure, "outside lower center", ncols=len(STAGES))
    figure.savefig(TO, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
