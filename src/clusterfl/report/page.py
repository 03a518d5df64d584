"""The pages of a study and of a federation: one self-contained HTML file with its figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from ..data import drift
from ..data.names import Names
from . import portrait, section_clients, section_clusters, section_privacy, section_scores, words
from .content import ONE_DIGIT, Album, Content, as_yaml, listing, number, template
from .section import Section, Tables
from .source import Source


def render(source: Source, found: Tables, folder: Path) -> str:
    """Return the page; figures are also written into `folder`."""
    settings, album, parts = source.settings, Album(folder), []
    for federation in settings["federations"]:
        own = {n: t[t["federation"] == federation] for n, t in found.items() if "federation" in t}
        parts.append(_content(Section(source, federation, own, album)))
        album.draw()
    return template("report.html.j2").render(
        study=settings,
        parts=parts,
        settings=as_yaml(settings),
        versions=listing(found["versions"]),
        jobs=listing(_readable(found["jobs"]), {"seconds": ONE_DIGIT}),
    )


def _readable(jobs: pd.DataFrame) -> pd.DataFrame:
    dates = pd.to_datetime(jobs["date"]).dt.strftime("%Y-%m-%d %H:%M:%S UTC")
    return jobs.assign(date=dates, seed=jobs["seed"].astype("Int64"))


def federation(
    shown: Content, counts: pd.DataFrame, names: Names, distances: pd.DataFrame | None, images: Any, folder: Path
) -> str:
    """Return the page of one federation; figures are also written into `folder`.

    Parameters
    ----------
    shown
        Name, digest, settings, remarks and other facts that the template shows.
    counts
        Samples by client, role, group, split and class.
    names
        Names of clients and planted groups.
    distances
        Distances between the groups' samples, if known.
    images
        Arguments of `portrait.examples`, or None.
    folder
        The figures' folder.
    """
    album, name, pictures = Album(folder), shown["name"], None
    if images is not None:
        text = "Training samples of each planted group, label below; each image's shades are spread from black to white"
        pictures = album.add(portrait.examples(*images), f"samples-{name}", text)
    part = portrait_of(counts, names, album, name, distances)
    album.draw()
    return template("federation.html.j2").render(
        shown=shown,
        part=part | {"remarks": [*part["remarks"], *shown["remarks"]]},
        pictures=pictures,
        settings=as_yaml(shown["settings"]),
    )


def portrait_of(
    counts: pd.DataFrame, names: Names, album: Album, name: str, distances: pd.DataFrame | None = None
) -> Content:
    """Return the content of the macro `federation`."""
    groups = portrait.groups(counts, names)
    whole = dict.fromkeys(["min", "median", "max", "in all", "train samples", "test samples"], number("{:,g}"))
    return {
        "clients": f"{len(portrait.clients(counts)):,}",
        "groups": len(groups),
        "sizes": listing(portrait.sizes(counts), whole),
        "group_table": listing(groups, whole) if len(groups) else None,
        "distances": list(portrait.distances(counts, distances)),
        "remarks": list(portrait.remarks(counts)),
        "picture": album.add(
            portrait.picture(counts, names), f"federation-{name}", f"Classes and samples by client, {name}"
        ),
    }


def _samples(section: Section) -> Content:
    counts = section.source.frame(section.federation, section.seed, "partition.classes")
    part = portrait_of(counts, section.names, section.album, section.federation)
    without = section.source.left_out(section.federation, section.seed)
    partition = section.source.frame(section.federation, section.seed, "partition.partition")
    changes = drift.remarks({name: partition[name].to_numpy() for name in partition})
    if changes:
        changes = ["Samples, classes and groups above are those of round 1.", *changes]
    return part | {"remarks": [*part["remarks"], *without, *changes]}


# The template's content for a federation, by name. Figures are put on the page in this order, while there is room.
PARTS: dict[str, Callable[[Section], Any]] = {
    "scores": section_scores.scores,
    "differences": section_scores.differences,
    "sweeps": section_scores.sweeps,
    "curves": section_scores.curves,
    "clients": section_clients.clients,
    "distances": section_clusters.distances,
    "choices": section_clusters.choices,
    "clusters": section_clusters.clusters,
    "losses": section_clusters.losses,
    "splits": section_clusters.splits,
    "sizes": section_clusters.sizes,
    "privacy": section_privacy.privacy,
    "measures": section_scores.of_measures,
    "bad": section_scores.bad,
    "cost": section_scores.cost,
    "samples": _samples,
}


def _content(section: Section) -> Content:
    """Return the template's content for a federation."""
    return {kind: part(section) for kind, part in PARTS.items()} | {
        "name": section.federation,
        "dataset": section.settings["federations"][section.federation]["dataset"]["dataset"],
        "finding": words.headline(section.own["summary"].to_dict("records"), section.settings),
        "label": section.label,
        "percent": section.percent,
        "seed": section.seed,
    }
