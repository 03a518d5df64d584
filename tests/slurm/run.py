#!/usr/bin/env python3
"""The workflow on a real SLURM of two nodes on this machine: the default study, and what can go wrong.

Run by `make test-slurm`; ARGS="--only oom cancel" runs some cases. Needs Debian's slurmctld, slurmd, slurm-client and
munge, root, and no other SLURM here; exit code 77 says that one of these is missing, 1 that a case failed. A case that
exceeds its time limit is ended, and it is said where it waited.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
CONF, OURS = Path("/etc/slurm/slurm.conf"), "# written by clusterfl's tests/slurm/run.py"
STATE = Path("/var/tmp/clusterfl-slurm")
NODES = {"n1": "Port=17001 CPUs=2 RealMemory=8000 Gres=gpu:1", "n2": "Port=17002 CPUs=2 RealMemory=8000"}
NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "munged")
# Snakemake finds these three in COMMANDS first; each does what `trouble` says, or else what SLURM's own does.
COMMANDS = STATE / "commands"
TROUBLED = ("scontrol", "squeue", "sacct")
# Snakemake with a watch that looks every 3 seconds instead of every 30.
HASTY = ("-c", "from clusterfl.pipeline import slurm; slurm.EVERY = 3.0; from snakemake.cli import main; main()")
SEEN = ("timing.parquet", ".tmp")
SKIPPED = ("logs", "report.html", "tables", "figures", "plan.json", "settings.json", "manifest.json")


def missing() -> str:
    """Return why nothing can be tested here; empty: it can."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not found; apt-get install slurmctld slurmd slurm-client munge"
    if os.geteuid() != 0:
        return "only root can start SLURM's daemons"
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "snakemake-executor-plugin-slurm isn't installed; pip install 'clusterfl[slurm]'"
    if CONF.exists() and OURS not in CONF.read_text():
        return f"{CONF} is another SLURM's"
    return ""


class Cluster:
    """Two nodes on this machine, one of them with a made-up GPU."""

    def start(self) -> None:
        shutil.rmtree(STATE, ignore_errors=True)
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (STATE / name).mkdir(parents=True)
        COMMANDS.mkdir()
        for name in TROUBLED:
            command = COMMANDS / name
            command.write_text(
                f'#!/bin/sh\nif [ -e $0.trouble ]; then . $0.trouble; fi\nexec {shutil.which(name)} "$@"\n'
            )
            command.chmod(0o755)
        nodes = "\n".join(f"NodeName={n} NodeHostname=localhost {has}" for n, has in NODES.items())
        CONF.write_text((HERE / "slurm.conf").read_text().format(state=STATE, nodes=nodes, ours=OURS))
        (CONF.parent / "gres.conf").write_text("NodeName=n1 Name=gpu File=/dev/null\n")
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m", "755", "/run/munge"], check=True)
        if not _pid(Path("/run/munge/munged.pid")):
            subprocess.run(["runuser", "-u", "munge", "--", shutil.which("munged")], check=True)
        self.start_controller()
        for node in NODES:
            subprocess.run(["slurmd", "-N", node], check=True)
        idle = {f"{node} idle" for node in NODES}
        until(lambda: set(tell("sinfo", "-h", "-N", "-o", "%N %T").splitlines()) == idle, 30, "nodes are idle")

    def start_controller(self) -> None:
        subprocess.run(["slurmctld"], check=True)

    def stop_controller(self) -> None:
        self._kill("slurmctld.pid")

    def stop(self) -> None:
        subprocess.run(["scancel", "--me"], check=False)
        for name in (*(f"slurmd.{node}.pid" for node in NODES), "slurmctld.pid"):
            self._kill(name)
        for name in ("slurm.conf", "gres.conf"):
            (CONF.parent / name).unlink(missing_ok=True)

    def _kill(self, name: str) -> None:
        pid = _pid(STATE / name)
        if pid:
            os.kill(pid, signal.SIGTERM)
            until(lambda: not _runs(pid), 60, f"{name} ends")


def _pid(path: Path) -> int:
    """Return the number of the process that runs, or 0."""
    text = path.read_text().strip() if path.exists() else ""
    return int(text) if text and _runs(int(text)) else 0


