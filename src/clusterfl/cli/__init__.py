"""The command line: one subcommand for each stage, and a few to look at and set up studies."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import Stopped, UserError, printable
from ..pipeline.files import STAGES

STAGE_HELP = {
    "download": "fetch a dataset and check it",
    "partition": "give samples to clients",
    "warmup": "train some rounds of FedAvg and keep every client's model",
    "losses": "measure one shard of the losses that a distance needs",
    "distance": "measure the distances between clients",
    "cluster": "cluster the clients",
    "federate": "train one method",
    "select": "choose the best trial of a swept method by validation score",
    "report": "gather results into tables, figures and a page",
}
LIKE = {"±": "+-", "–": "-", "−": "-", "≥": ">=", "≤": "<=", "≠": "!=", "ε": "epsilon", "é": "e"}
OPTION_HELP = {
    "warmup": "block under `warmups`",
    "distance": "block under `distances`",
    "clustering": "block under `clusterings`",
    "method": "block under `methods`",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clusterfl",
        description="Clustered federated learning: rerun, compare and check the field's papers.",
        epilog="The stages run in the order in which they are listed; `make reproduce` or `snakemake` runs them all. "
        "Exit codes: 0 done, 1 `verify` found damage, 2 something to mend in settings or files.",
    )
    parser.add_argument("--version", action="version", version=f"clusterfl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for stage, text in STAGE_HELP.items():
        _stage_parser(commands, stage, text)
    run = commands.add_parser("run", help="run every stage here, without Snakemake", description="Run every stage of "
                              "a study one after another, skipping what is there and still right.")  # fmt: skip
    _config(run)
    run.add_argument("--jobs", type=_count, default=1, metavar="N", help="jobs side by side (default: 1)")
    run.add_argument("--threads", type=_count, default=1, metavar="N", help="processes that train, of each job "
                     "(default: 1)")  # fmt: skip
    _part(run)
    jobs = commands.add_parser("jobs", help="list the commands of a study's jobs", description="List a study's jobs.")
    _config(jobs)
    _part(jobs)
    jobs.add_argument("--files", action="store_true", help="list the result files of the methods instead, for Snakemake"
                      " to make")  # fmt: skip
    words = "Predict seconds, memory and bytes of each job before it runs, from some seconds of measuring."
    plan = commands.add_parser("plan", help="predict what each job will cost", description=words)
    _config(plan)
    plan.add_argument("--threads", type=_count, default=1, metavar="N", help="processes that train (default: 1)")
    plan.add_argument("--json", action="store_true", help="a JSON object, and nothing else, on stdout")
    plan.add_argument("--save", action="store_true", help="keep it beside the results: a cluster is then asked for as "
                      "much, and short jobs are put together")  # fmt: skip
    _part(plan)
    summary = commands.add_parser("summary", help="say what a study's report shows, in a few lines")
    _config(summary)
    known = commands.add_parser("federations", help="list the federations of the papers", description="List every "
                                "federation of the catalogue: whose it is, how large, and whether its data are here; "
                                "nothing is built.")  # fmt: skip
    known.add_argument("--build", action="store_true", help="build those whose data are at hand, and say whether each "
                       "is the pinned one")  # fmt: skip
    known.add_argument("--json", action="store_true", help="a JSON list of objects, and nothing else, on stdout")
    describe = commands.add_parser("describe", help="show a federation in tables and a picture", description="Build a "
                                   "federation and write a page about it: results/federations/NAME.html.")  # fmt: skip
    describe.add_argument("federation", metavar="FEDERATION", help="a name of the catalogue, or with --config a block "
                          "under `federations`")  # fmt: skip
    describe.add_argument("--config", type=Path, nargs="+", default=[], metavar="FILE", help="configuration of a study")
    describe.add_argument("--seed", type=int, default=None, metavar="N", help="of the partition (default: 0, or the "
                          "study's first)")  # fmt: skip
    _verify_parser(commands)
    _assign_parser(commands)
    _claims_parser(commands)
    _evidence_parser(commands)
    site = commands.add_parser("site", help="write one page over all studies, with the papers' numbers beside ours",
                               description="Gather the claims as `clusterfl claims` does and write one page that needs "
                               "no network, FOLDER/claims.html, and the papers' tables as CSV and LaTeX and curves as "
                               "SVG, FOLDER/tables.")  # fmt: skip
    site.add_argument("--out", type=Path, default=Path("results"), metavar="FOLDER", help="where to (default: results)")
    _from(site)
    check = commands.add_parser("check", help="check a configuration without running anything")
    _config(check)
    init = commands.add_parser("init", help="write Snakefile, workflow and a commented configuration into a folder")
    init.add_argument("folder", type=Path, help="folder to write into; made if it isn't there")
    schema = commands.add_parser("schema", help="print the JSON schema or the commented default configuration")
    schema.add_argument("--format", choices=["json", "yaml"], default="json", help="json: schema for editors; "
                        "yaml: the default configuration with a comment on each key")  # fmt: skip
    return parser


def _verify_parser(commands: Any) -> None:
    text = "Check that every result of a study is there, whole, from these settings and inputs, and holds what it " \
           "can hold; evaluate some final models again; name for each damage the command that rebuilds exactly " \
           "that. Exit code 0: sound, 1: not."  # fmt: skip
    parser = commands.add_parser("verify", help="check every file of a study that was run", description=text)
    parser.add_argument("study", nargs="?", metavar="STUDY", help="a name under results/, with the settings that it "
                        "was run with; or give --config instead")  # fmt: skip
    _config(parser)
    parser.set_defaults(config=None)
    _part(parser)
    parser.add_argument("--adopt", action="store_true", help="first take over results of other code than is installed, "
                        "where the quickest of each kind, computed again, has the same bytes")  # fmt: skip
    parser.add_argument("--sample", type=_whole, default=8, metavar="N", help="clients of each result whose final "
                        "accuracies are evaluated again; 0: none (default: 8)")  # fmt: skip
    parser.add_argument("--threads", type=_count, default=1, metavar="N", help="processes that evaluate (default: 1)")
    parser.add_argument("--json", action="store_true", help="a JSON object, and nothing else, on stdout")


def _assign_parser(commands: Any) -> None:
    text = "Give each new client the model that the method's own rule chooses, and say how clear the choice is: the " \
           "margin is the loss of the best other model minus that of the chosen one."  # fmt: skip
    parser = commands.add_parser("assign", help="give new clients a cluster of a study that was run", description=text)
    _config(parser)
    parser.add_argument("--federation", metavar="NAME", help="block under `federations` (default: the only one)")
    parser.add_argument("--seed", type=int, metavar="N", help="one of `seeds.runs` (default: the only one)")
    parser.add_argument("--method", metavar="NAME", help="block under `methods` (default: the only one)")
    parser.add_argument("--data", metavar="PATH", help="the new clients' samples: a table (.csv, .parquet), arrays "
                        "(.npz) or a folder of images (default: the newcomers of the study's partition)")  # fmt: skip
    parser.add_argument("--dataset", metavar="READER", help="table, images or arrays (default: by what PATH is)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", type=_option, help="an option of "
                        "the reader (default: as for the study's own dataset, if it is read by the same)")  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table as CSV, too")
    parser.add_argument("--threads", type=_count, default=1, metavar="N", help="processes (default: 1)")


def _claims_parser(commands: Any) -> None:
    text = "Put the papers' printed numbers and stated orderings beside the results of every study here whose " \
           "settings have a block `claims`; write results/claims.parquet, orderings.parquet, " \
           "discrepancies.parquet (second profiles) and consequences.parquet (of text against released code), and " \
           "print what was found."  # fmt: skip
    parser = commands.add_parser("claims", help="put the papers' printed numbers beside ours", description=text)
    parser.add_argument("--paper", metavar="NAME", help="print only those of lcfl, rr-cluster, clove or fedgwc")
    parser.add_argument("--table", metavar="NUMBER", help="print only those of a table, e.g. II, or of another place "
                        "as the column `where` names it")  # fmt: skip
    parser.add_argument("--verdict", metavar="NAME", help="print only those with it: reproduced, differs, not "
                        "comparable, by construction, undecided, not run; of orderings holds, holds in part, "
                        "fails, ...")  # fmt: skip
    parser.add_argument("--central", action="store_true", help="print the papers' central claims alone: what print "
                        "says, what runs say at each scale, and how much they can say")  # fmt: skip
    parser.add_argument("--counts", action="store_true", help="print counts alone: of verdicts; of printed, released "
                        "and repeated numbers; of those that can be reached; and the verdicts with the methods' names "
                        "exchanged")  # fmt: skip
    _from(parser)


def _from(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", type=Path, nargs="+", metavar="FOLDER", dest="folders", help="where runs are read "
                        "from: results, and folders of evidence; of the same run the first one judges (default: "
                        "results, and docs/reproduction/evidence where it is there)")  # fmt: skip


def _evidence_parser(commands: Any) -> None:
    text = "Keep what verdicts need of every run under results/ in small Parquet files, one for each study, " \
           "federation and origin; `clusterfl claims` and `site` read them beside results, or alone."  # fmt: skip
    parser = commands.add_parser("evidence", help="keep the runs' numbers where they outlive the results",
                                 description=text)  # fmt: skip
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="names under results/ (default: all with a block "
                        "`claims`)")  # fmt: skip
    parser.add_argument("--to", type=Path, default=Path("docs/reproduction/evidence"), metavar="FOLDER", help="where "
                        "to (default: docs/reproduction/evidence)")  # fmt: skip
    parser.add_argument("--origin", metavar="NAME", help="where the runs were made, for the files' names (default: "
                        "branch or processor of each run, and commit)")  # fmt: skip


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}'; allowed: 1, 2, ...")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}'; allowed: 0, 1, 2, ...")
    return int(text)


def _option(text: str) -> tuple[str, Any]:
    import json

    import yaml

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"'{text}'; an option is given as KEY=VALUE")
    if value.startswith(('"', "[", "{")):  # as a job's command has it: YAML reads some of JSON's codes otherwise
        with contextlib.suppress(ValueError):
            return name, json.loads(value)
    try:
        return name, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"'{text}'; the value isn't readable YAML, quote it") from error


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, nargs="+", default=[Path("config.yaml")], metavar="FILE",
        help="configuration; of several files later ones win, key by key (default: config.yaml)",
    )  # fmt: skip


def _part(parser: argparse.ArgumentParser) -> None:
    """Add the options that restrict a command to a part of the study; the report, which is of all, is left out then."""
    parser.add_argument("--table", metavar="NUMBER", help="only what a table of the paper needs, e.g. II")
    parser.add_argument("--federation", metavar="NAME", help="only this block under `federations`")
    parser.add_argument("--method", metavar="NAME", help="only this block under `methods`")
    parser.add_argument("--seed", type=int, metavar="N", help="only this one of `seeds.runs`")


def _wanted(options: argparse.Namespace, plan: Any) -> list[Any] | None:
    """Return the jobs of the part that is asked for; None: all."""
    if (options.table, options.federation, options.method, options.seed) == (None,) * 4:
        return None
    places = None
    if options.table is not None:
        from ..claims.ours import Results

        if plan.study.claims is None:
            raise UserError(f"--table: study '{plan.study.study}' has no block `claims`, which says what tables it has")
        places = Results(plan).places(options.table)
    found: list[Any] = plan.part(options.federation, options.method, options.seed, places)
    return found


def _stage_parser(commands: Any, stage: str, text: str) -> None:
    option = STAGES[stage][0]
    parser = commands.add_parser(stage, help=text, description=f"{text[0].upper()}{text[1:]}.")
    if stage == "download":
        parser.add_argument("name", metavar="NAME", help="name of a dataset, or your own as my_module:function")
        parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", type=_option, help="an "
                            "option of the dataset, its value as in a configuration")  # fmt: skip
        parser.add_argument("--mirror", metavar="PATH-or-URL", help="has the datasets' files, where there is no "
                            "internet (default: the environment variable CLUSTERFL_MIRROR)")  # fmt: skip
        parser.add_argument("--modules", action="append", default=[], metavar="DIR", help="where my_module.py, or a "
                            "file that an option names, lies")  # fmt: skip
        return
    _config(parser)
    if stage != "report":
        parser.add_argument("--federation", required=True, metavar="NAME", help="block under `federations`")
        parser.add_argument("--seed", type=int, required=True, metavar="N", help="one of `seeds.runs`")
    if option:
        parser.add_argument(f"--{option}", required=True, metavar="NAME", dest="name", help=OPTION_HELP[option])
    if stage == "federate":
        parser.add_argument("--trial", type=_count, metavar="N", help="of a swept method: the combination's number",
                            dest="part")  # fmt: skip
    if stage == "losses":
        parser.add_argument("--shard", type=_count, metavar="N", help="which of the distance's shards", dest="part")
    parser.add_argument("--threads", type=_count, default=1, metavar="N", help="processes that train (default: 1); the "
                        "number changes no result")  # fmt: skip
    parser.add_argument("--digest", metavar="HEX", help="digest that the settings must have; the workflow gives it, so "
                        "that a configuration edited meanwhile is noticed")  # fmt: skip
    parser.add_argument("--needed", action="store_true", help="compute only if the files aren't those of these settings"
                        ", inputs and code already; the workflow gives it")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 `verify` found damage, 2 something to mend."""
    _write_any_letter()
    options = _parser().parse_args(arguments)
    try:
        return _told(lambda: _run(options))
    except BrokenPipeError:  # as in `clusterfl jobs | head`; a job whose listener is gone isn't done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if options.command in ("run", *STAGE_HELP) else 0


