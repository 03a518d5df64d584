"""Commands of whole studies: run them, list and estimate their jobs, check and verify them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .common import config, count, exit_code, one_of, part, plan_of, study, wanted, warn, whole

if TYPE_CHECKING:
    from ..data.samples import Samples, Table
    from ..pipeline.jobs import Plan


def add_run(commands: Any) -> None:
    """Add `run`, `jobs`, `plan` and `summary`."""
    run = commands.add_parser("run", help="run every stage here, without Snakemake", description="Run every stage of "
                              "a study one after another, skipping results that are still valid.")  # fmt: skip
    run.set_defaults(run=_run)
    config(run)
    run.add_argument("--jobs", type=count, default=1, metavar="N", help="jobs at the same time (default: 1)")
    run.add_argument("--threads", type=count, default=1, metavar="N", help="processes that train, in each job "
                     "(default: 1)")  # fmt: skip
    run.add_argument("--keep-going", action="store_true", help="after a job fails, do all that don't depend on it, as "
                     "Snakemake does here")  # fmt: skip
    part(run)
    jobs = commands.add_parser("jobs", help="list the commands of a study's jobs", description="List a study's jobs.")
    jobs.set_defaults(run=_jobs)
    config(jobs)
    part(jobs)
    jobs.add_argument("--files", action="store_true", help="list the result files of the methods instead, for Snakemake"
                      " to make")  # fmt: skip
    words = "Estimate seconds, memory and bytes of each job before it runs, from some seconds of measuring."
    plan = commands.add_parser("plan", help="estimate what each job will cost", description=words)
    plan.set_defaults(run=_plan)
    config(plan)
    plan.add_argument("--threads", type=count, default=1, metavar="N", help="processes that train (default: 1)")
    plan.add_argument("--json", action="store_true", help="a JSON object, and nothing else, on stdout")
    plan.add_argument("--save", action="store_true", help="store it beside the results: requests to a cluster then "
                      "follow it, and short jobs are grouped")  # fmt: skip
    part(plan)
    summary = commands.add_parser("summary", help="say what a study's report shows, in a few lines")
    summary.set_defaults(run=_summary)
    study(summary)
    summary.add_argument("--json", action="store_true", help="a JSON object, and nothing else, on stdout")


def add_verify(commands: Any) -> None:
    """Add `verify`."""
    text = "Check that every result of a study is there, is complete, comes from these settings and inputs, and has " \
           "possible values; evaluate some final models again; for each damaged result, name the command that " \
           "rebuilds exactly that. Exit code 0: sound, 1: not."  # fmt: skip
    parser = commands.add_parser("verify", help="check every file of a study that was run", description=text)
    study(parser)
    parser.set_defaults(run=_verify)
    part(parser)
    parser.add_argument("--adopt", action="store_true", help="first take over results of code other than installed, "
                        "if the quickest of each kind, computed again, has the same bytes")  # fmt: skip
    parser.add_argument("--sample", type=whole, default=8, metavar="N", help="clients of each result whose final "
                        "accuracies are evaluated again; 0: none (default: 8)")  # fmt: skip
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="processes that evaluate (default: 1)")
    parser.add_argument("--json", action="store_true", help="a JSON object, and nothing else, on stdout")


def add_check(commands: Any) -> None:
    """Add `check`."""
    check = commands.add_parser(
        "check", help="check a configuration, and tables and arrays that it names, without running anything"
    )
    check.set_defaults(run=_check)
    config(check)


def _run(options: argparse.Namespace) -> int:
    from ..pipeline.running import run

    plan = plan_of(options)
    number, going = options.jobs, options.keep_going
    return run(plan, wanted(options, plan), "clusterfl run", exit_code, number, options.threads, keep_going=going)


def _jobs(options: argparse.Namespace) -> None:
    plan = plan_of(options)
    found = wanted(options, plan)
    if options.files:
        print("\n".join(str(job.outputs["history"]) for job in (plan.part() if found is None else found)))
    else:
        print("\n".join(job.command for job in plan.jobs(found)))


def _plan(options: argparse.Namespace) -> None:
    from ..pipeline.estimate.estimate import Estimate
    from ..pipeline.estimate.table import as_json, text

    plan = plan_of(options)
    estimate = Estimate(plan, options.threads, wanted(options, plan))
    print((as_json if options.json else text)(estimate))
    if options.save:
        from ..pipeline.requests import save

        print(f"written: {save(estimate)}", file=sys.stderr)


def _summary(options: argparse.Namespace) -> None:
    from ..report.words import as_json, summary

    print((as_json if options.json else summary)(plan_of(options, sources=False).study))


def _verify(options: argparse.Namespace) -> int:
    from ..pipeline.jobs import Plan
    from ..pipeline.verify.study import Verdict, named, verify

    one_of(options)
    plan = plan_of(options, sources=False) if options.study is None else named(options.study)
    if options.adopt and isinstance(plan, Plan):
        from ..pipeline.verify.adopt import adopt

        print(adopt(plan, wanted(options, plan), options.threads), file=sys.stderr if options.json else sys.stdout)
    found = plan if isinstance(plan, Verdict) else verify(plan, wanted(options, plan), options.sample, options.threads)
    print(found.json() if options.json else found)
    return 0 if found.sound else 1


def _own_data(plan: Plan) -> tuple[list[str], list[str]]:
    """Return what is wrong with the user's own data, or with their partition, and remarks about them.

    Of images only their list is checked, and of each federation only the first seed's partition.
    """
    from ..data.names import given
    from ..data.samples import read_samples
    from ..pipeline.execute import is_done
    from ..pipeline.newcomers import READERS
    from ..pipeline.stages.partition import left_out, make, unscored
    from ..storage.manifest import manifest_path
    from ..storage.store import read_json

    found: dict[Path, tuple[Samples, dict[str, list[str]]]] = {}  # and names, by what the download writes
    seen = set[str | None]()
    problems, remarks = list[str](), list[str]()
    for job in plan.jobs():
        try:
            if job.stage == "download" and job.settings["dataset"] in READERS:
                if is_done(job):
                    names = read_json(manifest_path(job.first)).get("names", {})
                    pixels = job.settings["dataset"] == "images"  # may be many
                    read = read_samples(job.first, *(("y", "test", "owner", "group", "classes") if pixels else ()))
                    found[job.first] = read, names
                else:
                    samples = _look(job.settings["dataset"], job.settings["options"])
                    found[job.first] = samples, given(samples)
            there = job.stage == "partition" and job.inputs["samples"] in found
            if there and job.federation not in seen and ":" not in job.settings["scheme"]:
                seen.add(job.federation)
                samples, names = found[job.inputs["samples"]]
                begin = f"federations.{job.federation}.partition: "
                table = make(job.settings, samples, job.settings["seed"], begin, names)
                warnings = [*left_out(job.settings, samples, table, names), *unscored(table)]
                remarks += [f"{job.federation}: {one}" for one in warnings]
                if samples.x.size:  # transforms and `inputs` are for certain samples only
                    _fits(samples, table, plan, str(job.federation))
        except UserError as error:
            problems.append(str(error))
    return problems, remarks


def _fits(samples: Samples, table: Table, plan: Plan, federation: str) -> None:
    """Raise an error if a federation's transforms or `inputs` aren't for such samples, as training would."""
    from ..data.load import clients

    try:
        clients(samples, table, plan.study.federations[federation].inputs)
    except UserError as error:
        raise UserError(f"federations.{federation}: {error}") from error


def _look(dataset: str, options: dict[str, Any]) -> Samples:
    from ..pipeline.stages.download import obtain

    if dataset == "images":
        from ..data.readers.own import Roles, images_listed

        roles = Roles(*(options[name] for name in Roles._fields))
        return images_listed(
            options["path"], options["images"], options.get("folders"), options["file"], roles, options["task"]
        )[1]
    with TemporaryDirectory() as folder:
        return obtain(dataset, Path(folder), options)[0]


def _no_folders(plan: Plan) -> list[str]:
    """Return a sentence about each folder of the user's own modules that doesn't exist.

    Not of settings that a run has kept: they name the folder of the file that it was started with, too, which needn't
    be where they were copied to.
    """
    return [] if plan.snapshot in plan.files else [
        f"modules: found '{folder}', which isn't a folder seen from {Path.cwd()}; allowed: folders with Python "
        "modules, absolute or seen from there; correct it, or leave it out"
        for folder in plan.study.modules if not Path(folder).is_dir()
    ]  # fmt: skip


def _check(options: argparse.Namespace) -> None:
    from ..claims.ours import problems
    from ..config.sentences import report

    plan = plan_of(options)
    files = ", ".join(map(str, plan.files))
    unreadable, remarks = _own_data(plan)
    found = [*problems(plan.study), *_no_folders(plan), *unreadable]
    if found:
        raise UserError(report(files, found))
    warn(remarks)
    print(f"{files} is sound: study '{plan.study.study}', {len(list(plan.jobs()))} jobs")
