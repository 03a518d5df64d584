"""The page: one HTML file with all its figures inside, which asks for nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import yaml
from markupsafe import Markup
from matplotlib.figure import Figure

from . import figures, tables, words

ROOM = 2_400_000  # characters of figures on the page; further ones are only in the folder
Tables = Mapping[str, pd.DataFrame]
Format = Callable[[Any], str]


def number(form: str, factor: float = 1) -> Format:
    """Return a function that writes numbers, and a dash where there is none."""
    return lambda x: "–" if pd.isna(x) else form.format(factor * x)


PERCENT, DIGITS = number("{:.1f}", 100), number("{:.4g}")
COUNT, MEGABYTES, RATIO = number("{:,.0f}"), number("{:,.1f}", 1e-6), number("{:.2f}")


def render(source: tables.Source, found: Tables, folder: Path) -> str:
    """Return the page; figures are also written into `folder`."""
    settings = source.settings
    album = _Album(folder)
    parts = []
    for federation in settings["federations"]:
        own = {n: t[t["federation"] == federation] for n, t in found.items() if "federation" in t}
        parts.append(_Section(source, federation, own, album).content())
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("report.html.j2").render(
        title=settings["title"] or settings["study"],
        study=settings["study"],
        seeds=settings["seeds"]["runs"],
        parts=parts,
        score=settings["score"],
        settings=yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=100),
        versions=listing(found["versions"]),
        jobs=listing(_plain(found["jobs"]), {"seconds": number("{:.1f}")}),
    )


def listing(table: pd.DataFrame, formats: Mapping[str, Format] = {}) -> dict[str, Any]:  # noqa: B006
    """Return a table as the template takes it: columns with their alignment, and rows of text."""
    texts = [[formats.get(str(c), _text)(x) for x in table[c]] for c in table]
    numeric = [str(c) in formats or pd.api.types.is_numeric_dtype(table[c]) for c in table]
    return {"columns": list(zip(map(str, table), numeric, strict=True)), "rows": list(zip(*texts, strict=True))}


def _text(value: Any) -> str:
    return "–" if pd.isna(value) else str(value)


def _plain(jobs: pd.DataFrame) -> pd.DataFrame:
    dates = pd.to_datetime(jobs["date"]).dt.strftime("%Y-%m-%d %H:%M:%S UTC")
    return jobs.assign(date=dates, seed=jobs["seed"].astype("Int64"))


class _Album:
    """Saves figures and gives them to the page while there is room."""

    def __init__(self, folder: Path):
        self.folder, self.used = folder, 0

    def add(self, figure: Figure, name: str, text: str) -> dict[str, Any]:
        svg = figures.save(figure, self.folder, name)
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # the same in every figure, and nothing refers to them
        fits = self.used + len(svg) <= ROOM
        self.used += len(svg) if fits else 0
        return {"svg": Markup(svg) if fits else None, "file": f"figures/{name}.svg", "text": text}


class _Section:
    """What the page shows of one federation."""

    def __init__(self, source: tables.Source, federation: str, own: Tables, album: _Album):
        self.source, self.settings, self.federation, self.own, self.album = source, source.settings, federation, own, album
        self.measure = tables.measure(own["summary"])
        self.summary = own["summary"].sort_values(f"{self.measure}_mean", ascending=self.measure == "loss", na_position="last", kind="stable")  # fmt: skip
        self.seed = self.settings["seeds"]["runs"][0]
        self.label = words.label(self.measure, self.settings["score"])
        self.axis = f"{self.label} ({'%' if self.measure == 'accuracy' else 'mean per sample'})"
        best = [*([self.settings["baseline"]] if self.settings["baseline"] else []), *self.summary["method"]]
        self.style = figures.styles(list(self.settings["methods"]), list(dict.fromkeys(best)))

    def content(self) -> dict[str, Any]:
        finding = words.headline(self.own["summary"].to_dict("records"), self.settings)
        return {
            "name": self.federation, "dataset": self.settings["federations"][self.federation]["dataset"],
            "finding": finding, "seed": self.seed, "baseline": self.settings["baseline"], "label": self.label,
            "scores": self._scores(), "differences": self._differences(), "curves": self._curves(),
            "distances": self._distances(), "clusters": self._clusters(), "cost": self._cost(), "samples": self._samples(),
        }  # fmt: skip

    def _figure(self, figure: Figure, kind: str, text: str) -> dict[str, Any]:
        return self.album.add(figure, f"{kind}-{self.federation}", text)

    def _scores(self) -> dict[str, Any]:
        table, columns, formats = self.summary, {"method": self.summary["method"], "seeds": self.summary["seeds"]}, {}
        for name, unit, form in (("accuracy", " (%)", PERCENT), ("loss", "", DIGITS), ("ari", "", RATIO)):
            if table[f"{name}_mean"].notna().any():
                title = "adjusted Rand index" if name == "ari" else name
                for statistic, words_ in (("mean", f"{title}{unit}"), ("std", f"std of {name if name == 'ari' else title}")):
                    columns[words_], formats[words_] = table[f"{name}_{statistic}"], form
        columns["clusters"], formats["clusters"] = table["clusters_mean"], number("{:.1f}")
        drawn = self._scored()
        figure = figures.scores(drawn, self.own["scores"], self.measure, self.axis)
        missing = list(table.loc[table[f"{self.measure}_mean"].isna(), "method"])
        return {"figure": self._figure(figure, "scores", f"{self.axis} of each method, sorted") if len(drawn) else None,
                "table": listing(pd.DataFrame(columns), formats), "missing": missing}  # fmt: skip

    def _scored(self) -> pd.DataFrame:
        return self.summary[self.summary[f"{self.measure}_mean"].notna()]

    def _differences(self) -> dict[str, Any] | None:
        table = self.own["differences"].dropna(subset="difference")
        if table.empty:
            return None
        factor, unit = (100, "points") if self.measure == "accuracy" else (1, "")
        wide = table.pivot(index="method", columns="seed", values="difference")
        order = [m for m in self.summary["method"] if m in wide.index]
        wide = wide.loc[order]
        stds = wide.agg(tables.spread, axis=1, ddof=self.settings["score"]["ddof"])
        text = {"method": order, "mean": wide.mean(axis=1), "std": stds}
        text["above zero"] = [f"{int((row > 0).sum())} of {int(row.count())}" for _, row in wide.iterrows()]
        shown = pd.DataFrame(text).assign(**{f"seed {s}": wide[s] for s in wide})
        signed = number("{:+.2f}" if unit else "{:+.4g}", factor)
        formats = {c: signed for c in shown if c not in ("method", "above zero", "std")}
        formats["std"] = number("{:.2f}" if unit else "{:.4g}", factor)
        axis = f"{self.label} minus that of {self.settings['baseline']}, same seed ({unit or 'mean per sample'})"
        figure = figures.differences(table, order, stds, self.measure, axis)
        count = int(wide.count(axis=1).max())
        return {"figure": self._figure(figure, "differences", axis), "table": listing(shown, formats), "unit": unit,
                "seeds": count, "chance": f"{2.0 ** (1 - count):.2g}", "better": "above" if unit else "below"}  # fmt: skip

    def _curves(self) -> dict[str, Any] | None:
        table = self.own["curves"].dropna(subset=self.measure)
        if table.empty:
            return None
        warmups: dict[int, list[str]] = {}
        for name, method in self.settings["methods"].items():
            if method["clustering"] is not None:
                distance = self.settings["clusterings"][method["clustering"]]["distance"]
                warmup = self.settings["warmups"][self.settings["distances"][distance]["warmup"]]
                warmups.setdefault(warmup["rounds"], []).append(name)
        axis = self.axis.removeprefix("best-round ")
        figure = figures.curves(table, self.style, warmups, self.measure, axis)
        return {"figure": self._figure(figure, "curves", f"{axis} by communication round"), "warmups": bool(warmups)}

    def _distances(self) -> list[dict[str, Any]]:
        found = []
        for name in self.source.clusterings():
            block = self.settings["clusterings"][name]["distance"]
            metric = self.settings["distances"][block]["metric"]
            table = self.source.frame(self.federation, self.seed, f"distance/{block}.distance")
            own = self._members()
            own = own[(own["kind"] == "clustering") & (own["name"] == name)].set_index("client").loc[table["client"]]
            groups = own["group"].to_numpy(int) if own["group"].notna().all() else None
            matrix = np.stack(table["distance"].to_list())
            figure = figures.heat_map(matrix, own["cluster"].to_numpy(), groups, f"distance '{block}' ({metric})")
            text = f"Distance '{block}' (metric {metric}) between clients, clustering '{name}', seed {self.seed}"
            found.append(self._figure(figure, f"distance-{name}", text))
        return found

    def _members(self) -> pd.DataFrame:
        table = self.own["members"]
        return table[table["seed"] == self.seed]

    def _clusters(self) -> dict[str, Any] | None:
        methods = self.settings["methods"]
        table = self._members()
        looks = [k == "clustering" or methods[n]["method"] not in words.FIXED for k, n in zip(table["kind"], table["name"], strict=True)]  # fmt: skip
        table = table[looks]
        if table.empty:
            return None
        table = table.assign(name=[f"{k} {n}" for k, n in zip(table["kind"], table["name"], strict=True)])
        names = list(dict.fromkeys(table["name"]))
        text = f"Cluster of each client, by planted group, seed {self.seed}"
        counts = []
        for name in names:
            counted = tables.contingency(table[table["name"] == name])
            counted.columns = [f"cluster {k}" for k in counted.columns]
            counted.insert(0, "planted group", [str(g) for g in counted.index])
            counts.append({"name": name, "table": listing(counted)})
        return {"figure": self._figure(figures.clusters(table, names), "clusters", text), "counts": counts}

    def _cost(self) -> dict[str, Any]:
        table = self.summary
        shown = pd.DataFrame({"method": table["method"], "down (MB)": table["bytes_down"], "up (MB)": table["bytes_up"],
                              "local steps": table["local_steps"], "time (s)": table["seconds"]})  # fmt: skip
        formats = {"down (MB)": MEGABYTES, "up (MB)": MEGABYTES, "local steps": COUNT, "time (s)": number("{:.1f}")}
        drawn = self._scored()
        figure = figures.cost(drawn, self.style, self.measure, self.axis) if len(drawn) else None
        text = f"{self.axis} against bytes communicated"
        return {"figure": self._figure(figure, "cost", text) if figure else None, "table": listing(shown, formats)}

    def _samples(self) -> dict[str, Any]:
        table = self.own["samples"]
        table = table[table["seed"] == self.seed].drop(columns=["federation", "seed"])
        first = table.iloc[0]
        titles = {n: f"{n} per client" for n in ("min", "median", "max")} | {"sum": "all samples"}
        shown = table.drop(columns=["clients", "groups"]).rename(columns=titles)
        formats = {name: number("{:,.4g}") if "client" in name else COUNT for name in shown if name != "split"}
        return {"clients": int(first["clients"]), "groups": int(first["groups"]), "table": listing(shown, formats)}
