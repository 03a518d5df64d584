"""Commands about the papers' printed numbers: verdicts, evidence, the page over all studies."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import UserError
from .common import sources, warn


def add(commands: Any) -> None:
    """Add `claims`, `evidence` and `site`."""
    _add_claims(commands)
    _add_evidence(commands)
    site = commands.add_parser("site", help="write one page over all studies, with the papers' numbers beside ours",
                               description="Gather the claims as `clusterfl claims` does and write one page that needs "
                               "no network, FOLDER/claims.html, and the papers' tables as CSV and LaTeX and curves as "
                               "SVG, FOLDER/tables.")  # fmt: skip
    site.set_defaults(run=_site)
    site.add_argument(
        "--out", type=Path, default=Path("results"), metavar="FOLDER", help="folder to write into (default: results)"
    )
    sources(site)


def _add_claims(commands: Any) -> None:
    text = "Compare the papers' printed numbers and stated orderings with the results of every study here whose " \
           "settings have a block `claims`; write results/claims.parquet, orderings.parquet, " \
           "discrepancies.parquet (second profiles), consequences.parquet (text against released code), " \
           "central.parquet and evidence.parquet, and print the result."  # fmt: skip
    parser = commands.add_parser("claims", help="compare the papers' printed numbers with ours", description=text)
    parser.set_defaults(run=_claims)
    parser.add_argument("--paper", metavar="NAME", help="print only those of lcfl, rr-cluster, clove or fedgwc")
    parser.add_argument("--table", metavar="NUMBER", help="print only those of a table, e.g. II, or of another "
                        "place that the column `where` names")  # fmt: skip
    parser.add_argument("--method", metavar="NAME", help="print only those of a method, by the papers' name; for "
                        "orderings those that compare it")  # fmt: skip
    parser.add_argument("--cell", metavar="PATTERN", help="print only those of the datasets and settings that match, "
                        "e.g. mnist/label-skew-1 or 'mnist/*'")  # fmt: skip
    parser.add_argument("--verdict", metavar="NAME", help="print only those with this verdict: reproduced, differs, "
                        "not comparable, by construction, undecided, not run; for orderings holds, holds in part, "
                        "fails, ...")  # fmt: skip
    parser.add_argument("--central", action="store_true", help="print only the papers' central claims: what the paper "
                        "says, what our runs say at each scale, and how strong their evidence is")  # fmt: skip
    parser.add_argument("--counts", action="store_true", help="print only counts: of verdicts; of printed, released "
                        "and repeated numbers; of those that can be reached; differences in joint standard errors; and "
                        "the verdicts with the methods' names exchanged")  # fmt: skip
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="also write the tables into a folder, and bring "
                        "those of its README.md and other pages up to date: counts, central claims, verdicts by "
                        "method, accuracies, consequences, hours by block; e.g. docs/reproduction")  # fmt: skip
    sources(parser)


def _add_evidence(commands: Any) -> None:
    text = "Store what verdicts need from every run under results/ in small Parquet files, one for each study, " \
           "federation and origin; `clusterfl claims` and `site` read them with the results, or without."  # fmt: skip
    parser = commands.add_parser("evidence", help="store the runs' numbers apart from the results",
                                 description=text)  # fmt: skip
    parser.set_defaults(run=_evidence)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="names under results/ (default: all with a block "
                        "`claims`)")  # fmt: skip
    parser.add_argument("--to", type=Path, default=Path("docs/reproduction/evidence"), metavar="FOLDER", help="folder "
                        "to write into (default: docs/reproduction/evidence)")  # fmt: skip
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="instead, put the evidence of these "
        "folders into the one of --to: of other seeds, federations or methods, or of another machine",
    )
    parser.add_argument("--origin", metavar="NAME", help="where the runs were made, for the files' names (default: "
                        "branch or processor of each run, and commit)")  # fmt: skip


def _claims(options: argparse.Namespace) -> None:
    from ..claims import gather, show

    if options.write is not None:
        from ..claims.pages import readme

        readme.check_target(options.write)
    results, warnings = gather.gathered(options.folders)
    warn(warnings)
    rows = gather.write(results)
    if options.write is not None:
        print(readme.write(options.write))
    elif options.central:
        print(show.first(gather.central_rows(results), options.paper))
    elif options.counts:
        print(show.summary(rows, results))
    else:
        names = (options.paper, options.table, options.verdict, options.method, options.cell)
        print(show.text(*show.select(rows, *names)))


def _evidence(options: argparse.Namespace) -> None:
    from ..claims import evidence, gather, hours
    from ..storage.store import RESULTS

    evidence.check_target(options.to)
    if options.merge:
        from ..claims.evidence_merge import merge

        if options.studies or options.origin is not None:
            raise UserError("--merge takes everything in its folders; leave out STUDY and --origin")
        with evidence.writing(options.to):
            print(merge(options.merge, options.to))
        return
    if options.origin is not None:
        evidence.check_name(options.origin)
    found = {study.study.study: study for study in gather.studies([RESULTS])}
    for name in options.studies or found:
        study = evidence.study_of(name, found)
        with evidence.writing(options.to):
            written = evidence.write(study, options.to, options.origin)
            hours.write(study, hours.at_scale(study, written.runs), options.to)
        warn(written.left_out)
        print(written)


def _site(options: argparse.Namespace) -> None:
    from ..claims.gather import gathered
    from ..claims.pages.site import check_target, write

    check_target(options.out)
    results, warnings = gathered(options.folders)
    warn(warnings)
    print(write(options.out, results, warnings))
