"""The page's part on scores for a federation: scores, sweeps, measures, costs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd

from ..clustering.distances import METRICS
from ..metrics import LEVEL
from . import canvas, figures, measures, tables, words
from .content import COUNT, MEGABYTES, ONE_DIGIT, Content, as_text, listing, number
from .section import Section

SPAN = f"{LEVEL:.0%} interval"
BEHIND = f"minus the best ({LEVEL:.0%})"


def scores(section: Section) -> Content:
    """Return the scores of all methods."""
    table, columns = section.ranking, {}
    for name, title in (("accuracy", "accuracy"), ("loss", "loss"), ("ari", "adjusted Rand index")):
        if table[f"{name}_mean"].notna().any():
            columns[title] = [words.value(row, name) for row in table.to_dict("records")]
    shown = table[["method", "seeds"]].assign(**columns, clusters=table["clusters_mean"])
    if table[tables.TO_BEST].notna().any(axis=None):
        ends = (table[name] for name in tables.TO_BEST[1:])
        columns[BEHIND] = [*_spans(section, ".1f" if section.percent else ".3g", *ends)]
        shown[BEHIND] = columns[BEHIND]
    found: Content = {"table": listing(shown, dict.fromkeys(columns, as_text) | {"clusters": ONE_DIGIT})}
    found["to_best"] = BEHIND in columns
    found["seen"] = [*seen(section), *fewer(section)]
    found["missing"] = [m for m in table["method"] if m not in set(section.scored["method"])]
    if len(section.scored):
        stds = section.scored.set_index("method")[f"{section.measure}_std"]
        seeds = section.own["scores"].pivot(index="method", columns="seed", values=section.measure)
        scale = canvas.factor(section.measure)
        figure = figures.spreads(scale * seeds.loc[stds.index], scale * stds, section.axis)
        found["figure"] = section.figure(figure, "scores", f"{section.axis} of each method, sorted")
    return found


def seen(section: Section) -> Iterator[str]:
    """Yield sentences about test samples that affected the models scored on them."""
    names = []
    for method in section.settings["methods"]:
        clustering = section.source.clustering(section.federation, method)
        if clustering is not None:
            block = section.settings["distances"][section.settings["clusterings"][clustering]["distance"]]
            names += [method] * (block["data"] != "train" and METRICS.input(block["metric"]) == "losses")
    if names:
        yield f"Test samples had a part in the clusters of {', '.join(names)}: distances are of losses on them, too."
    if section.settings["score"]["evaluation"] == "newcomer":
        partition = section.source.frame(section.federation, section.seed, "partition.partition")
        newcomers = partition[partition["role"] == "newcomer"]
        every, trained = newcomers["client"], newcomers.loc[newcomers["split"] == "train", "client"]
        if blind := every.nunique() - trained.nunique():
            yield (
                f"Of {every.nunique()} newcomers {blind} have no training samples: the losses on the very test samples "
                "that they are scored on choose their model."
            )


def fewer(section: Section) -> Iterator[str]:
    """Yield a sentence about methods that are scored on fewer clients than others."""
    if listed := words.fewer(section.ranking.to_dict("records"), section.settings["score"]):
        yield (
            f"Scored on fewer clients than other methods, mean over seeds: {', '.join(listed)}. The others have no "
            "model of the method yet, because they never took part or never sent what it needs; some of a difference "
            "may be theirs."
        )


def differences(section: Section) -> Content | None:
    """Return differences from the baseline with the same seed; None without one."""
    table = section.own["differences"].dropna(subset="difference")
    if table.empty:
        return None
    scale = canvas.factor(section.measure)
    wide = scale * table.pivot(index="method", columns="seed", values="difference")
    wide = wide.loc[[m for m in section.ranking["method"] if m in wide.index]]
    mean, low, high = (section.ranking.set_index("method").loc[wide.index, name] for name in tables.DIFFERENCE)
    stds = wide.agg(tables.spread, axis=1, ddof=section.settings["score"]["ddof"])
    above = (wide > 0).sum(axis=1).astype(str) + " of " + wide.count(axis=1).astype(str)
    seeds = wide.rename(columns="seed {}".format)
    digits = ".2f" if section.percent else ".4g"
    signed, plain = (number(f"{{:{sign}{digits}}}") for sign in ("+", ""))
    spans = [*_spans(section, digits, low, high)]
    shown = pd.DataFrame({"mean": scale * mean, SPAN: spans, "std": stds, "above zero": above}).join(seeds)
    formats = dict.fromkeys(["mean", *seeds], signed) | {SPAN: as_text, "std": plain}
    unit = "points" if section.percent else "mean per sample"
    axis = f"{section.label} minus that of {section.baseline}, same seed ({unit})"
    count = int(wide.count(axis=1).max())
    return {
        "figure": section.figure(figures.spreads(wide, stds, axis, zero=True), "differences", axis),
        "table": listing(shown.reset_index(), formats),
        "percent": section.percent,
        "seeds": count,
        "by_chance": f"{(1 - LEVEL) * len(wide):.2g}",
        "chance": f"{2.0 ** (1 - count):.2g}",  # that all seeds are on the same side of zero
    }


def _spans(section: Section, digits: str, low: pd.Series, high: pd.Series) -> Iterator[str]:
    """Yield intervals of differences as text, of accuracies in points; a dash where there is none."""
    signed = number(f"{{:+{digits}}}", canvas.factor(section.measure))
    for ends in zip(low, high, strict=True):
        yield "–" if any(map(pd.isna, ends)) else " to ".join(map(signed, ends))


def sweeps(section: Section) -> list[Content]:
    """Return the trials' scores of each swept method."""
    return [_sweep(section, str(name), table) for name, table in section.own["sweeps"].groupby("method", sort=False)]