def _runs(pid: int) -> bool:
    """Return whether a process is there; one that ended and waits for its parent isn't."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@contextlib.contextmanager
def trouble(name: str, script: str) -> Iterator[None]:
    """Let one of SLURM's commands do this first where Snakemake calls it."""
    file = COMMANDS / f"{name}.trouble"
    file.write_text(script)
    try:
        yield
    finally:
        file.unlink()


class TooLong(Exception):
    """A case has exceeded its limit."""


def too_long(*_: object) -> None:
    raise TooLong


def tell(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.2)


begun: list[tuple[subprocess.Popen[str], Path]] = []  # every Snakemake, with its log


class Project:
    """A folder with the workflow, and Snakemake in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        subprocess.run(["clusterfl", "init", str(folder)], check=True, capture_output=True)
        site = folder / "site"
        site.mkdir()
        (site / "config.yaml").write_text("default-resources: [slurm_partition=cpu]\n")
        shutil.copy(HERE / "mine.py", folder)
        for name in ("small.yaml", "sixteen.yaml"):
            shutil.copy(HERE / name, folder)

    def local(self, *files: str) -> None:
        self.finish(self.begin("--cores", "1", *files))

    def command(self, *arguments: str) -> list[str]:
        profiles = ["--profile", "site", "--workflow-profile", "workflow/profiles/slurm"]
        return [*profiles, "--latency-wait", "10", "--slurm-init-seconds-before-status-checks", "2", *arguments]

    def begin(self, *arguments: str, how: tuple[str, ...] = ("-m", "snakemake")) -> subprocess.Popen[str]:
        self.log = self.folder / f"{time.monotonic_ns()}.out"
        with open(self.log, "w") as log:
            process = subprocess.Popen(
                [sys.executable, *how, *arguments], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, text=True,
                start_new_session=True, env=os.environ | {"PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}"},
            )  # fmt: skip
        begun.append((process, self.log))
        return process

    def finish(self, running: subprocess.Popen[str], good: bool = True) -> str:
        code = running.wait()
        assert (code == 0) == good, f"snakemake ended with {code}:\n{self.said()[-3000:]}"
        return self.said()

    def said(self) -> str:
        return self.log.read_text()

    def small(self, *arguments: str, method: str) -> list[str]:
        target = f"results/small/digits/seed0/methods/{method}/history.parquet"
        return self.command("--configfile", "small.yaml", *arguments, "--", target)

    def digests(self, study: str) -> dict[str, str]:
        """Return the sha256 of every result but times and the report."""
        root = self.folder / "results" / study
        files = [p.relative_to(root) for p in sorted(root.rglob("*")) if p.is_file()]
        kept = [p for p in files if not p.name.endswith(SEEN) and p.parts[0] not in SKIPPED]
        return {str(p): hashlib.sha256((root / p).read_bytes()).hexdigest() for p in kept}


def states() -> dict[str, str]:
    """Return each job's state."""
    lines = tell("squeue", "--states=all", "--noheader", "--sort=i", "--format=%i %T").splitlines()
    return dict(line.split() for line in lines)


@contextlib.contextmanager
def running(
    project: Project, *arguments: str, how: tuple[str, ...] = ("-m", "snakemake")
) -> Iterator[subprocess.Popen[str]]:
    """Submit a job that takes a while, and go on when the method itself has begun."""
    (project.folder / "begun").unlink(missing_ok=True)
    process = project.begin(*project.small(*arguments, method="slow"), how=how)
    until(lambda: (project.folder / "begun").exists() or process.poll() is not None, 600, "the job begins")
    assert (project.folder / "begun").exists(), "Snakemake ended before the job began"
    yield process


def clear(project: Project, method: str) -> None:
    """Let a method's job be run again, and the slow one wait again."""
    (project.folder / "go").unlink(missing_ok=True)
    shutil.rmtree(project.folder / f"results/small/.work/federate.digits.seed0.{method}", ignore_errors=True)
    shutil.rmtree(project.folder / "results/small/digits/seed0/methods" / method, ignore_errors=True)


