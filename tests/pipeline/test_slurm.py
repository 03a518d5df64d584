"""What keeps a run on SLURM from waiting for ever, without a SLURM: its commands and Snakemake are made up."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as plugin

from clusterfl.pipeline import slurm


class Scheduler:
    """As Snakemake's: what runs, and what it was answered."""

    def __init__(self):
        self.running, self.done, self.failed, self.errors = set(), [], [], []
        self.submit_callback = lambda job: None

    def finish_callback(self, job):
        self.done.append(job)

    def error_callback(self, job):
        self.failed.append(job)

    def executor_error_callback(self, error):
        self.errors.append(str(error))


class Job(SimpleNamespace):
    """As Snakemake's."""

    __hash__ = object.__hash__

    def register(self, external_jobid):
        """Do nothing."""

    def log_error(self, msg, **more):
        """Do nothing."""


class Limiter:
    """No limit."""

    async def __aenter__(self):
        """Do nothing."""

    async def __aexit__(self, *_):
        """Do nothing."""


def made(base, command="squeue"):
    """Return an executor that asks nobody by itself."""
    executor = base.__new__(base)
    settings = SimpleNamespace(
        status_attempts=5, status_command=command, init_seconds_before_status_checks=20, keep_successful_logs=True
    )
    remote = SimpleNamespace(seconds_between_status_checks=10)
    executor.workflow = SimpleNamespace(
        executor_settings=settings, scheduler=Scheduler(), remote_execution_settings=remote
    )
    executor.logger, executor.run_uuid, executor.lock = logging.getLogger("made"), "run", threading.Lock()
    executor.status_rate_limiter, executor._next_seconds_between_status_checks = Limiter(), None
    executor._status_query_calls = executor._status_query_failures = 0
    executor._status_query_total_seconds = executor._status_query_max_seconds = 0.0
    executor._status_query_min_seconds, executor._status_query_cycle_rows = None, []
    executor.active_jobs, executor.waiting, executor._submitted_job_clusters = [], {}, set()
    return executor


def submit(executor, *numbers, **resources):
    """Submit jobs, which Snakemake runs from now on."""
    for number in numbers:
        job = Job(number=number, resources=resources)
        executor.workflow.scheduler.running.add(job)
        executor.report_job_submission(plugin.SubmittedJobInfo(job, external_jobid=number, aux={}))


def check(executor):
    """Ask once for all jobs, as Snakemake's thread does, and return which will be asked for again."""

    async def ask():
        return [job async for job in executor.check_active_jobs(list(executor.active_jobs))]

    executor.active_jobs = asyncio.run(ask())
    return [job.external_jobid for job in executor.active_jobs]


def ended(executor):
    return [job.number for job in executor.workflow.scheduler.done]


