"""Draw what RR-Cluster's rebalancing gains by how the models begin, from the results of workflow/studies/rr_start.yaml.

    python docs/rr-start/draw.py [FOLDER OF RESULTS]

writes rr-start.csv (a row for each run), rr-start.svg and rr-start.png beside itself. Only seeds of which all runs are
there count.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd
import yaml
from matplotlib.axes import Axes

from clusterfl.metrics import clustering_accuracy
from clusterfl.report import canvas

HERE = Path(__file__).parent
STUDY = HERE.parents[1] / "workflow/studies/rr_start.yaml"
NOISE = {"i0": 0.0, "i2": 0.2, "i3": 0.3, "i5": 0.5}
STARTS = {
    "random": "independent models",
    "identical": "identical, ties to the first",
    "noise5": "identical + 5 % noise",
}
LAST = 5  # rounds whose participants' choices are compared with the planted groups


def rows(results: Path, methods: list[str]) -> pd.DataFrame:
    """Return a row for each run of each complete seed."""
    found = []
    for seed in sorted(results.glob("fashion-balanced/seed*"), key=lambda p: int(p.name[4:])):
        folders = [seed / "methods" / name for name in methods]
        if not all((folder / "manifest.json").exists() for folder in folders):
            continue
        partition = pd.read_parquet(seed / "partition.parquet", columns=["client", "true_cluster"])
        groups = partition.drop_duplicates("client").set_index("client")["true_cluster"]
        found += [run(folder, groups) | {"seed": int(seed.name[4:])} for folder in folders]
    return pd.DataFrame(found)


def run(folder: Path, groups: pd.Series) -> dict[str, object]:
    """Return what a run's name says, its final test accuracy, and how well the last choices fit the planted groups."""
    history = pd.read_parquet(folder / "history.parquet")
    last = history[(history["round"] == history["round"].max()) & (history["split"] == "test")]
    clusters = pd.read_parquet(folder / "clusters.parquet")
    chosen = clusters[clusters["participated"] & (clusters["round"] > clusters["round"].max() - LAST)]
    match = re.fullmatch(r"(?:(random|identical|noise5)-b(\d)|(fedavg))-(?:(i\d)-)?(?:u(\d)|exact)", folder.name)
    if match is None:
        raise SystemExit(f"{folder.name}: not a method of {STUDY.name}")
    start, minimum, _, identifiers, updates = match.groups()
    return {
        "method": folder.name,
        "start": start or "fedavg",
        "minimum": int(minimum or 0),
        "identifier_noise": NOISE[identifiers or "i0"],
        "update_noise": int(updates or 0),  # in units of z c
        "accuracy": last["correct"].sum() / last["n"].sum(),
        "clustering_accuracy": clustering_accuracy(groups[chosen["client"]].to_numpy(), chosen["cluster"].to_numpy()),
    }


def line(axes: Axes, table: pd.DataFrame, style: dict[str, object]) -> None:
    """Draw the mean over seeds [seed x identifier noise], and from the smallest to the largest value."""
    shift = {"-": -0.006, "--": 0.006}[str(style["linestyle"])]
    mean = table.mean()
    reach = [mean - table.min(), table.max() - mean]
    axes.errorbar(table.columns + shift, mean, reach, capsize=2, markersize=4, linewidth=1.2, elinewidth=0.8, **style)


def draw(found: pd.DataFrame) -> None:
    """Write the figure: a column for each start; gains at equal noise, at equal printed budget, and the clustering."""
    cells = found[(found["start"] != "fedavg") & (found["update_noise"] > 0)]
    wide = cells.pivot_table(
        index="seed",
        columns=["start", "minimum", "update_noise", "identifier_noise"],
        values=["accuracy", "clustering_accuracy"],
    )
    seeds = found["seed"].nunique()
    figure, axes = canvas.grid(10, 8.4, rows=3, columns=3, sharex=True, sharey="row")
    for column, (start, title) in enumerate(STARTS.items()):
        scores, clustering = (wide[name][start] for name in ("accuracy", "clustering_accuracy"))
        for colour, minimum in zip(canvas.COLOURS, (0, 4, 8), strict=False):
            for dash, updates in (("-", 1), ("--", 2)):
                style = {"color": colour, "linestyle": dash, "marker": canvas.MARKERS[minimum // 4]}
                named = style | {"label": f"B = {minimum}, noise {'' if updates == 1 else '2 '}z c"}
                line(axes[2, column], 100 * clustering[minimum][updates], named)
                if minimum:
                    line(axes[0, column], 100 * (scores[minimum][updates] - scores[0][updates]), named)
            if minimum:
                line(
                    axes[1, column],
                    100 * (scores[minimum][2] - scores[0][1]),
                    style | {"label": None},
                )
        axes[0, column].set_title(title)
        axes[2, column].set_xlabel("noise on identifiers (standard deviation)")
        axes[2, column].set_xticks(list(NOISE.values()))
    for row, label in enumerate(
        (
            "accuracy, B minus IFCA,\nequal noise (points)",
            "accuracy, B at 2 z c minus\nIFCA at z c (points)",
            f"clustering accuracy,\nlast {LAST} rounds (%)",
        )
    ):
        axes[row, 0].set_ylabel(label)
        for cell in axes[row] if row < 2 else ():
            cell.axhline(0, color="#555555", linewidth=0.8)
    figure.suptitle(f"Nothing here is private. Means, and smallest to largest, of {seeds} seeds", fontsize=9)
    handles, labels = axes[2, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    canvas.save(figure, HERE, "rr-start")


def main() -> None:
    """Read, write the table, draw."""
    results = Path(sys.argv[1] if len(sys.argv) > 1 else "results/rr_start")
    found = rows(results, list(yaml.safe_load(STUDY.read_text(encoding="utf-8"))["methods"]))
    if found.empty:
        raise SystemExit(f"{results} has no complete seed; run the study first, see {STUDY.name}")
    found.round(6).to_csv(HERE / "rr-start.csv", index=False, lineterminator="\n")
    draw(found)


if __name__ == "__main__":
    main()