def _told(work: Callable[[], int]) -> int:
    """Return the exit code of some work, and tell what ended it."""
    try:
        return work()
    except UserError as error:
        print(f"clusterfl: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("clusterfl: interrupted; what was finished is kept", file=sys.stderr)
        return 130
    except Stopped as end:
        print(f"clusterfl: {end}", file=sys.stderr)
        return 128 + end.number


def _write_any_letter() -> None:
    """Let a stream that lacks a letter, e.g. one of ASCII, write one alike or a question mark instead of ending."""

    def alike(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return "".join(LIKE.get(c, "?") for c in error.object[error.start : error.end]), error.end

    codecs.register_error("clusterfl", alike)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="clusterfl")


def _run(options: argparse.Namespace) -> int:
    if options.command == "verify":
        return _verify(options)
    if options.command == "run":
        return _run_here(options)
    _done(options)
    return 0


def _done(options: argparse.Namespace) -> None:
    if options.command == "init":
        from ..pipeline.project import init

        init(options.folder)
        return
    if options.command == "schema":
        from ..config.schema import default_yaml, json_schema

        sys.stdout.write(json_schema() if options.format == "json" else default_yaml())
        return
    from ..config.loading import dataset_block
    from ..data import MIRROR
    from ..pipeline.execute import execute
    from ..pipeline.jobs import Plan, download, search

    if options.command == "download":
        search([".", *options.modules])
        if options.mirror is not None:
            os.environ[MIRROR] = options.mirror
        execute(download(dataset_block(options.name, dict(options.option)), options.modules))
        return
    if options.command in ("describe", "federations"):
        from ..pipeline.describe import describe, listing, verify

        if options.command == "federations" and options.build:
            for line in verify():
                print(line, flush=True)
        elif options.command == "federations":
            sys.stdout.write(listing(options.json))
        else:
            print(describe(options.federation, options.config, options.seed))
        return
    if options.command == "claims":
        from ..claims import gather, show

        results, told = gather.gathered(options.folders)
        _tell(told)
        rows = gather.write(results)
        if options.central:
            print(show.first(gather.central_rows(results), options.paper))
        elif options.counts:
            print(show.summary(rows, results))
        else:
            print(show.text(*show.select(rows, options.paper, options.table, options.verdict)))
        return
    if options.command == "evidence":
        _evidence(options)
        return
    if options.command == "site":
        from ..claims.gather import gathered
        from ..claims.pages.site import write

        results, told = gathered(options.folders)
        _tell(told)
        print(write(options.out, results, told))
        return
    plan = Plan.from_files(options.config)
    if options.command == "check":
        _check_claims(plan)
        jobs = list(plan.jobs())
        print(f"{', '.join(map(str, options.config))} is sound: study '{plan.study.study}', {len(jobs)} jobs")
    elif options.command == "jobs":
        _jobs(options, plan)
    elif options.command == "plan":
        from ..pipeline.estimate.costs import as_json, text
        from ..pipeline.estimate.prediction import Prediction

        prediction = Prediction(plan, options.threads, _wanted(options, plan))
        print((as_json if options.json else text)(prediction))
        if options.save:
            from ..pipeline.requests import save

            print(f"written: {save(prediction)}", file=sys.stderr)
    elif options.command == "summary":
        from ..report.words import summary

        print(summary(plan.study))
    elif options.command == "assign":
        _assign(options, plan)
    else:
        _stage(options, plan)


def _tell(sentences: list[str]) -> None:
    for text in sentences:
        print(f"clusterfl: {printable(text)}", file=sys.stderr)


def _evidence(options: argparse.Namespace) -> None:
    from ..claims import evidence, gather
    from ..storage.store import RESULTS

    if options.origin is not None:
        evidence.check_name(options.origin)
    found = {study.study.study: study for study in gather.studies([RESULTS])}
    for name in options.studies or found:
        written = evidence.write(evidence.study_of(name, found), options.to, options.origin)
        _tell(written.left_out)
        print(written)


def _run_here(options: argparse.Namespace) -> int:
    from ..pipeline import side_by_side
    from ..pipeline.execute import execute, is_done, tidy
    from ..pipeline.jobs import Plan
    from ..storage.locks import running

    plan = Plan.from_files(options.config)
    # All data first: what is wrong with them is told before anything is trained.
    jobs = sorted(plan.jobs(_wanted(options, plan)), key=lambda job: job.stage != "download")
    missing = [job.outputs["samples"].parent for job in jobs if job.stage == "download" and not is_done(job)]

    for job in jobs:
        job.code_digest  # noqa: B018 (found once here, not by every process that is forked for a job)

    def do(number: int) -> int:
        job = jobs[number]
        if is_done(job):
            tidy(job)
        else:
            print(f"[{number + 1}/{len(jobs)}] {job}", file=sys.stderr)
            execute(job, options.threads, plan.study.engine.chunk)
        return 0

    with running(plan.snapshot.parent, missing, "clusterfl run", shared=True):
        plan.save()
        if options.jobs > 1:
            return side_by_side.run(jobs, options.jobs, lambda number: _told(lambda: do(number)))
        for number in range(len(jobs)):
            do(number)
        return 0


def _jobs(options: argparse.Namespace, plan: Any) -> None:
    wanted = _wanted(options, plan)
    if options.files:
        print("\n".join(str(job.outputs["history"]) for job in (plan.part() if wanted is None else wanted)))
    else:
        print("\n".join(job.command for job in plan.jobs(wanted)))


def _check_claims(plan: Any) -> None:
    from ..claims.ours import problems
    from ..config.checks import report

    found = problems(plan.study)
    if found:
        raise UserError(report(", ".join(map(str, plan.files)), found))


def _verify(options: argparse.Namespace) -> int:
    from ..pipeline.jobs import Plan
    from ..pipeline.verify.study import Verdict, named, verify

    if options.study is not None and options.config is not None:
        raise UserError(f"verify: both STUDY ('{options.study}') and --config given; give one of them")
    files = options.config or [Path("config.yaml")]
    plan = Plan.from_files(files) if options.study is None else named(options.study)
    if options.adopt and isinstance(plan, Plan):
        from ..pipeline.verify.adopt import adopt

        print(adopt(plan, _wanted(options, plan), options.threads), file=sys.stderr if options.json else sys.stdout)
    found = plan if isinstance(plan, Verdict) else verify(plan, _wanted(options, plan), options.sample, options.threads)
    print(found.json() if options.json else found)
    return 0 if found.sound else 1


def _assign(options: argparse.Namespace, plan: Any) -> None:
    from ..pipeline.assign import assign, text, write

    where = (options.federation, options.seed, options.method)
    found = assign(plan, *where, options.data, options.dataset, dict(options.option), options.threads)
    print(printable(text(found)))
    if options.output is not None:
        write(found, options.output)


def _stage(options: argparse.Namespace, plan: Any) -> None:
    from ..pipeline.execute import execute

    address = [getattr(options, key, None) for key in ("federation", "seed", "name", "part")]
    job = plan.job(options.command, *address)
    if options.digest and options.digest != job.settings_digest:
        raise UserError(
            f"{job}: the configuration changed since this run was planned (settings {job.settings_digest}, planned "
            f"{options.digest}); start snakemake again. Values given with --config on its command line don't reach the "
            "jobs: put them into a file and add it with --configfile"
        )
    execute(job, options.threads, plan.study.engine.chunk, options.needed)


if __name__ == "__main__":
    sys.exit(main())
