"""The page: one HTML file with all its figures inside, which asks for nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import yaml
from markupsafe import Markup
from matplotlib.figure import Figure

from . import figures, measures, plane, portrait, splitting, tables, words

TEMPLATES = Path(__file__).parent / "templates"
# The C library's where PyYAML was built with it: the same text, ten times as fast.
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
ROOM = 2_400_000  # characters of figures on the page; further ones are only in the folder
Tables = Mapping[str, pd.DataFrame]
Format = Callable[[Any], str]
Content = dict[str, Any]


def number(form: str, factor: float = 1) -> Format:
    """Return a function that writes numbers, and a dash where there is none."""
    return lambda x: "–" if pd.isna(x) else form.format(factor * x).replace("-", "−")


COUNT, ONE_DIGIT, MEGABYTES = number("{:,.0f}"), number("{:,.1f}"), number("{:,.1f}", 1e-6)


def render(source: tables.Source, found: Tables, folder: Path) -> str:
    """Return the page; figures are also written into `folder`."""
    settings, album, parts = source.settings, Album(folder), []
    for federation in settings["federations"]:
        own = {n: t[t["federation"] == federation] for n, t in found.items() if "federation" in t}
        parts.append(Section(source, federation, own, album).content())
    return _template("report.html.j2").render(
        study=settings,
        parts=parts,
        settings=as_yaml(settings),
        versions=listing(found["versions"]),
        jobs=listing(_readable(found["jobs"]), {"seconds": ONE_DIGIT}),
    )


def _template(name: str) -> jinja2.Template:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    ).get_template(name)  # fmt: skip


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML, in their order."""
    options: Any = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None, "width": 100}
    return str(yaml.dump(dict(settings), Dumper=DUMPER, **options))


def federation(shown: Content, counts: pd.DataFrame, distances: pd.DataFrame | None, images: Any, folder: Path) -> str:
    """Return the page of one federation; figures are also written into `folder`.

    Parameters
    ----------
    shown
        Name, digest, settings and other facts that the template shows.
    counts
        Samples by client, role, group, split and class.
    distances
        Between the groups' samples, if known.
    images
        What `portrait.examples` draws, or None.
    folder
        Of the figures.
    """
    album, name, pictures = Album(folder), shown["name"], None
    if images is not None:
        text = "Training samples of each planted group, label below; each image's shades are spread from black to white"
        pictures = album.add(portrait.examples(*images), f"samples-{name}", text)
    return _template("federation.html.j2").render(
        shown=shown,
        part=portrait_of(counts, album, name, distances),
        pictures=pictures,
        settings=as_yaml(shown["settings"]),
    )


def portrait_of(counts: pd.DataFrame, album: Album, name: str, distances: pd.DataFrame | None = None) -> Content:
    """Return what the macro `federation` shows."""
    groups = portrait.groups(counts)
    whole = dict.fromkeys(["min", "median", "max", "in all", "train samples", "test samples"], number("{:,g}"))
    return {
        "clients": f"{len(portrait.clients(counts)):,}",
        "groups": len(groups),
        "sizes": listing(portrait.sizes(counts), whole),
        "group_table": listing(groups, whole) if len(groups) else None,
        "distances": list(portrait.distances(counts, distances)),
        "remarks": list(portrait.remarks(counts)),
        "picture": album.add(portrait.picture(counts), f"federation-{name}", f"Classes and samples by client, {name}"),
    }


def listing(table: pd.DataFrame, formats: Mapping[str, Format] | None = None) -> Content:
    """Return a table as the template takes it: columns with their alignment, and rows of text."""
    forms = formats or {}
    texts = [[forms.get(str(c), _text)(x) for x in table[c]] for c in table]
    numeric = [str(c) in forms or pd.api.types.is_numeric_dtype(table[c]) for c in table]
    columns = list(zip(map(str, table), numeric, strict=True))
    return {"columns": columns, "rows": list(zip(*texts, strict=True))}


def _text(value: Any) -> str:
    return "–" if pd.isna(value) else str(value)


def _promise(privacy: Mapping[str, Any]) -> str:
    """Return whether what a manifest says of a method's privacy is a guarantee, and why not."""
    if privacy["accounting"] == "none":
        return "no guarantee"
    if privacy["accounting"] == "theorem-4.2":
        return "no: as printed by the paper"
    if privacy.get("not_counted"):
        return f"no: {privacy['not_counted']} isn't counted"
    return "no noise" if privacy["epsilon"] is None else "yes"