def study(project: Project, cluster: Cluster, reference: Path | None) -> None:
    """The default study in chains, bit for bit as without SLURM."""
    here = Project.__new__(Project)
    here.folder = reference or project.folder.parent / "local"
    if reference is None:
        here = Project(here.folder)
        here.local()
    subprocess.run(["clusterfl", "plan", "--save"], cwd=project.folder, check=True, stdout=subprocess.DEVNULL)
    before = set(states())
    project.finish(project.begin(*project.command()))
    number = len(set(states()) - before)
    assert number == 4, f"{number} jobs, not 3 chains and the report"
    one, other = here.digests("digits"), project.digests("digits")
    assert len(one) > 150 and one == other, sorted(k for k in one.keys() | other.keys() if one.get(k) != other.get(k))
    print(f"  {number} jobs; {len(one)} files have the same bytes as without SLURM")
    said = project.finish(project.begin(*project.command()))
    assert "Nothing to be done" in said


SMALL = [f"results/small/digits/seed0/methods/{name}/history.parquet" for name in ("fedavg", "lcfl")]


def small_here(project: Project) -> Project:
    """Return the small study as it is without SLURM, run by the first case that asks for it."""
    folder = project.folder.parent / "small"
    if folder.exists():
        here = Project.__new__(Project)
        here.folder = folder
        return here
    here = Project(folder)
    here.local("--configfile", "small.yaml", "--", *SMALL)
    return here


def scattered(project: Project, cluster: Cluster) -> None:
    """A small study without a prediction: its large jobs apart; bit for bit as without SLURM."""
    here, files = small_here(project), SMALL
    before = set(states())
    project.finish(project.begin(*project.command("--configfile", "small.yaml", "--", *files)))
    number = len(set(states()) - before)
    assert number == 6, f"{number} jobs, not partition, warm-up, distance, clustering and two methods"
    assert here.digests("small") == project.digests("small")


def shards(project: Project, cluster: Cluster) -> None:
    """The small study with its losses measured by 16 jobs; bit for bit as by one and without SLURM."""
    files = [f"results/{{}}/digits/seed0/{name}" for name in ("clusters/loss.parquet", "methods/lcfl/history.parquet")]
    here = small_here(project)
    before = set(states())
    more = ["--configfile", "small.yaml", "sixteen.yaml", "--", *(f.format("sixteen") for f in files)]
    project.finish(project.begin(*project.command(*more)))
    number = len(set(states()) - before)
    assert number == 21, f"{number} jobs, not 16 shards, partition, warm-up, distance, clustering and a method"
    one, other = here.digests("small"), project.digests("sixteen")
    same = [name for name in one if not name.endswith("manifest.json") and "fedavg" not in name]
    assert len(same) > 8 and all(one[name] == other[name] for name in same)


def gpu(project: Project, cluster: Cluster) -> None:
    """A job that asks for a GPU is on the node that has one, and sees it."""
    more = ["--set-resources", "federate:gpu=1", "federate:slurm_partition=gpu"]
    project.finish(project.begin(*project.small(*more, method="visible")))
    assert (project.folder / "visible").read_text() == "n1 0", (project.folder / "visible").read_text()


def failure(project: Project, cluster: Cluster) -> None:
    """A job that fails fails the run, and its own words are shown."""
    said = project.finish(project.begin(*project.small("--retries", "0", method="broken")), good=False)
    assert "a planned failure" in said
    log = project.folder / "results/small/logs/digits/seed0/federate/broken.log"
    assert "a planned failure" in log.read_text()


def oom(project: Project, cluster: Cluster) -> None:
    """A job killed for its memory runs again with more, and ends well."""
    before = states()
    project.finish(project.begin(*project.small(method="greedy")))
    first, second = [number for number in states() if number not in before][-2:]
    assert states()[first] in ("OUT_OF_MEMORY", "FAILED") and states()[second] == "COMPLETED", states()
    assert [tell("squeue", "--states=all", "-h", "-o", "%m", "-j", n).strip() for n in (first, second)] == [
        "1500M",
        "3000M",
    ]
    killed = [p for p in (project.folder / "results/slurm-logs").rglob(f"{first}.log") if "memory" in p.read_text()]
    assert killed, "SLURM's log doesn't speak of memory"
    assert (project.folder / "tries").read_text() == "xx", "not the second try but another"