@pytest.fixture(autouse=True)
def commands(tmp_path, monkeypatch):
    """Put SLURM's commands first on the PATH: accounting is off, and the rest is what a test says."""

    def command(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    command("scontrol", "echo 'MinJobAge = 300 sec'")
    command("squeue", "echo '1|COMPLETED|None|/'; echo '2|RUNNING|None|/'; echo '3|FAILED|NonZeroExitCode|/'")
    return command


@pytest.mark.parametrize(
    "wanted, scontrol", [("squeue", "exit 1"), ("squeue", "echo 'MinJobAge = 2 sec'"), ("sacct", "")]
)
def test_where_accounting_knows_nothing_squeue_is_asked(commands, monkeypatch, wanted, scontrol):
    """As `scontrol` that takes too long: nothing is known of MinJobAge. The plugin alone forgets all three jobs."""
    commands("scontrol", scontrol)
    executor = made(slurm.Executor, wanted)
    submit(executor, "1", "2", "3")
    assert check(executor) == ["2"] and ended(executor) == ["1"]
    assert [job.number for job in executor.workflow.scheduler.failed] == ["3"]
    assert list(executor.waiting) == ["2"]

    monkeypatch.setattr(plugin, "query_job_status", slurm._ask)
    bare = made(plugin.Executor, wanted)
    submit(bare, "1", "2", "3")
    assert check(bare) == [] and ended(bare) == [], "the plugin has no fault any more: pipeline.slurm may be needless"


def test_accounting_that_works_is_believed(commands):
    commands("sacct", "echo '1|COMPLETED'; echo '2|COMPLETED'")
    executor = made(slurm.Executor, "sacct")
    submit(executor, "1", "2")
    assert check(executor) == [] and ended(executor) == ["1", "2"]


def test_no_job_is_forgotten_while_squeue_fails(commands):
    executor = made(slurm.Executor)
    submit(executor, "1", "2")
    commands("squeue", "exit 1")
    for _ in range(3):
        assert check(executor) == ["1", "2"] and ended(executor) == []
    commands("squeue", "echo '1|COMPLETED|None|/'; echo '2|COMPLETED|None|/'")
    assert check(executor) == [] and ended(executor) == ["1", "2"] and not executor.waiting


def test_all_jobs_are_cancelled_also_while_squeue_is_asked(commands, monkeypatch):
    executor = made(slurm.Executor)
    submit(executor, "1", "2")
    executor.active_jobs.clear()  # as Snakemake's thread does before it asks
    cancelled = []
    monkeypatch.setattr(plugin.Executor, "shutdown", lambda self: None)
    monkeypatch.setattr(
        plugin.Executor, "cancel_jobs", lambda self, jobs: cancelled.extend(j.external_jobid for j in jobs)
    )
    executor.cancel()
    assert cancelled == ["1", "2"]


class End(threading.Event):
    """Ends the watch after some looks, and counts them; what it is asked to do happens before a look."""

    def __init__(self, looks, **before):
        super().__init__()
        self.looks, self.seen, self.before = looks, 0, {int(number[1:]): do for number, do in before.items()}

    def wait(self, seconds=None):
        """Return whether the watch ends."""
        self.seen += 1
        self.before.get(self.seen, lambda: None)()
        return self.seen > self.looks


@pytest.fixture
def queue(monkeypatch):
    """What squeue says, by job, None: it fails; and the codes with which the watch ended the process."""
    queue = SimpleNamespace(states={}, codes=[])
    monkeypatch.setattr(slurm.os, "_exit", queue.codes.append)
    monkeypatch.setattr(
        slurm, "_squeue", lambda: queue.states and [[n, s, "None", "/"] for n, s in queue.states.items()]
    )
    return queue


def watched(executor, end):
    """Let the watch look, and return what Snakemake was asked to end with."""
    slurm.watch(executor, end)
    return executor.workflow.scheduler.errors


@pytest.mark.parametrize(
    "state, said", [("COMPLETED", "SLURM has ended job 1 (COMPLETED)."), (None, "SLURM has forgotten job 1.")]
)
def test_a_run_that_waits_for_what_slurm_has_finished_or_forgotten_is_ended(queue, monkeypatch, state, said):
    monkeypatch.setattr(slurm.sys, "argv", ["/x/__main__.py", "--configfile", "my study.yaml"])
    queue.states = {"9": "RUNNING"} | ({"1": state} if state else {})
    executor = made(slurm.Executor)
    submit(executor, "1")
    assert not watched(executor, End(slurm.LOOKS - 1))
    (error,) = watched(executor, End(slurm.LOOKS))
    assert error.startswith(said) and "the same command continues: snakemake --configfile 'my study.yaml'" in error


def test_a_job_that_is_seen_again_is_waited_for(queue):
    """As one that is just submitted, or put back into the queue after its node failed."""
    executor = made(slurm.Executor)
    submit(executor, "1")
    alive, dead = (partial(queue.states.update, {"1": state}) for state in ("PENDING", "NODE_FAIL"))
    dead()
    assert not watched(executor, End(slurm.LOOKS + 5, _15=alive, _16=dead))


def test_while_squeue_fails_nothing_is_known_and_nothing_ended(queue):
    executor = made(slurm.Executor)
    submit(executor, "1")
    queue.states = None
    assert not watched(executor, End(10 * slurm.LOOKS))
    fail, answer = (partial(setattr, queue, "states", states) for states in (None, {"1": "COMPLETED"}))
    assert not watched(executor, End(slurm.LOOKS + 3, _1=answer, _3=fail, _7=answer))
    assert watched(executor, End(slurm.LOOKS + 4, _1=answer, _3=fail, _7=answer)), "it waits forever"


def test_the_run_goes_on_while_another_job_lives(queue, capsys):
    """A job of another cluster, of which squeue here says nothing; a download on this machine; one that runs."""
    for kind in ("elsewhere", "local", "alive"):
        capsys.readouterr()
        executor = made(slurm.Executor)
        submit(executor, "1")
        queue.states = {"2": "RUNNING"}
        submit(executor, *(["2"] if kind == "alive" else []))
        submit(executor, *(["3"] if kind == "elsewhere" else []), clusters="far")
        executor.workflow.scheduler.running.update(["download"] if kind == "local" else [])
        assert not watched(executor, End(3 * slurm.LOOKS))
        assert capsys.readouterr().err.count("SLURM has forgotten job 1,") == 1
        executor.workflow.scheduler.running = {executor.waiting["1"].job}
        executor.waiting = {"1": executor.waiting["1"]}
        assert watched(executor, End(slurm.LOOKS))


def test_who_asks_seldom_is_waited_for_longer(queue):
    queue.states = {"1": "COMPLETED"}
    executor = made(slurm.Executor)
    executor.workflow.executor_settings.init_seconds_before_status_checks = 10 * slurm.EVERY
    submit(executor, "1")
    assert not watched(executor, End(29)) and watched(executor, End(30))


def test_snakemake_that_does_not_end_is_ended(queue):
    executor = made(slurm.Executor)
    submit(executor, "1")
    queue.states = {"9": "RUNNING"}
    watched(executor, End(slurm.LOOKS))
    assert queue.codes == []
    watched(executor, End(slurm.LOOKS + 1))
    assert queue.codes == [1]


def test_a_squeue_that_fails_or_is_absent_is_no_answer(commands, tmp_path, monkeypatch):
    commands("squeue", "echo 'No news'; echo '1|COMPLETED|None|/'; echo '2|RUNNING|None|/a|b'")
    assert slurm._squeue() == [["1", "COMPLETED", "None", "/"], ["2", "RUNNING", "None", "/a|b"]]
    commands("squeue", "echo '1|COMPLETED|None|/'; exit 1")
    assert slurm._squeue() is None
    (tmp_path / "squeue").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm._squeue() is None


def test_only_hopeless_jobs_of_this_folder_are_cancelled():
    rows = [
        ["7", "PENDING", "PartitionConfig", "/here"], ["8", "PENDING", "Resources", "/here"],
        ["9", "PENDING", "PartitionConfig", "/elsewhere"], ["10", "PENDING", "BadConstraints", "/here"],
        ["11", "CANCELLED", "BadConstraints", "/here"],
    ]  # fmt: skip
    assert slurm.hopeless(rows, "/here") == [("7", "PartitionConfig"), ("10", "BadConstraints")]
