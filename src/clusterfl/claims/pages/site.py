"""One page over all studies: every printed number beside ours, with the settings and commands that give ours.

The page loads nothing else. Searchable tables are drawn by Tabulator, curves by uPlot; both are in `assets` with their
licences and are written into the page.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from ...config.claims import PAPERS
from ...errors import UserError
from ...progress import bar
from ...registry import Typed
from ...report import content
from ...storage.manifest import manifest_path
from ...storage.outputs import beginning
from ...storage.store import RESULTS, read_json, replacing
from .. import central, exchange, gather
from .. import counts as totals
from ..orderings import KINDS, kind
from ..ours import Results
from ..printed import Claim, claims, slug
from ..reading import Reader
from ..runs import Run, score_name
from ..scale import LITE, PAPER
from ..verdicts import NOT_RUN, VERDICTS
from . import papers, printed, standardised
from .site_parts import MEANINGS, MEANINGS_OF_ORDERINGS, Content, about, chain, counts, packed, spread, summary, thinned

HERE = Path(__file__).parent
# Points drawn of a curve, evenly spaced over its rounds, the last one included: the first number that fits `ROOM`.
POINTS = (200, 120, 80, 50, 30, 20)
ROOM = 2_600_000  # characters of the data that the script draws from
TITLES = {"lcfl": "LCFL", "rr-cluster": "RR-Cluster", "clove": "CLoVE", "fedgwc": "FedGWC"}
# The curve shown with a metric. A number of rounds is a vertical line on it.
CURVE_OF = {"accuracy": "accuracy", "test_loss": "loss", "ari": "ari", "ari_round_10": "ari"}
LINE_OF = {"first_round_ari_0.9": "ari", "rounds_to_accuracy_90": "accuracy", "rounds_to_accuracy_95": "accuracy"}
OFFERED = ("claims", "orderings")  # tables that the page links to as Parquet files beside it
MARK = "<title>The papers' numbers beside ours</title>"  # in every such page, older ones included
DIGITS = {"accuracy": 2, "loss": 5, "ari": 3}


def check_target(out: Path) -> None:
    """Refuse a folder that has another page or table of these names.

    Raises
    ------
    UserError
        If it is such a folder.
    """
    page = out / "claims.html"
    if page.exists() and MARK in beginning(page):
        return
    tables = [] if out.resolve() == RESULTS.resolve() else [out / f"{name}.parquet" for name in OFFERED]
    for path in (page, *tables):
        if path.exists():
            raise UserError(
                f"--out: {path} already exists, and clusterfl site didn't write it; name another folder, or move it "
                "away"
            )


def write(out: Path, results: Sequence[Results], warnings: Sequence[str] = ()) -> Path:
    """Write `out`/claims.html, what it offers and `out`/tables of all studies; return the page's path.

    `results` and `warnings` are what `gather.gathered` returns.
    """
    gather.write(results)
    names = ("claims", "central", "orderings", "discrepancies", "consequences", "evidence")
    found = {name: pd.read_parquet(RESULTS / f"{name}.parquet") for name in names}
    tables = printed.write(found["claims"], out / "tables")
    pictures = papers.write(results, out / "tables")
    standardised.write(found["claims"], out / "tables")
    if out.resolve() != RESULTS.resolve():
        for name in OFFERED:
            with replacing(out / f"{name}.parquet") as temporary:
                shutil.copyfile(RESULTS / f"{name}.parquet", temporary)
    path = out / "claims.html"
    with replacing(path) as temporary:
        temporary.write_text(Site(found, results, tables, pictures, out, warnings).render(), encoding="utf-8")
    return path


@dataclass
class Site:
    """The page: `found` has the tables of `clusterfl claims` by name; `tables` and `pictures` are those of the papers.

    `warnings` are sentences about the evidence.
    """

    found: Mapping[str, pd.DataFrame]
    results: Sequence[Results]
    tables: Sequence[printed.Printed]
    pictures: Sequence[papers.Picture] = ()
    out: Path = RESULTS
    warnings: Sequence[str] = ()

    def render(self) -> str:
        """Return the page."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader([HERE / "templates", content.TEMPLATES, HERE / "assets"]),
            autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        )  # fmt: skip
        environment.globals["raw"] = lambda name: Markup((HERE / "assets" / name).read_text(encoding="utf-8"))
        return environment.get_template("site.html.j2").render(
            papers=self._papers(),
            central=self._central(),
            central_verdicts=central.VERDICTS,
            chance=central.sentence(self.found["central"].to_dict("records")),
            verdicts=MEANINGS,
            totals=totals.sentence(),
            exchanged=exchange.sentence(self.results),
            ordering_verdicts=MEANINGS_OF_ORDERINGS,
            studies=self._studies(),
            evidence=self._evidence(),
            warnings=self.warnings,
            tables=self.tables,
            curves={(one.paper, name): self._svg(one.paper, name) for one in self.tables for name in one.curves},
            pictures=[self._picture(picture) for picture in self.pictures],
            marks=printed.MARKS,
            titles=TITLES,
            discrepancies=self._discrepancies(),
            second=self._second(),
            methods=self._methods(),
            federations=self._federations(),
            data=Markup(self._packed()),
        )

    @property
    def _beside_results(self) -> bool:
        """Whether the page is beside the studies' reports: from elsewhere, links to them would be dead."""
        return self.out.resolve() == RESULTS.resolve()

    @cached_property
    def claims(self) -> pd.DataFrame:
        """The claims."""
        return self.found["claims"]

    @cached_property
    def _by_name(self) -> dict[str, Results]:
        return {study.study.study: study for study in self.results}

    @cached_property
    def _texts(self) -> dict[str, Claim]:
        return {claim.claim_id: claim for claim in claims()}

    def _central(self) -> dict[str, list[dict[str, str]]]:
        """Return what the page shows of each paper's central claims."""
        shown: dict[str, list[dict[str, str]]] = {paper: [] for paper in PAPERS}
        for row in self.found["central"].to_dict("records"):
            shown[row["paper"]].append({name: row[name] for name in central.HEAD})
        return shown

    def _papers(self) -> list[Content]:
        """Return how many claims and orderings of each paper have each verdict, orderings by scale."""
        kinds = self.found["orderings"].assign(kind=self.found["orderings"]["verdict"].map(kind))
        return [
            {
                "name": paper,
                "title": TITLES[paper],
                "claims": counts(self.claims[self.claims["paper"] == paper]["verdict"], VERDICTS),
                "orderings": {
                    scale: counts(kinds[(kinds["paper"] == paper) & (kinds["scale"] == scale)]["kind"], KINDS)
                    for scale in (PAPER, LITE)
                },
            }
            for paper in PAPERS
        ]

    def _studies(self) -> list[Content]:
        """Return every study that was run here or has evidence, with a link to its report where it has one."""
        found: list[Content] = []
        for path in sorted(RESULTS.glob("*/settings.json")):
            settings, name = read_json(path), path.parent.name
            if not isinstance(settings, dict):
                raise UserError(f"{path} holds no settings; run the study '{name}' again")
            study, report = self._by_name.get(name), path.with_name("report.html")
            link = f"{name}/{report.name}" if report.exists() and self._beside_results else ""
            own = {"name": name, "title": settings.get("title") or name, "link": link, "paper": "", "scale": ""}
            found.append(own | ({"paper": study.claims.paper, "scale": ", ".join(study.scales())} if study else {}))
        for name in sorted(self._by_name.keys() - {own["name"] for own in found}):
            study = self._by_name[name]
            own = {"name": name, "title": study.study.title or name, "link": ""}
            found.append(own | {"paper": study.claims.paper, "scale": ", ".join(study.scales())})
        return found

    def _evidence(self) -> Content | None:
        """Return how many runs of each study are read from where, how they were made, and whether they count."""
        table = self.found["evidence"]
        if table.empty:
            return None
        keys = ["study", "origin", "status", "processor", "branch", "commit"]
        counted = table.fillna("").groupby(keys, sort=False).size().rename("runs").reset_index()
        return content.listing(counted.replace("", "–"))

    def _picture(self, picture: papers.Picture) -> Content:
        """Return what the page shows of a figure, with the orderings that the paper reads off it."""
        own = self.found["orderings"]
        place = re.escape(re.sub(r" \(.*\)$", "", picture.where)) + r"\b"
        stated = own[(own["paper"] == picture.paper) & own["where"].str.contains(place)]
        orderings = []
        for _, rows in stated.groupby("claim_id", sort=False):
            judged = [f"{r.verdict} (scale {r.scale})" for r in rows.itertuples() if r.verdict != NOT_RUN]
            orderings.append({"statement": rows["statement"].iloc[0], "verdict": "; ".join(judged) or NOT_RUN})
        found = {**vars(picture), "name": picture.name, "orderings": orderings}
        return found | {"svg": None if picture.figure is None else self._svg(picture.paper, picture.name)}

    def _svg(self, paper: str, name: str) -> Markup:
        return content.inlined((self.out / "tables" / paper / f"{name}.svg").read_text(encoding="utf-8"))

    def _discrepancies(self) -> list[Content]:
        """Return what each study measured of a discrepancy; where none did, why the first one didn't."""
        table = self.found["consequences"]
        names = ["paper", "name"]
        measured = table.groupby(names)["seeds"].transform("max") > 0
        rows: list[Content] = table[(table["seeds"] > 0) | ~(measured | table.duplicated(names))].to_dict("records")
        for row in rows:
            digits = 2 if row["measure"] == "accuracy" else 4
            for side in ("released", "text"):
                row[f"{side}_score"] = spread(row[side], row[f"{side}_std"], digits)
                row[f"{side}_run"] = f"{row['study']}/{row[f'{side}_federation']}"
            row["gap"] = spread(row["difference"], row["error"], digits, "+")
        return rows

    def _second(self) -> Content | None:
        """Return the claims' rows of second profiles."""
        table = self.found["discrepancies"]
        if table.empty:
            return None
        columns = ["claim_id", "profile", "verdict", "study", "reason"]
        shown = {
            "printed": [spread(r.printed, r.printed_std) for r in table.itertuples()],
            "ours": [spread(r.ours, r.ours_std) for r in table.itertuples()],
        }
        return content.listing(table[columns[:2]].assign(**shown, **{name: table[name] for name in columns[2:]}))

    def _methods(self) -> list[Content]:
        """Return a page for each method that the papers print numbers of."""
        found = []
        for name, rows in self.claims.groupby("method"):
            ours = rows[rows["verdict"] != "not run"]
            blocks = sorted(set(zip(ours["study"], ours["our_method"], strict=True)))
            kinds = {self._by_name[s].study.methods[m].method for s, m in blocks if s in self._by_name}
            reasons = rows[rows["verdict"] == "not run"]["reason"].value_counts()
            places = ours.drop_duplicates(["study", "federation", "our_method"])
            found.append({
                "name": name,
                "papers": [
                    (TITLES[paper], counts(rows[rows["paper"] == paper]["verdict"], VERDICTS))
                    for paper in PAPERS if (rows["paper"] == paper).any()
                ],
                "kinds": [about(kind) for kind in sorted(kinds)],
                "places": places[["study", "federation", "our_method"]].to_dict("records"),
                "reasons": list(reasons.items()),
            })  # fmt: skip
        return found

    def _federations(self) -> list[Content]:
        return [self._federation(study, name) for study, name in self._places()]

    def _places(self) -> Iterator[tuple[Results, str]]:
        """Yield, with their studies, the federations from which any claim or discrepancy takes its numbers."""
        for study in self.results:
            cells = [cell for profile in study.claims.profiles() for cell in study.claims.of(profile)[0].values()]
            sides = [side for d in study.claims.discrepancies.values() for side in (d.released, d.paper)]
            for name in dict.fromkeys([*(cell.federation for cell in cells), *(side.federation for side in sides)]):
                yield study, name

    def _federation(self, study: Results, name: str) -> Content:
        own = study.plan.on(name)
        found = ((m, study.run(name, seed, m)) for m in own.methods for seed in study.study.seeds.runs)
        runs = [(method, run) for method, run in found if isinstance(run, Run)]
        partitions = self._partitions(study, name)
        cells = [key for key, cell in study.claims.cells.items() if cell.federation == name]
        return {
            "key": f"{study.study.study}/{name}",
            "study": study.study.study,
            "paper": TITLES[study.claims.paper],
            "scale": ", ".join(study.scales(name)),
            "name": name,
            "cells": cells,
            "dataset": own.federations[name].dataset.dataset,
            "partitions": partitions,
            "summary": content.listing(*summary(runs)) if runs else None,
            "settings": content.as_yaml(_dump(own.federations[name])),
            "report": f"{study.study.study}/report.html",
            "has_report": (RESULTS / study.study.study / "report.html").exists() and self._beside_results,
        }

    def _partitions(self, study: Results, name: str) -> list[Content]:
        """Return seed, clients, samples and digest of each partition, from files here or from evidence."""
        found = []
        for seed in study.study.seeds.runs:
            path = study.plan.job("partition", name, seed).outputs["partition"]
            runs = [study.run(name, seed, method) for method in study.plan.on(name).methods]
            made = next((run.made for run in runs if isinstance(run, Run)), None)
            if study.own and manifest_path(path).exists():
                manifest = read_json(manifest_path(path))
                own = {key: manifest.get(key) for key in ("clients", "samples")}
                found.append({"seed": seed, "digest": manifest["files"][path.name]["sha256"], **own})
            elif made is not None:
                found.append({"seed": seed, "digest": made.partition, "clients": made.clients, "samples": made.samples})
        return found

    def _packed(self) -> str:
        """Return the data for the script, with as many points of each curve as there is room for."""
        data = self._data()
        for points in POINTS:
            text = packed(data | {"curves": thinned(data["curves"], points)})
            if len(text) <= ROOM:
                break
        return text

    def _data(self) -> Content:
        """Return the data that the page's script draws from."""
        curves, runs, places = {}, {}, list(self._places())
        with bar("curves of federations", len(places)) as progress:
            for number, (study, name) in enumerate(places, 1):
                lines = {method: _lines(study, name, method) for method in study.plan.on(name).methods}
                curves[f"{study.study.study}/{name}"] = {method: line for method, line in lines.items() if line}
                progress(number, "")
        for (study_, federation, method), _ in self.claims[self.claims["study"] != ""].groupby(
            ["study", "federation", "our_method"]
        ):
            if study_ in self._by_name:
                runs[f"{study_}/{federation}/{method}"] = self._run(self._by_name[study_], federation, method)
        rows = [self._claim(row) for row in self.claims.to_dict("records")]
        orderings = [{**row, "kind": kind(row["verdict"])} for row in self.found["orderings"].to_dict("records")]
        columns = {name: list(self.found[name]) for name in OFFERED}  # of the rows as CSV
        return {"claims": rows, "orderings": orderings, "columns": columns, "runs": runs, "curves": curves,
                "titles": TITLES, "meanings": MEANINGS, "marks": printed.MARKS}  # fmt: skip

    def _claim(self, row: Mapping[Any, Any]) -> Content:
        """Return a claim with its place on its curve: the round, or a number of rounds as a vertical line."""
        metric, study = row["metric"], self._by_name.get(row["study"])
        found = {name: value for name, value in row.items() if value != ""}
        text = printed.cell(row, self._texts.get(row["claim_id"]))
        found |= {"table": slug(row["where"])}
        found |= {"printed_text": text.printed, "ours_text": text.ours or "–"}
        found["curve"] = CURVE_OF.get(metric) or LINE_OF.get(metric) or "accuracy"
        if study is None:
            return found
        found["command"] = _printing(row)
        reader = self._reader(study, row)
        if reader is not None and (words := reader.words(metric, row["at"])):
            found |= {"read": words, "score": _score(reader)}
        if metric in CURVE_OF and reader is not None:
            found["round"] = reader.place(row["at"] if metric != "ari_round_10" else str(int(row["at"]) + 1))
        elif metric in LINE_OF and math.isfinite(row["printed"]):
            found["line"] = row["printed"] + (study.claims.iterations == "lcfl-released")
        return found

    def _reader(self, study: Results, row: Mapping[Any, Any]) -> Reader | None:
        """Return the reader of a claim's number in the first seed that was run."""
        name = f"{row['dataset']}/{row['setting']}"
        runs = (study.run(row["federation"], seed, row["our_method"]) for seed in study.study.seeds.runs)
        run = next((run for run in runs if isinstance(run, Run)), None)
        if run is None:
            return None
        scale = study.scale(row["profile"], name, row["method"])
        return Reader(run, study.claims.of(row["profile"])[0][name], scale)

    def _run(self, study: Results, federation: str, method: str) -> Content:
        """Return settings, commands and partitions of a run; the score apart, as some numbers have one of their own."""
        seeds = study.study.seeds.runs
        chosen = next(
            (run.chosen for seed in seeds if isinstance(run := study.run(federation, seed, method), Run)), None
        )
        job = study.plan.job("federate", federation, seeds[0], method, None if chosen is None else chosen[0])
        own = study.plan.on(federation)
        block = own.methods[method]
        trained = block.trial({} if chosen is None else json.loads(chosen[1]))
        parts: dict[str, Any] = {"clusterings": {}, "distances": {}, "warmups": {}}
        if trained.clustering is not None:
            clustering = own.clusterings[trained.clustering]
            distance = own.distances[clustering.distance]
            parts["clusterings"][trained.clustering] = clustering
            parts["distances"][clustering.distance] = distance
            parts["warmups"][distance.warmup] = own.warmups[distance.warmup]
        settings = {
            "study": own.study,
            "federations": {federation: _dump(own.federations[federation])},
            "methods": {method: _dump(trained)},
            **{kind: {n: _dump(part) for n, part in p.items()} for kind, p in parts.items() if p},
            "model": job.settings["model"],
            "training": {key: value for key, value in job.settings["training"].items() if value is not None},
            "seeds": _dump(own.seeds),
            "engine": _dump(own.engine),
        }
        part = ["--config", *map(str, study.plan.files), "--federation", federation, "--method", method]
        return {
            "settings": content.as_yaml(settings),
            "score": content.as_yaml({"score": _dump(own.score)}),
            "commands": [*(other.command for other in chain(job)), shlex.join(["clusterfl", "run", *part])],
            "settings_digest": job.settings_digest,
            "trial": "" if chosen is None else f"trial {chosen[0]}: {chosen[1]}",
            "kind": block.method,
            "seeds": seeds,
            "partitions": self._partitions(study, federation),
        }