def limit(project: Project, cluster: Cluster) -> None:
    """A job that exceeds its time is ended, and the run says so."""
    clear(project, "slow")
    more = ["--retries", "0", "--set-resources", "federate:runtime=1"]
    said = project.finish(project.begin(*project.small(*more, method="slow")), good=False)
    assert "TIMEOUT" in said or "DUE TO TIME LIMIT" in said, said[-2000:]
    # The method waits in its beginning, where a first SIGTERM is kept for the step's end; where nothing tracks a job's
    # processes SLURM doesn't end it, and it would leave its checkpoint to the next case.
    (project.folder / "go").touch()
    until(lambda: not tell("pgrep", "--full", "federate .*--method slow"), 60, "the job's process ends")


def preempted(project: Project, cluster: Cluster) -> None:
    """A job that is ended at its limit goes on from its checkpoint when it runs again, with the same bits."""
    here = Project.__new__(Project)
    here.folder = project.folder
    place = project.folder / "results/small/digits/seed0/methods"
    here.local("--configfile", "small.yaml", "--", str((place / "plain/history.parquet").relative_to(project.folder)))
    before = set(states())
    project.finish(project.begin(*project.small("--set-resources", "federate:runtime=1", method="patient")))
    tries = [state for number, state in states().items() if number not in before]
    assert tries[-1] == "COMPLETED" and "TIMEOUT" in tries[:-1], tries
    said = (project.folder / "results/small/logs/digits/seed0/federate/patient.log").read_text()
    assert "resuming after step" in said, said
    for name in ("history.parquet", "rounds.parquet", "models.safetensors"):
        assert (place / "plain" / name).read_bytes() == (place / "patient" / name).read_bytes(), name


def cancel(project: Project, cluster: Cluster) -> None:
    """A job that somebody cancels is noticed, and runs again."""
    clear(project, "slow")
    with running(project) as process:
        (project.folder / "go").touch()
        (number,) = [n for n, state in states().items() if state == "RUNNING"]
        subprocess.run(["scancel", number], check=True)
        project.finish(process)
    assert states()[number] == "CANCELLED"


def restart(project: Project, cluster: Cluster) -> None:
    """The controller is away for a while and comes back; nothing is lost."""
    clear(project, "slow")
    with running(project) as process:
        cluster.stop_controller()
        (project.folder / "go").touch()
        time.sleep(8)
        cluster.start_controller()
        project.finish(process)


def killed(project: Project, cluster: Cluster) -> None:
    """Snakemake is killed: its jobs are cancelled, it is unlocked and started again."""
    clear(project, "slow")
    with running(project) as process:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(["scancel", "--me"], check=True)
    until(lambda: not {"RUNNING", "COMPLETING"} & set(states().values()), 60, "cancelled")
    (project.folder / "go").touch()
    project.finish(project.begin("--configfile", "small.yaml", "--cores", "1", "--unlock"))
    project.finish(project.begin(*project.small(method="slow")))


def partition(project: Project, cluster: Cluster) -> None:
    """A partition that isn't there ends the run and is named."""
    clear(project, "slow")
    more = ["--default-resources", "slurm_partition=nowhere"]
    said = project.finish(project.begin(*project.small(*more, method="slow")), good=False)
    assert "invalid partition" in said.lower(), said[-2000:]


def impossible(project: Project, cluster: Cluster) -> None:
    """A job that no node can hold is cancelled instead of waiting for ever, and the reason is said."""
    clear(project, "slow")
    more = ["--retries", "0", "--set-threads", "federate=6", "--cores", "6"]
    said = project.finish(project.begin(*project.small(*more, method="slow")), good=False)
    assert "can never start" in said or "not available" in said, said[-2000:]


def busy(project: Project, cluster: Cluster) -> None:
    """`scontrol` takes 15 s, so the plugin asks `sacct`, which fails without accounting; the run ends well."""
    clear(project, "slow")
    with running(project) as process, trouble("scontrol", "sleep 15"):
        (project.folder / "go").touch()
        said = project.finish(process)
    assert "Falling back to 'sacct'" in said, "sacct wasn't asked"


