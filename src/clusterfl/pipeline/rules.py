"""The Snakefile's side of a plan: inputs, settings and digests of a rule's job, by its wildcards."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..storage import digest
from .chain import STAGES
from .job import Job
from .jobs import Plan


class Rules:
    """What the rules ask of a plan's jobs, as functions of a rule's wildcards."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def job(self, stage: str) -> Callable[[Any], Job]:
        """Return a function from a rule's wildcards to its job."""

        def find(wildcards: Any) -> Job:
            seed = wildcards.get("seed")
            block, parts = STAGES[stage].block, STAGES[stage].part
            name, part = (wildcards.get(kind) if kind else None for kind in (block, parts))
            numbers = [None if number is None else int(number) for number in (seed, part)]
            return self.plan.job(stage, wildcards.get("federation"), numbers[0], name, numbers[1])

        return find

    def inputs(self, stage: str) -> Callable[[Any], list[str]]:
        """Return a rule's input function."""
        return lambda wildcards: [str(p) for p in dict.fromkeys(self.job(stage)(wildcards).inputs.values())]

    def settings(self, stage: str) -> Callable[[Any], str]:
        """Return the function of a rule's settings, as canonical JSON: a changed value reruns the rule."""
        return lambda wildcards: digest.canonical(self.job(stage)(wildcards).settings)

    def code(self, stage: str) -> Callable[[Any], str]:
        """Return the function of a rule's code digest: changed code reruns the rule."""
        return lambda wildcards: self.job(stage)(wildcards).code_digest

    def digest(self, stage: str) -> Callable[[Any], str]:
        """Return the function of the settings' digest, which the job must find in the snapshot."""
        return lambda wildcards: self.job(stage)(wildcards).settings_digest

    def targets(self) -> list[str]:
        """Return what a run asks for: the report's files and every method's, so that a deleted one is made again."""
        wanted = [job for job in self.plan.jobs() if job.stage in ("report", "select", "federate")]
        return [str(path) for job in reversed(wanted) for path in job.outputs.values()]

    def methods(self, swept: bool) -> str:
        """Return a pattern of the methods that are swept, or of the others: different rules write their files."""
        names = [re.escape(name) for name in self.plan.study.methods if (name in self.plan.swept) == swept]
        return "|".join(names) or "(?!)"  # which nothing matches

    def dataset(self, wildcards: Any) -> str:
        """Return the arguments of ``clusterfl download``: the dataset, and where a module of the user's own may lie."""
        return self.job("download")(wildcards).command.removeprefix("clusterfl download ")


def commands_on_path() -> None:
    """Let the rules find ``clusterfl`` beside the running Python, also where its environment isn't activated."""
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", "")])