def _sweep(section: Section, method: str, trials: pd.DataFrame) -> Content:
    """Return a swept method's trials as a table, and also as a figure if a single number is swept."""
    measure = tables.measure(trials)
    label = words.label(measure, section.settings["score"] | {"split": "validation"})
    values = pd.DataFrame(list(trials["values"].map(json.loads)), index=trials.index, dtype=object)
    texts = values.map(lambda value: value if isinstance(value, str) else json.dumps(value))
    columns = {
        "trial": trials["trial"].astype(str) + np.where(trials["chosen"], " (chosen)", ""),
        **texts,
        label: [words.value(row, measure) for row in trials.to_dict("records")],
        "seeds": trials["seeds"],
        "MB": trials["bytes_down"] + trials["bytes_up"],
    }
    chosen = texts[trials["chosen"]].iloc[0]
    found: Content = {
        "method": method,
        "table": listing(pd.DataFrame(columns), {"MB": MEGABYTES}),
        "trials": len(trials),
        "chosen": ", ".join(f"{key} {text}" for key, text in chosen.items()),
        "megabytes": MEGABYTES(columns["MB"].sum()),
        "label": label,
    }
    key, *others = values
    if not others and all(type(value) in (int, float) for value in values[key]):
        axis = section.in_units(label)
        figure = figures.sweep(trials.assign(value=values[key].astype(float)), key, measure, axis)
        found["figure"] = section.figure(figure, f"sweep-{method}", f"{axis} of {method} by {key}")
    return found


def _lines(section: Section) -> pd.DataFrame:
    """Return the curves of methods that have a score in any round, including rounds in which a seed has none."""
    table = section.own["curves"]
    return table[table.groupby("method")[section.measure].transform("count") > 0]


def curves(section: Section) -> Content | None:
    """Return scores by round; None if there are none."""
    table = _lines(section)
    if table.empty:
        return None
    warmups: dict[int, list[str]] = {}
    for name in section.settings["methods"]:
        clustering = section.source.clustering(section.federation, name)
        if clustering is not None:
            distance = section.settings["clusterings"][clustering]["distance"]
            warmup = section.settings["warmups"][section.settings["distances"][distance]["warmup"]]
            warmups.setdefault(warmup["rounds"], []).append(name)
    figure = figures.curves(table, section.style, warmups, section.measure, section.any_round)
    return {
        "figure": section.figure(figure, "curves", f"{section.any_round} by communication round"),
        "warmups": bool(warmups),
    }