def unaccounted(project: Project, cluster: Cluster) -> None:
    """`sacct` is asked for where there is no accounting; the run ends well."""
    assert subprocess.run(["sacct"], capture_output=True, check=False).returncode, "there is accounting"
    clear(project, "slow")
    with running(project, "--slurm-status-command", "sacct") as process:
        (project.folder / "go").touch()
        project.finish(process)


def silent(project: Project, cluster: Cluster) -> None:
    """`squeue` fails for two minutes, in which the job ends; the run ends well."""
    clear(project, "slow")
    with running(project) as process:
        with trouble("squeue", "touch $0.asked; exit 1"):
            (project.folder / "go").touch()
            time.sleep(120)
        assert (COMMANDS / "squeue.asked").exists() and process.poll() is None
        project.finish(process)


def forgotten(project: Project, cluster: Cluster) -> None:
    """SLURM forgets a job before Snakemake has asked: the watch ends the run, and the same command goes on."""
    clear(project, "slow")
    with (
        running(project, how=HASTY) as process,
        trouble("squeue", 'squeue=$(which -a squeue | sed -n 2p); $squeue "$@" | grep -v COMPLET; exit 0'),
    ):
        (project.folder / "go").touch()
        said = project.finish(process, good=False)
    assert "has forgotten" in said and "the same command continues: snakemake --profile site" in said, said[-3000:]
    (project.folder / "begun").unlink()
    project.finish(project.begin(*project.small(method="slow")))
    assert not (project.folder / "begun").exists(), "what was done is done again"


MINUTES = {
    scattered: 15, shards: 20, gpu: 8, failure: 8, partition: 8, impossible: 8, oom: 15, cancel: 10, restart: 10,
    killed: 10, limit: 10, preempted: 20, busy: 8, unaccounted: 8, silent: 10, forgotten: 10, study: 60,
}  # fmt: skip
CASES = tuple(MINUTES)


def waited(error: BaseException) -> str:
    """Return what tells where a case was when it failed: the line, the last words of Snakemake, and the queue."""
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__ and f.name != "too_long"]
    process, log = begun[-1] if begun else (None, None)
    ended = "no Snakemake was begun" if process is None else f"exit code {process.poll()} (None: it still runs)"
    last = "\n".join(log.read_text().splitlines()[-20:]) if log else ""
    queue = tell("squeue", "--states=all", "-h", "--sort=i", "--format=%.6i %.14T %.20r %.10M %j %k").splitlines()
    return "\n".join([*(f"line {f.lineno}: {f.line}" for f in lines), f"Snakemake: {ended}", last, *queue[-10:]])


def end() -> None:
    """End what a case has begun and left."""
    for process, _ in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    begun.clear()
    subprocess.run(["scancel", "--me"], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[case.__name__ for case in CASES])
    parser.add_argument(
        "--reference", type=Path, metavar="FOLDER", help="has the default study's results of a run here"
    )
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return 77
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the daemons end, too
    signal.signal(signal.SIGALRM, too_long)
    cluster, failed = Cluster(), []
    with tempfile.TemporaryDirectory(prefix="clusterfl-slurm-") as name:
        try:
            cluster.start()
            project = Project(Path(name) / "cluster")
            for case in CASES:
                if options.only and case.__name__ not in options.only:
                    continue
                began = time.monotonic()
                signal.alarm(60 * MINUTES[case])
                try:
                    case(project, cluster, *([options.reference] if case is study else []))
                except Exception as error:
                    signal.alarm(0)
                    failed.append(case.__name__)
                    why = f"longer than {MINUTES[case]} minutes" if isinstance(error, TooLong) else error
                    print(f"FAILED {case.__name__}: {why}\n{waited(error)}", flush=True)
                    end()
                else:
                    print(f"passed {case.__name__} ({time.monotonic() - began:.0f} s): {case.__doc__}", flush=True)
                finally:
                    signal.alarm(0)
            print(tell("squeue", "--states=all", "--format=%.6i %.9P %.14T %.10M %.4C %.8m %.10l %.8N %k"))
        finally:
            end()
            cluster.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
