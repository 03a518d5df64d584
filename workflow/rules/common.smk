# The configuration, checked as a whole, and the plan of jobs that it makes. Every rule asks it for its inputs,
# its settings (a changed value reruns the rule) and the digest of the code it depends on (a changed line reruns it).
import atexit
from contextlib import ExitStack
from pathlib import Path

from clusterfl.cli import forking
from clusterfl.pipeline import kept
from clusterfl.errors import UserError
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.requests import Requests
from clusterfl.pipeline.rules import Rules, commands_on_path
from clusterfl.storage.locks import running
from snakemake.exceptions import WorkflowError
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

commands_on_path()
if workflow.config_settings.config:
    raise WorkflowError(
        "values given with --config reach no job, and YAML's types get lost on the way; "
        "put them into a file and add it: --configfile config.yaml changes.yaml"
    )
try:
    # Merged by the package, not by Snakemake: a block that names another part replaces the earlier one's options.
    plan = Plan.from_files(workflow.configfiles)
except UserError as error:
    raise WorkflowError(str(error))


def force(file):
    """Let the job that makes a file run: what Snakemake itself wrote down doesn't say that it must."""
    if workflow.is_main_process:
        workflow.dag.forcefiles.add(file)


ask, requests = Rules(plan, force), Requests(plan)
plugins = ExecutorPluginRegistry()
if plugins.is_installed("slurm"):
    from clusterfl.pipeline.slurm import Executor

    # In place of the plugin's own, which can wait for ever.
    plugins.get_plugin("slurm").executor = Executor


wildcard_constraints:
    study=plan.study.study,
    federation="[^/]+",
    seed="[0-9]+",


claims = ExitStack()
aside = plan.snapshot.parent / ".work" / kept.FOLDER


def keep():
    """Keep the files of the planned jobs, but for those that are asked to be made again."""
    planned = [
        job
        for job in workflow.dag.needrun_jobs()
        if not workflow.dag.reason(job).forced
    ]
    kept.keep([Path(path) for job in planned for path in job.output], aside)
    atexit.register(kept.drop, aside)


def claim():
    """Keep others from running the study, or fetching what this run fetches, until Snakemake ends."""
    missing = [
        Path(job.output.samples).parent
        for job in workflow.dag.needrun_jobs()
        if job.rule.name == "download"
    ]
    try:
        claims.enter_context(running(plan.snapshot.parent, missing, "snakemake"))
    except UserError as error:
        raise WorkflowError(str(error))
    atexit.register(claims.close)


def begin():
    """Claim the study, and write down the settings that this run was started with: its jobs read those."""
    if workflow.is_main_process:
        claim()
        keep()
    plan.save()
    if workflow.is_main_process and workflow.local_exec:
        end = forking.begin(len(list(workflow.dag.needrun_jobs())), plan.snapshot)
        if end:
            atexit.register(end)


onstart:
    begin()


# Of a workflow that another one takes over as a module (the catalog's way) Snakemake omits the handlers.
if not workflow.modifier.is_main_snakefile():
    theirs = workflow._onstart
    workflow._onstart = lambda log: (theirs(log), begin())
