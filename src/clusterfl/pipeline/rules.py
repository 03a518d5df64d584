"""A plan as the Snakefile needs it: inputs, settings and digests of a rule's job, by its wildcards."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..storage import digest
from ..storage.manifest import manifest_path
from ..storage.store import read_json
from .chain import STAGES
from .job import Job
from .jobs import Plan


class Rules:
    """Properties of a plan's jobs, as functions of a rule's wildcards.

    Parameters
    ----------
    plan
        The study's plan.
    force
        Called with a file of each result that was made with other settings or code, when its inputs are requested.
        Snakemake detects such changes only for files that it made itself; results of `clusterfl run` or a pasted
        command, and copied results, are always up to date for it.
    """

    def __init__(self, plan: Plan, force: Callable[[str], None] = lambda file: None):
        self.plan, self.force = plan, force

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

        def find(wildcards: Any) -> list[str]:
            job = self.job(stage)(wildcards)
            if _made_otherwise(job):
                self.force(str(job.first))
            return [str(p) for p in dict.fromkeys(job.inputs.values())]

        return find

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
        """Return a run's targets: the report's files and every method's, so that a deleted file is made again."""
        wanted = [job for job in self.plan.jobs() if job.stage in ("report", "select", "federate")]
        return [str(path) for job in reversed(wanted) for path in job.outputs.values()]

    def methods(self, swept: bool) -> str:
        """Return a pattern for the swept methods, or for the others: different rules make their files."""
        names = [re.escape(name) for name in self.plan.study.methods if (name in self.plan.swept) == swept]
        return "|".join(names) or "(?!)"  # matches nothing

    def dataset(self, wildcards: Any) -> str:
        """Return the arguments of ``clusterfl download``: the dataset, options, and folders of the user's modules."""
        return self.job("download")(wildcards).command.removeprefix("clusterfl download ")


def _made_otherwise(job: Job) -> bool:
    """Return whether a job's first file exists but its manifest has another identity, settings or code."""
    if not job.first.exists():
        return False
    # The code of a download isn't compared: users with other versions may share a folder that is read-only to them.
    code = {} if job.stage == "download" else {"code": job.code_digest}
    expected = job.identity | {"settings": job.settings_digest} | code
    try:
        manifest = read_json(manifest_path(job.first))
    except UserError:
        return True
    return not isinstance(manifest, dict) or any(manifest.get(key) != value for key, value in expected.items())


def commands_on_path() -> None:
    """Let the rules find the ``clusterfl`` of the running Python, even if its environment isn't activated."""
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([scripts, os.environ.get("PATH", "")])
