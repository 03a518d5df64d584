"""Commands of single stages, as the workflow's rules and a cluster's jobs call them."""

from __future__ import annotations

import argparse
import gc
import os
from functools import partial
from typing import Any

from ..errors import UserError
from ..pipeline.chain import STAGES, Stage
from .common import config, count, option, plan_of, study

PARTS = {"trial": "number of a swept method's combination", "shard": "which of the distance's shards"}


def add(commands: Any) -> None:
    """Add a command for each stage."""
    for stage in STAGES.values():
        parser = commands.add_parser(
            stage.name, help=stage.help, description=f"{stage.help[0].upper()}{stage.help[1:]}."
        )
        if stage.name == "download":
            _add_download(parser)
        else:
            _add_stage(parser, stage)


def _add_download(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_download)
    parser.add_argument("name", metavar="NAME", help="name of a dataset, or your own as my_module:function")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", type=option, help="an option of "
                        "the dataset, its value as in a configuration")  # fmt: skip
    parser.add_argument("--mirror", metavar="PATH-or-URL", help="folder or address with the datasets' files, "
                        "if there is no internet (default: the environment variable CLUSTERFL_MIRROR)")  # fmt: skip
    parser.add_argument("--modules", action="append", default=[], metavar="DIR", help="folder of my_module.py, or of a "
                        "file that an option names")  # fmt: skip


def _add_stage(parser: argparse.ArgumentParser, stage: Stage) -> None:
    parser.set_defaults(run=partial(_run, stage.name))
    (study if stage.name == "report" else config)(parser)
    if stage.name != "report":
        parser.add_argument("--federation", required=True, metavar="NAME", help="block under `federations`")
        parser.add_argument("--seed", type=int, required=True, metavar="N", help="one of `seeds.runs`")
    if stage.block:
        parser.add_argument(f"--{stage.block}", required=True, metavar="NAME", dest="name",
                            help=f"block under `{stage.block}s`")  # fmt: skip
    if stage.part:
        parser.add_argument(f"--{stage.part}", type=count, metavar="N", dest="part", help=PARTS[stage.part])
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="processes that train (default: 1); the "
                        "number changes no result")  # fmt: skip
    parser.add_argument("--digest", metavar="HEX", help="digest that the settings must have; the workflow gives it, so "
                        "that a change of the configuration in the meantime is noticed")  # fmt: skip
    parser.add_argument("--needed", action="store_true", help="compute only if the existing files aren't of these "
                        "settings, inputs and code; the workflow gives it")  # fmt: skip


def _download(options: argparse.Namespace) -> None:
    from ..config.loading import dataset_block
    from ..data import MIRROR
    from ..pipeline.execute import execute
    from ..pipeline.job import download
    from ..pipeline.jobs import search

    search([".", *options.modules])
    if options.mirror is not None:
        os.environ[MIRROR] = options.mirror
    execute(download(dataset_block(options.name, dict(options.option)), options.modules))


def _run(stage: str, options: argparse.Namespace) -> None:
    gc.disable()  # until it computes: what is imported stays, and to look for garbage there takes a tenth of a start
    try:
        _execute(stage, options)
    finally:
        gc.enable()


def _execute(stage: str, options: argparse.Namespace) -> None:
    from ..pipeline.execute import execute

    plan = plan_of(options)
    address = [getattr(options, key, None) for key in ("federation", "seed", "name", "part")]
    job = plan.job(stage, *address)
    if options.digest and options.digest != job.settings_digest:
        raise UserError(
            f"{job}: the configuration changed since this run was planned (settings {job.settings_digest}, planned "
            f"{options.digest}); start snakemake again. Values given with --config on its command line don't reach the "
            "jobs: put them into a file and add it with --configfile"
        )
    execute(job, options.threads, plan.study.engine.chunk, options.needed)