def _readable(jobs: pd.DataFrame) -> pd.DataFrame:
    dates = pd.to_datetime(jobs["date"]).dt.strftime("%Y-%m-%d %H:%M:%S UTC")
    return jobs.assign(date=dates, seed=jobs["seed"].astype("Int64"))


def _groups(members: pd.DataFrame) -> np.ndarray | None:
    """Return the planted group of each client, or None where not all have one."""
    return members["group"].to_numpy(int) if members["group"].notna().all() else None


def inlined(svg: str) -> Markup:
    """Return an SVG as a page takes it; names of groups are the same in every figure, and nothing refers to them."""
    return Markup(re.sub(r'<g id="[^"]*">', "<g>", svg[svg.index("<svg") :]))


@dataclass
class Album:
    """Saves figures and gives them to the page while there is room."""

    folder: Path
    used: int = 0

    def add(self, figure: Figure, name: str, text: str) -> Content:
        """Save a figure and return what the template shows of it."""
        svg = figures.save(figure, self.folder, name)
        svg = inlined(svg)
        fits = self.used + len(svg) <= ROOM
        self.used += len(svg) * fits
        text = text[:1].upper() + text[1:]
        return {"svg": svg if fits else None, "file": f"figures/{name}.svg", "text": text}


@dataclass
class Section:
    """What the page shows of one federation: `own` are its rows of the tables."""

    source: tables.Source
    federation: str
    own: Tables
    album: Album

    def __post_init__(self) -> None:
        self.settings: Mapping[str, Any] = self.source.on(self.federation)
        self.seed: int = self.settings["seeds"]["runs"][0]
        self.baseline: str | None = self.settings["baseline"]
        self.measure = tables.measure(self.own["summary"])
        self.percent = self.measure == "accuracy"
        self.label = words.label(self.measure, self.settings["score"])
        self.axis = self._axis(self.label)
        # A curve shows every round, whichever one the score is of.
        self.any_round = self._axis(words.label(self.measure, self.settings["score"] | {"at": "final"}))

    def content(self) -> Content:
        """Return everything, by the names that the template uses."""
        found = ("scores", "differences", "sweeps", "curves", "clients", "distances", "choices", "clusters", "losses")
        kinds = (*found, "splits", "sizes", "privacy", "measures", "bad", "cost", "samples")
        return {kind: getattr(self, f"_{kind}")() for kind in kinds} | {
            "name": self.federation,
            "dataset": self.settings["federations"][self.federation]["dataset"]["dataset"],
            "finding": words.headline(self.own["summary"].to_dict("records"), self.settings),
            "label": self.label,
            "seed": self.seed,
        }

    @cached_property
    def ranking(self) -> pd.DataFrame:
        """The summary, best method first, methods without a score last."""
        key = f"{self.measure}_mean"
        return self.own["summary"].sort_values(key, ascending=not self.percent, kind="stable")

    @property
    def scored(self) -> pd.DataFrame:
        """The rows of the ranking that have a score."""
        return self.ranking[self.ranking[f"{self.measure}_mean"].notna()]

    @cached_property
    def style(self) -> dict[str, dict[str, Any]]:
        """Each method's look, the same in every figure."""
        best = dict.fromkeys([*([self.baseline] if self.baseline else []), *self.ranking["method"]])
        return figures.styles(list(self.settings["methods"]), list(best))

    def _axis(self, label: str) -> str:
        return f"{label} ({'%' if self.percent else 'mean per sample'})"

    def _figure(self, figure: Figure, kind: str, text: str) -> Content:
        return self.album.add(figure, f"{kind}-{self.federation}", text)

    def _scores(self) -> Content:
        table, columns = self.ranking, {}
        for name, title in (("accuracy", "accuracy"), ("loss", "loss"), ("ari", "adjusted Rand index")):
            if table[f"{name}_mean"].notna().any():
                columns[title] = [words.value(row, name) for row in table.to_dict("records")]
        shown = table[["method", "seeds"]].assign(**columns, clusters=table["clusters_mean"])
        found: Content = {"table": listing(shown, dict.fromkeys(columns, _text) | {"clusters": ONE_DIGIT})}
        found["missing"] = [m for m in table["method"] if m not in set(self.scored["method"])]
        if len(self.scored):
            stds = self.scored.set_index("method")[f"{self.measure}_std"]
            seeds = self.own["scores"].pivot(index="method", columns="seed", values=self.measure)
            scale = figures.factor(self.measure)
            figure = figures.spreads(scale * seeds.loc[stds.index], scale * stds, self.axis)
            found["figure"] = self._figure(figure, "scores", f"{self.axis} of each method, sorted")
        return found

    def _differences(self) -> Content | None:
        table = self.own["differences"].dropna(subset="difference")
        if table.empty:
            return None
        wide = figures.factor(self.measure) * table.pivot(index="method", columns="seed", values="difference")
        wide = wide.loc[[m for m in self.ranking["method"] if m in wide.index]]
        stds = wide.agg(tables.spread, axis=1, ddof=self.settings["score"]["ddof"])
        above = (wide > 0).sum(axis=1).astype(str) + " of " + wide.count(axis=1).astype(str)
        seeds = wide.rename(columns="seed {}".format)
        shown = pd.concat({"mean": wide.mean(axis=1), "std": stds, "above zero": above}, axis=1).join(seeds)
        digits = ".2f" if self.percent else ".4g"
        formats = dict.fromkeys(["mean", *seeds], number(f"{{:+{digits}}}"))
        formats["std"] = number(f"{{:{digits}}}")
        unit = "points" if self.percent else "mean per sample"
        axis = f"{self.label} minus that of {self.baseline}, same seed ({unit})"
        count = int(wide.count(axis=1).max())
        return {
            "figure": self._figure(figures.spreads(wide, stds, axis, zero=True), "differences", axis),
            "table": listing(shown.reset_index(), formats),
            "percent": self.percent,
            "seeds": count,
            "chance": f"{2.0 ** (1 - count):.2g}",  # of all seeds on one side of zero, whichever
        }

    def _sweeps(self) -> list[Content]:
        return [self._sweep(str(name), table) for name, table in self.own["sweeps"].groupby("method", sort=False)]

    def _sweep(self, method: str, trials: pd.DataFrame) -> Content:
        """Return a swept method's trials as a table, and as a figure where one number is swept."""
        measure = tables.measure(trials)
        label = words.label(measure, self.settings["score"] | {"split": "validation"})
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
            axis = self._axis(label)
            figure = figures.sweep(trials.assign(value=values[key].astype(float)), key, measure, axis)
            found["figure"] = self._figure(figure, f"sweep-{method}", f"{axis} of {method} by {key}")
        return found

    def _curves(self) -> Content | None:
        table = self.own["curves"].dropna(subset=self.measure)
        if table.empty:
            return None
        warmups: dict[int, list[str]] = {}
        for name in self.settings["methods"]:
            clustering = self.source.clustering(self.federation, name)
            if clustering is not None:
                distance = self.settings["clusterings"][clustering]["distance"]
                warmup = self.settings["warmups"][self.settings["distances"][distance]["warmup"]]
                warmups.setdefault(warmup["rounds"], []).append(name)
        figure = figures.curves(table, self.style, warmups, self.measure, self.any_round)
        return {
            "figure": self._figure(figure, "curves", f"{self.any_round} by communication round"),
            "warmups": bool(warmups),
        }

    def _clients(self) -> Content | None:
        rounds = self.own["scores"].query("seed == @self.seed").set_index("method")["round"]
        columns = ["round", "client", "split", "evaluation", "n", "correct", "loss"]
        values, scale = {}, figures.factor(self.measure)
        for name in self.scored["method"]:
            history = self.source.frame(self.federation, self.seed, f"methods/{name}.history", columns)
            found = tables.by_client(history, self.settings["score"], rounds[name])[self.measure]
            if np.isfinite(found).any():
                values[name] = scale * found[np.isfinite(found)]
        if not values:
            return None
        groups = tables.truth(self.source.frame(self.federation, self.seed, "partition.partition"))
        # Newcomers have no planted group among the members, and where none is planted all are one.
        clients = pd.Index(sorted(set().union(*(found.index for found in values.values()))))
        figure = figures.strip(values, groups.reindex(clients).fillna(0).astype(int), self.axis)
        return self._figure(figure, "clients", f"{self.axis} of each client, seed {self.seed}")

    def _losses(self) -> list[Content]:
        found = {n: self.source.losses(self.federation, self.seed, n) for n in self.settings["methods"]}
        return [self._loss(n, t) for n, t in found.items() if t is not None and len(t) and t.shape[1] > 1]

    def _loss(self, name: str, losses: pd.DataFrame) -> Content:
        own = self._members().query("kind == 'method' and name == @name").set_index("client").loc[losses.index]
        vectors, two = losses.to_numpy(), losses.shape[1] == 2
        points, labels = vectors, ["loss on model 0", "loss on model 1"]
        if not two:
            points, shares = plane.principal(vectors)
            labels = [f"principal component {i + 1} ({100 * s:.0f} % of the variance)" for i, s in enumerate(shares)]
        figure = figures.plane(points, own["cluster"].to_numpy(), _groups(own), labels, diagonal=two)
        text = f"Losses of {len(losses)} clients on the {vectors.shape[1]} models of {name}, seed {self.seed}"
        return self._figure(figure, f"losses-{name}", text)

    def _splits(self) -> list[Content]:
        found = {n: self.source.splits(self.federation, self.seed, n) for n in self.settings["methods"]}
        return [self._split(n, state) for n, state in found.items() if state is not None]

    def _split(self, name: str, state: Mapping[str, Any]) -> Content:
        groups = tables.truth(self.source.frame(self.federation, self.seed, "partition.partition"))
        planted = groups.reindex(state["clients"]).to_numpy()
        attempts, clusters = splitting.attempts(state), len(np.unique(state["labels"]))
        pictures = [
            self._figure(splitting.tree(state), f"splits-{name}", f"Splits of {name}, seed {self.seed}"),
            self._figure(splitting.rewards(state), f"rewards-{name}", f"Rewards of {name}'s clients, seed {self.seed}"),
        ]
        for i, attempt in enumerate(state["splits.attempt"]):
            if f"split{i}.affinity" not in state:
                continue
            round_, cluster = state["attempts.round"][attempt], state["attempts.cluster"][attempt]
            figure = splitting.affinity(state, i, None if np.isnan(planted).any() else planted.astype(int))
            text = f"Affinity of cluster {cluster}'s clients before it was split in round {round_}, {name}"
            pictures.append(self._figure(figure, f"affinity{i}-{name}", text))
        forms = {f"{n} parts": number("{:.2f}") for n in range(2, 2 + state["attempts.scores"].shape[1])}
        return {"name": name, "clusters": clusters, "figures": pictures, "table": listing(attempts, forms)}

    def _distances(self) -> list[Content]:
        return [figure for name in self.source.clusterings(self.federation) for figure in self._distance(name)]

    def _distance(self, name: str) -> list[Content]:
        block = self.settings["clusterings"][name]["distance"]
        metric = self.settings["distances"][block]["metric"]
        table = self.source.frame(self.federation, self.seed, f"distance/{block}.distance")
        who = "clients"
        if "landmark" in table:
            who = f"the {table['landmark'].sum()} landmarks (of {len(table)} clients)"
            table = table[table["landmark"]]
        own = self._members().query("kind == 'clustering' and name == @name")
        own = own.set_index("client").loc[table["client"]]
        found, groups = own["cluster"].to_numpy(), _groups(own)
        matrix = np.stack(table["distance"].to_list())
        figure = figures.heat_map(matrix, found, groups, f"distance '{block}' ({metric})")
        text = f"Distance '{block}' (metric {metric}) between {who}, clustering '{name}', seed {self.seed}"
        points, agreement = plane.scaled(matrix)
        labels = [f"dimension {i} of the distance '{block}'" for i in (1, 2)]
        drawn = figures.plane(points, found, groups, labels)
        caption = f"The same in two dimensions; correlation with the matrix {number('{:.2f}')(agreement)}"
        return [self._figure(figure, f"distance-{name}", text), self._figure(drawn, f"plane-{name}", caption)]

    def _choices(self) -> list[Content]:
        return [
            self._choice(name, self.settings["clusterings"][name]["clusters"], rows)
            for name, rows in self.own["choices"].groupby("clustering")
            if isinstance(self.settings["clusterings"][name]["clusters"], str)
        ]

    def _choice(self, name: str, rule: str, rows: pd.DataFrame) -> Content:
        chosen = rows[rows["chosen"]].set_index("seed")["k"]
        numbers = ", ".join(f"{k} for seed {seed}" for seed, k in chosen.items())
        text = f"{rule} by number of clusters, clustering '{name}'; chosen: {numbers}"
        return self._figure(figures.choice(rows, rule), f"choice-{name}", text)

    def _members(self) -> pd.DataFrame:
        return self.own["members"][self.own["members"]["seed"] == self.seed]

    def _clusters(self) -> Content | None:
        fixed = [n for n, m in self.settings["methods"].items() if m["method"] in words.FIXED]
        table = self._members()
        table = table[(table["kind"] == "clustering") | ~table["name"].isin(fixed)]
        if table.empty:
            return None
        table = table.assign(name=table["kind"] + " " + table["name"])
        counts = []
        for name, rows in table.groupby("name", sort=False):
            counted = tables.contingency(rows).rename(columns="cluster {}".format)
            counted = counted.rename_axis("planted group").reset_index()
            counts.append({"name": name, "table": listing(counted)})
        figure = figures.clusters(table, list(table["name"].unique()))
        text = f"Cluster of each client, seed {self.seed}"
        return {"figure": self._figure(figure, "clusters", text), "counts": counts}

    def _sizes(self) -> list[Content]:
        """Return a figure of each rebalanced method: the updates of each cluster before and after."""
        shown = []
        for name in self.settings["methods"]:
            found = self.source.sizes(self.federation, self.seed, name)
            if found is not None and len(found[0]):
                text = f"Updates of each cluster of {name} before and after rebalancing, seed {self.seed}"
                shown.append(self._figure(figures.sizes(*found), f"sizes-{name}", text))
        return shown

    def _privacy(self) -> Content | None:
        """Return the guarantee of each private method, and its epsilon by round."""
        facts, spent = {}, {}
        for name in self.settings["methods"]:
            guarantee = self.source.guarantee(self.federation, self.seed, name)
            if guarantee is not None:
                facts[name] = guarantee
                rounds = self.source.frame(self.federation, self.seed, f"methods/{name}.rounds", ["round", "epsilon"])
                spent[name] = rounds[np.isfinite(rounds["epsilon"])].set_index("round")["epsilon"]
        if not facts:
            return None
        spent = {name: values for name, values in spent.items() if len(values)}
        titles = {"accounting": "accounting", "counted_by": "counted by", "promise": "guarantee"}
        titles |= {"adjacency": "neighbouring federations", "sampler": "sampler"}
        numbers = {"epsilon": "epsilon", "epsilon_at_least": "true epsilon at least", "delta": "delta"}
        numbers |= {"noise_multiplier": "noise, both"}
        numbers |= {f"noise_multiplier_{part}": f"noise, {part}" for part in ("identifiers", "updates")}
        table = pd.DataFrame.from_dict(facts, orient="index").assign(promise=[*map(_promise, facts.values())])
        table = table.reindex(columns=[*titles, *numbers]).rename(columns=titles | numbers).rename_axis("method")
        shown = listing(table.reset_index(), dict.fromkeys(numbers.values(), number("{:.4g}")))
        found: Content = {"table": shown, "promised": all(_promise(f) == "yes" for f in facts.values())}
        unproven = [name for name, guarantee in facts.items() if _promise(guarantee) != "yes"]
        if spent:
            text = "Privacy loss epsilon of all rounds so far"
            found["figure"] = self._figure(figures.epsilons(spent, self.style, unproven), "epsilon", text)
        budgets = self.scored.assign(epsilon=self.scored["method"].map({n: v.iloc[-1] for n, v in spent.items()}))
        if budgets["epsilon"].nunique() > 1:
            budgets = budgets.assign(family=budgets["method"].map(self._families(budgets["method"])))
            figure = figures.budgets(budgets, self.measure, self.axis, self.style, unproven)
            found["budgets"] = self._figure(figure, "budgets", f"{self.axis} by privacy loss")
        return found

    def _families(self, methods: Iterable[str]) -> dict[str, str]:
        """Return the family of each method: those whose blocks differ in their privacy's budget alone."""
        equal: dict[str, list[str]] = {}
        for name in methods:
            block = self.settings["methods"][name]
            noise = {k: v for k, v in (block.get("privacy") or {}).items() if k not in ("epsilon", "noise_multiplier")}
            equal.setdefault(json.dumps(block | {"privacy": noise}, sort_keys=True), []).append(name)
        prefix = {k: commonprefix(names) for k, names in equal.items()}  # noqa: RUF071 - of letters, not of folders
        named = {k: names[0] if len(names) == 1 else f"{prefix[k]}*" for k, names in equal.items()}
        return {name: named[key] for key, names in equal.items() for name in names}

    def _measures(self) -> list[Content]:
        """Return a table of each kind of measure, without the columns that no method has a value in."""
        known = self.own["measures"].set_index("method").drop(columns=["federation", "seed"])
        for name in known.filter(regex=f"{measures.PARTICIPANTS}$"):
            if known[name].equals(known[name.removesuffix(measures.PARTICIPANTS)]):  # everyone took part
                known = known.drop(columns=name)
        known = known.dropna(axis="columns", how="all")
        kinds = (measures.CLUSTERS, measures.CLIENTS, measures.rounds(self.settings["score"]))
        shown = [{n: how for n, how in kind.items() if n in known} for kind in kinds]
        return [self._measured(known, kind) for kind in shown if kind]

    def _measured(self, known: pd.DataFrame, shown: dict[str, measures.Shown]) -> Content:
        table = pd.DataFrame({"method": self.ranking["method"]})
        seeds, ddof = known.groupby(level="method"), self.settings["score"]["ddof"]
        for name, (title, factor, form, _) in shown.items():
            write = number(f"{{:{form}}}", factor)
            # A mean of some of the seeds would flatter: CLoVE and FedGWC print a dash, too.
            mean = seeds[name].agg(lambda values: values.mean(skipna=False))
            std = seeds[name].agg(tables.spread, ddof=ddof).where(mean.notna())
            texts = {m: write(mean[m]) + (f" ± {write(std[m])}" if pd.notna(std[m]) else "") for m in mean.index}
            table[title] = table["method"].map(texts)
        titles = {title: meaning for title, _, _, meaning in shown.values()}
        return {"table": listing(table, dict.fromkeys(titles, _text)), "meanings": titles}

    def _bad(self) -> Content | None:
        """Return how often clients misbehaved, and the score of those that are sound; None where none did."""
        own = self.own["faults"]
        counts = ["dropped", "straggled", "excluded", "corrupt", "flipped", "left_out"]
        counts = [name for name in counts if own[name].any()]
        if not counts:
            return None
        methods, ddof = own.groupby("method"), self.settings["score"]["ddof"]
        names = [f"{self.measure}_mean", f"{self.measure}_std"]
        found = methods[self.measure].agg(["mean", lambda values: tables.spread(values, ddof)]).set_axis(names, axis=1)
        others = {row.name: words.value(row, self.measure) for _, row in found.iterrows()}
        table = methods[counts].mean().loc[self.ranking["method"]].rename(columns={"left_out": "left out"})
        table[self.measure] = [words.value(row, self.measure) for row in self.ranking.to_dict("records")]
        table[f"{self.measure} of the others"] = table.index.map(others)
        return {"table": listing(table.reset_index(), dict.fromkeys(table.columns[:-2], ONE_DIGIT))}

    def _cost(self) -> Content:
        titles = {"method": "method", "bytes_down": "down (MB)", "bytes_up": "up (MB)", "local_steps": "local steps"}
        titles |= {"client_forwards": "forward passes", "server_seconds": "server (s)", "seconds": "time (s)"}
        forms = (MEGABYTES, MEGABYTES, COUNT, COUNT, number("{:,.2f}"), ONE_DIGIT)
        formats = dict(zip(list(titles.values())[1:], forms, strict=True))
        more = self.own["scores"].groupby("method")[["client_forwards", "server_seconds"]].mean()
        costs = self.ranking.join(more, on="method")
        found: Content = {"table": listing(costs[list(titles)].rename(columns=titles), formats)}
        curves = self.own["curves"].dropna(subset=self.measure)
        if curves[tables.SPENT].any(axis=None):
            figure = figures.cost(curves, self.style, self.measure, self.any_round)
            found["figure"] = self._figure(figure, "cost", f"{self.any_round} against what it cost")
        return found

    def _samples(self) -> Content:
        counts = self.source.frame(self.federation, self.seed, "partition.classes")
        return portrait_of(counts, self.album, self.federation)
