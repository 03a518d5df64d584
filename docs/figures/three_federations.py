"""Make docs/three-federations.md's table and picture: python docs/figures/three_federations.py RESULTS [RESULTS ...].

RESULTS is a folder with the results of the studies ``workflow/studies/reduced/{rotated-mnist,label-skew,
concept-shift}.yaml``, each with ``common.yaml``, and their reports; of several folders each has some of the methods,
and the last one that has a method counts. The table goes between the page's marks. Its seconds are those of
seconds_of_methods.py on rotated MNIST.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from clusterfl.report import canvas

DOCS = Path(__file__).resolve().parent.parent
PAGE, PICTURE = DOCS / "three-federations.md", DOCS / "figures/three-federations.svg"
SECONDS, TIMED = DOCS / "figures/seconds-of-methods.csv", "rotated-mnist"
FEDERATIONS = {"rotated-mnist": "rotated MNIST", "label-skew": "label skew", "concept-shift": "concept shift"}
# Samples that clients train on in FedAvg's rounds: clients x images x epochs x rounds.
SAMPLES = {
    "rotated-mnist": 24 * 100 * 5 * 15,
    "label-skew": 25 * 250 * 1 * 20,
    "concept-shift": 20 * 500 * 1 * 15,
}
PASSES = 3  # that a sample's step counts as: forward, and about two backward
ADAPTED = "per-fedavg"  # whose model is scored after a step on each client's training data
COLUMNS = ["accuracy", "ARI", "worst", "MB", "work"]
FOUND = ("not found, or none", "groups found, or known (ARI above .95)")
BEGIN, END = "<!-- table -->", "<!-- end of the table -->"


def read(results: Path, federation: str) -> pd.DataFrame:
    """Return a study's methods with the columns accuracy, sd, ari, worst (in percent), megabytes, steps, forwards."""
    tables = results / f"reduced-{federation}" / "tables"
    summary = pd.read_csv(tables / "summary.csv").set_index("method")
    measures = pd.read_csv(tables / "measures.csv").groupby("method")[["ari", "worst_client"]].mean()
    scores = pd.read_csv(tables / "scores.csv").groupby("method")[["local_steps", "client_forwards"]].mean()
    found = pd.DataFrame({
        "accuracy": 100 * summary["accuracy_mean"],
        "sd": 100 * summary["accuracy_std"],
        "ari": measures["ari"],
        "worst": 100 * measures["worst_client"],
        "megabytes": (summary["bytes_up"] + summary["bytes_down"]) / 1e6,
        "steps": scores["local_steps"],
        "forwards": scores["client_forwards"],
    })  # fmt: skip
    histories = sorted(results.glob(f"reduced-{federation}/{federation}/seed*/methods/{ADAPTED}/history.parquet"))
    if histories:
        found.loc[ADAPTED, ["accuracy", "sd", "worst"]] = _adapted([pd.read_parquet(path) for path in histories])
    return found.loc[summary.index]


def _adapted(histories: list[pd.DataFrame]) -> list[float]:
    """Return mean and standard deviation over seeds of the accuracy after adaptation, and the worst client's mean."""
    last = [one[(one["round"] == one["round"].max()) & (one["split"] == "test")] for one in histories]
    own = [one[one["evaluation"] == "personalised"] for one in last]
    accuracies = pd.Series([one["correct"].sum() / one["n"].sum() for one in own])
    worst = pd.Series([(one["correct"] / one["n"]).min() for one in own])
    return [100 * accuracies.mean(), 100 * accuracies.std(), 100 * worst.mean()]


def whole(results: tuple[Path, ...], federation: str) -> pd.DataFrame:
    """Return the methods of all folders; `work` is what clients compute, by what FedAvg's training takes."""
    found = pd.concat([read(folder, federation) for folder in results])
    found = found[~found.index.duplicated(keep="last")]
    if federation == TIMED:
        found["seconds"] = pd.read_csv(SECONDS).set_index("method")["seconds"]
    passes = found["forwards"] / (PASSES * SAMPLES[federation])
    return found.assign(work=found["steps"] / found.loc["fedavg", "steps"] + passes)


def table(found: dict[str, pd.DataFrame]) -> str:
    """Return the table of the page, best mean accuracy first."""
    order = pd.concat([one["accuracy"] for one in found.values()], axis=1).mean(axis=1).sort_values(ascending=False)
    columns = {name: COLUMNS + (["s"] if "seconds" in one else []) for name, one in found.items()}
    titles = "".join(f" {FEDERATIONS[name]} |" + " |" * (len(own) - 1) for name, own in columns.items())
    names = " | ".join(column for own in columns.values() for column in own)
    lines = [f"| |{titles}", "|---" * (titles.count("|") + 1) + "|", f"| **method** | {names} |"]
    for method in order.index:
        cells = [f"{_accuracy(one.loc[method])} | {_cells(method, one.loc[method])}" for one in found.values()]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _accuracy(row: pd.Series) -> str:
    return f"{row['accuracy']:.1f} ± {row['sd']:.1f}"


def _cells(method: str, row: pd.Series) -> str:
    ari = "(known)" if method == "oracle" else f"{round(row['ari'], 2) + 0:.2f}"
    cells = f"{ari} | {row['worst']:.0f} | {row['megabytes']:,.0f} | {row['work']:.1f}"
    return f"{cells} | {row['seconds']:.1f}" if "seconds" in row else cells


def picture(found: dict[str, pd.DataFrame]) -> None:
    """Draw each method's accuracy in the federations, with the sample standard deviation over seeds."""
    order = pd.concat([one["accuracy"] for one in found.values()], axis=1).mean(axis=1).sort_values()
    figure, panels = canvas.grid(9.2, 0.9 + 0.2 * len(order), 1, len(found))
    for axes, (name, one) in zip(panels[0], found.items(), strict=True):
        own = one.loc[order.index]
        found_groups = own["ari"] > 0.95
        for colour, chosen in ((canvas.COLOURS[0], found_groups), (canvas.COLOURS[1], ~found_groups)):
            places = [place for place, yes in enumerate(chosen) if yes]
            axes.errorbar(
                own["accuracy"][chosen], places, xerr=own["sd"][chosen], fmt="o", markersize=4, linewidth=1,
                color=colour, label=FOUND[colour == canvas.COLOURS[0]],
            )  # fmt: skip
        axes.axvline(own["accuracy"]["fedavg"], color="#999999", linewidth=0.8)
        axes.axvline(own["accuracy"]["oracle"], color="#999999", linewidth=0.8, linestyle="--")
        axes.set(title=FEDERATIONS[name], xlabel="test accuracy, %", yticks=range(len(order)), ylim=(-0.6, len(order)))
        axes.set_yticklabels(order.index if axes is panels[0, 0] else [""] * len(order), fontsize=8)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    canvas.legend(figure, "outside lower center", handles=handles, labels=labels, ncols=2)
    figure.savefig(PICTURE)


def main(*results: Path) -> None:
    """Write both."""
    found = {name: whole(results, name) for name in FEDERATIONS}
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    picture(found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
