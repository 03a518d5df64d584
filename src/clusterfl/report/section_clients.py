"""The page's part on clients' scores: each client by name if there are few, else the distribution.

In both cases the worst clients of each method are named, and ``tables/clients.csv`` has all of them.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from . import canvas, figures
from .content import COUNT, Content, listing, number
from .section import Section

# Up to this number of clients, a row for each, about one and a half screens, is readable; the federation's figure
# changes from bubbles to stripes at the same number.
NAMED = 60
WORST = 10  # the clients of each method that are named if there are more
LEVELS = {"10 %": 0.1, "25 %": 0.25, "median": 0.5, "75 %": 0.75}


def clients(section: Section) -> Content | None:
    """Return each client's score by method; None if there are none."""
    own = section.own["clients"]
    own = own[(own["seed"] == section.seed) & np.isfinite(own[section.measure].astype(float))]
    if own.empty:
        return None
    methods = [name for name in section.scored["method"] if (own["method"] == name).any()]
    own = own.assign(score=canvas.factor(section.measure) * own[section.measure])
    count = own["client"].nunique()
    few = count <= NAMED
    form = number("{:.1f}" if section.percent else "{:.4g}")
    return {
        "few": few,
        "count": f"{count:,}",
        "figure": section.figure(
            (_by_name if few else _by_method)(section, own, methods),
            "clients",
            f"{section.axis} of {'each client' if few else f'{count:,} clients'}, seed {section.seed}",
        ),
        "spread": listing(_spread(section, own, methods), {"clients": COUNT} | dict.fromkeys(_COLUMNS, form)),
        "lowest": [_lowest(section, own[own["method"] == name], name, few) for name in methods],
    }


_COLUMNS = ("worst", "worst tenth, mean", *LEVELS, "best")


def _spread(section: Section, own: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    """Return the distribution of each method's scores over its clients, from the worst to the best.

    The 10 % level is the score than which a tenth of the clients aren't better, by linear interpolation.
    """
    rows = []
    for name in methods:
        scores = _worst_first(section, own[own["method"] == name])["score"]
        values = [scores.iloc[0], scores.iloc[: math.ceil(len(scores) / 10)].mean()]
        levels = LEVELS.values() if section.percent else [1 - level for level in LEVELS.values()]
        values += [scores.quantile(level) for level in levels] + [scores.iloc[-1]]
        rows.append([name, len(scores), *values])
    return pd.DataFrame(rows, columns=["method", "clients", *_COLUMNS])


def _worst_first(section: Section, rows: pd.DataFrame) -> pd.DataFrame:
    """Return clients ordered by score, the worst first, and by id among equal scores."""
    return rows.sort_values(["score", "client"], ascending=[section.percent, True])


def _lowest(section: Section, rows: pd.DataFrame, method: str, few: bool) -> Content:
    """Return the clients of one method, the worst first: all if there are few, else only the worst."""
    shown = _worst_first(section, rows).head(len(rows) if few else WORST)
    table = pd.DataFrame({"client": shown["client"].map(section.names.client)})
    if shown["group"].notna().any():
        table["planted group"] = [None if pd.isna(k) else section.names.group(int(k)) for k in shown["group"]]
    table["cluster"] = shown["cluster"].astype("Int64").where(shown["cluster"] >= 0)
    unit = f"{section.measure} (%)" if section.percent else section.measure
    table["samples"], table[unit] = shown["n"], shown["score"]
    form = number("{:.1f}" if section.percent else "{:.4g}")
    whole = f"all {len(rows):,} clients, worst first" if few else f"the {len(shown)} worst of {len(rows):,} clients"
    return {"method": method, "text": whole, "table": listing(table, {"samples": COUNT, unit: form})}


def _by_name(section: Section, own: pd.DataFrame, methods: list[str]) -> Figure:
    """Draw a row for each client, by planted group."""
    wide = own.pivot(index="client", columns="method", values="score")[methods]
    groups = own.groupby("client")["group"].first()
    order = np.lexsort((wide.index, groups.fillna(-1).to_numpy(int)))
    wide, groups = wide.iloc[order], groups.iloc[order]
    labels = [section.names.client(client) for client in wide.index]
    parts = {int(k): section.names.group(int(k)) for k in groups.dropna().unique()}
    return figures.by_client(wide, groups.fillna(-1).to_numpy(int), labels, parts, section.axis, section.style)


def _by_method(section: Section, own: pd.DataFrame, methods: list[str]) -> Figure:
    """Draw a row for each method, with a dot for each client."""
    # Clients without a planted group, such as newcomers, are drawn as group 0.
    groups = own.groupby("client")["group"].first().fillna(0).astype(int)
    values = {name: own[own["method"] == name].set_index("client")["score"] for name in methods}
    called = section.names.group if section.names.groups else str
    return figures.strip(values, groups, section.axis, called)