def of_measures(section: Section) -> list[Content]:
    """Return a table for each kind of measure, without columns in which no method has a value."""
    known = section.own["measures"].set_index("method").drop(columns=["federation", "seed"])
    for name in known.filter(regex=f"{measures.PARTICIPANTS}$"):
        if known[name].equals(known[name.removesuffix(measures.PARTICIPANTS)]):  # everyone took part
            known = known.drop(columns=name)
    known = known.dropna(axis="columns", how="all")
    kinds = (measures.CLUSTERS, measures.CLIENTS, measures.rounds(section.settings["score"]))
    shown = [{n: how for n, how in kind.items() if n in known} for kind in kinds]
    return [_measured(section, known, kind) for kind in shown if kind]


def _measured(section: Section, known: pd.DataFrame, shown: dict[str, measures.Shown]) -> Content:
    table = pd.DataFrame({"method": section.ranking["method"]})
    seeds, ddof = known.groupby(level="method"), section.settings["score"]["ddof"]
    for name, (title, factor, form, _) in shown.items():
        write = number(f"{{:{form}}}", factor)
        # NaN if a seed has none, as a mean of the others would be biased; CLoVE and FedGWC also print a dash.
        mean = seeds[name].agg(lambda values: values.mean(skipna=False))
        std = seeds[name].agg(tables.spread, ddof=ddof)
        texts = {m: write(mean[m]) + (f" ± {write(std[m])}" if pd.notna(std[m]) else "") for m in mean.index}
        table[title] = table["method"].map(texts)
    titles = {title: meaning for title, _, _, meaning in shown.values()}
    return {"table": listing(table, dict.fromkeys(titles, as_text)), "meanings": titles}


def bad(section: Section) -> Content | None:
    """Return how often clients were faulty, and the score of the others; None if there were no faults."""
    own = section.own["faults"]
    counts = ["dropped", "straggled", "excluded", "corrupt", "flipped", "left_out"]
    counts = [name for name in counts if own[name].any()]
    if not counts:
        return None
    methods, ddof = own.groupby("method"), section.settings["score"]["ddof"]
    names = [f"{section.measure}_mean", f"{section.measure}_std"]
    found = methods[section.measure].agg(["mean", lambda values: tables.spread(values, ddof)]).set_axis(names, axis=1)
    others = {row.name: words.value(row, section.measure) for _, row in found.iterrows()}
    table = methods[counts].mean().loc[section.ranking["method"]].rename(columns={"left_out": "left out"})
    table[section.measure] = [words.value(row, section.measure) for row in section.ranking.to_dict("records")]
    table[f"{section.measure} of the others"] = table.index.map(others)
    return {"table": listing(table.reset_index(), dict.fromkeys(table.columns[:-2], ONE_DIGIT))}


def cost(section: Section) -> Content:
    """Return the methods' costs, and the score against them."""
    titles = {"method": "method", "bytes_down": "down (MB)", "bytes_up": "up (MB)", "local_steps": "local steps"}
    titles |= {"client_forwards": "forward passes", "server_seconds": "server (s)", "seconds": "time (s)"}
    forms = (MEGABYTES, MEGABYTES, COUNT, COUNT, number("{:,.2f}"), ONE_DIGIT)
    formats = dict(zip(list(titles.values())[1:], forms, strict=True))
    more = section.own["scores"].groupby("method")[["client_forwards", "server_seconds"]].mean()
    costs = section.ranking.join(more, on="method")
    found: Content = {"table": listing(costs[list(titles)].rename(columns=titles), formats)}
    curves = _lines(section)
    if curves[tables.SPENT].any(axis=None):
        figure = figures.cost(curves, section.style, section.measure, section.any_round)
        found["figure"] = section.figure(figure, "cost", f"{section.any_round} against what it cost")
    return found