def _dump(block: Typed) -> dict[str, Any]:
    return block.model_dump(mode="json", exclude_none=True)


def _printing(row: Mapping[Any, Any]) -> str:
    """Return the command that prints a number from results alone, without evidence."""
    names = {"paper": row["paper"], "table": row["where"], "method": row["method"]}
    names["cell"] = f"{row['dataset']}/{row['setting']}"
    given = [word for name, value in names.items() for word in (f"--{name}", value)]
    return shlex.join(["clusterfl", "claims", "--from", str(RESULTS), *given])


def _score(reader: Reader) -> str:
    """Return as YAML the score by which a number is read, '' where it is the study's."""
    if reader.score == reader.run.score:
        return ""
    text = content.as_yaml({"score": dict(reader.score)})
    return f"# This number is read by this score; the study's own is {score_name(reader.run.score)}.\n{text}"


def _lines(study: Results, federation: str, method: str) -> Content:
    """Return a method's curves, mean and range over seeds: measure -> rounds, mean, lowest, highest."""
    runs = [study.run(federation, seed, method) for seed in study.study.seeds.runs]
    found: Content = {}
    for measure, digits in DIGITS.items():
        parts = [run.line(measure) for run in runs if isinstance(run, Run)]
        rounds = np.unique(np.concatenate([np.zeros(0, np.int64), *(own for own, _ in parts)]))
        if rounds.size:
            lines = np.full((len(parts), len(rounds)), np.nan)
            for line, (own, values) in zip(lines, parts, strict=True):
                line[np.searchsorted(rounds, own)] = values
            columns = _range(lines * (100 if measure == "accuracy" else 1))
            found[measure] = [rounds.tolist(), *(column.round(digits).tolist() for column in columns)]
    return found


def _range(lines: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return the mean, the least and the greatest of what is finite in each column; NaN where nothing is."""
    finite = np.isfinite(lines)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, as it should be
        mean = np.where(finite, lines, 0.0).sum(axis=0) / finite.sum(axis=0)
    lines = np.where(finite, lines, np.nan)
    return mean, np.fmin.reduce(lines), np.fmax.reduce(lines)
