"""Sweeps: what is tried, what is refused, and a choice that validation samples alone decide."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, put, tiny, undrawn, write_yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfl.cli import main
from clusterfl.config import loading
from clusterfl.config.schema import json_schema
from clusterfl.config.study import MethodBlock
from clusterfl.errors import UserError
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.stages import Work, select
from clusterfl.storage.manifest import manifest_path
from clusterfl.storage.store import read_table, read_tensors, write_json, write_table

RUN = Path("results/tiny/digits/seed0")


def swept(**methods: Any) -> dict[str, Any]:
    """Return the tiny study with validation samples and these methods only."""
    study = put(put(tiny(), "methods", methods), "baseline", ...)
    return put(study, "federations.digits.partition.validation", 0.2)


def ifca(**sweep: list[Any]) -> dict[str, Any]:
    return {"method": "ifca", "sweep": sweep}


# The grid, and what is refused.


def test_every_combination_is_tried_in_the_order_given() -> None:
    rates = {"training.learning_rate": [0.1, 0.2]}
    method = MethodBlock(method="ifca", clusters=9, training={"steps": 2}, sweep={"clusters": [3, 2], **rates})
    assert method.grid() == [
        {"clusters": k, "training.learning_rate": rate} for k, rate in ((3, 0.1), (3, 0.2), (2, 0.1), (2, 0.2))
    ]
    third = method.trial(method.grid()[2])
    assert third == MethodBlock(method="ifca", clusters=2, training={"steps": 2, "learning_rate": 0.1})
    assert MethodBlock(method="fedavg").grid() == []


def test_each_job_has_a_checkpoint_and_a_lock_of_its_own() -> None:
    """Trials of one method, too: they may run side by side."""
    plan = Plan.from_settings(swept(a=ifca(clusters=[2, 3, 4]), b={"method": "ifca", "clusters": 2}))
    jobs = [job for job in plan.jobs() if job.stage != "download"]
    assert [job.part for job in jobs if job.name == "a" and job.stage == "federate"] == [1, 2, 3]
    assert len({job.unfinished for job in jobs}) == len(jobs)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown option": (ifca(cluster=[2, 3]), "methods.m.sweep.cluster: unknown key (value 2) for method 'ifca'; did"),
    "wrong value": (ifca(clusters=[2, 0]), "methods.m.sweep.clusters: found 0; it should be greater than 0"),
    "too many clusters": (ifca(clusters=[2, 9]), "methods.m.sweep.clusters: 9 clusters for 8 clients; allowed: 1 to 8"),
    "unknown setting": (
        ifca(**{"clusters": [2, 3], "training.learnig_rate": [1, 2]}),
        "methods.m.sweep.training.learnig_rate: unknown key (value 1); did you mean 'learning_rate'?",
    ),
    "wrong setting": (
        ifca(**{"clusters": [2, 3], "training.participation": [1, 2]}),
        "methods.m.sweep.training.participation: found 2; it should be less than or equal to 1",
    ),
    "combination": (
        {"method": "fedavg", "training": {"divisor": "ratio"}, "sweep": {"training.weights": ["samples", "uniform"]}},
        "divisor: ratio counts clients, so it needs weights: uniform",
    ),
    "unknown clustering": (
        {"method": "lcfl", "sweep": {"clustering": ["lcfl", "lfcl-diffnorm"]}},
        "methods.m.sweep.clustering: there is no block 'lfcl-diffnorm'; did you mean 'lcfl-diffnorm'?",
    ),
    "no name": ({"method": "lcfl", "sweep": {"clustering": ["lcfl", 3]}}, "methods.m.sweep.clustering: found 3; "),
    "fewer rounds than the warm-up": (
        {"method": "lcfl", "clustering": "lcfl", "sweep": {"training.rounds": [1, 3]}},
        "methods.m: 1 rounds, but the warm-up 'short' alone has 1",
    ),
    "still missing": ({"method": "ifca", "sweep": {"training.steps": [1, 2]}}, "methods.m.clusters: missing"),
    "empty": (ifca(clusters=[]), "methods.m.sweep.clusters: found []; give at least 2 values"),
    "one value": (ifca(clusters=[2]), "methods.m.sweep.clusters: found [2]; give at least 2 values"),
    "quoted": (ifca(clusters=[2, "2"]), "methods.m.sweep.clusters: the value '2' is given twice"),
    "twice": (ifca(clusters=[2, 3, 2]), "methods.m.sweep.clusters: the value 2 is given twice"),
    "no list": (ifca(clusters=2), "methods.m.sweep.clusters: found 2; "),  # type: ignore[arg-type]
    "the method itself": (
        ifca(clusters=[2, 3], method=["ifca", "fedavg"]),
        "methods.m.sweep.method: this key can't be swept; allowed: the method's own options, clustering, "
        "rebalance and privacy as whole blocks",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_combination_is_checked_before_anything_runs(name: str) -> None:
    block, words = WRONG[name]
    with pytest.raises(UserError) as caught:
        loading.load(swept(m=block))
    said = str(caught.value).splitlines()
    assert sum(words in line for line in said) == 1, said  # once, however many combinations have it
    assert "nothing was run" in said[0]


def test_a_federation_without_validation_samples_refuses_a_sweep() -> None:
    study = put(swept(m=ifca(clusters=[2, 3])), "federations.digits.partition.validation", 0)
    with pytest.raises(UserError, match=r"methods\.m\.sweep: federation 'digits' has no validation samples to choose"):
        loading.load(study)
    loading.load(put(study, "methods.m", {"method": "ifca", "clusters": 2}))
    newcomers = put(swept(m=ifca(clusters=[2, 3])), "score.evaluation", "newcomer")
    put(newcomers, "training.evaluations", ["newcomer"])
    with pytest.raises(
        UserError, match=r"methods\.m\.sweep: no scores to choose by: newcomers are scored on test data"
    ):
        loading.load(newcomers)


@pytest.mark.slow
def test_the_schema_for_editors_knows_sweeps() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json_schema())
    jsonschema.validate(swept(m=ifca(clusters=[2, 3])), schema)
    for wrong in ({"method": "ifca"}, ifca(clusters=2)):  # type: ignore[arg-type]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(swept(m=wrong), schema)


# Jobs.


def test_jobs_follow_from_the_configuration_and_never_share_a_file() -> None:
    trials = {"method": "lcfl", "sweep": {"clustering": ["lcfl", "lcfl-diffnorm"]}}
    plain = {"method": "ifca", "clusters": 2}
    study = put(swept(**{"a": trials, "a.1": plain, "trials": plain, "1": plain}), "seeds.runs", [0, 1])
    jobs = list(Plan.from_settings(study).jobs())
    outputs = [path for job in jobs for path in job.outputs.values()]
    assert len(outputs) == len(set(outputs))
    assert [str(j) for j in jobs if j.stage == "select"] == ["select a digits seed 0", "select a digits seed 1"]
    assert len(jobs) == 1 + 1 + 2 * (1 + 1 + 2 + 2 + 2 + 1 + 3)  # download, report; each seed's, both clusterings' too
    trial = next(j for j in jobs if str(j) == "federate a, trial 2 digits seed 1")
    assert trial.inputs["clusters"].name == "lcfl-diffnorm.parquet"
    assert trial.command.endswith("--federation digits --seed 1 --method a --trial 2")


def test_a_trial_is_addressed_by_its_number() -> None:
    plan = Plan.from_settings(swept(m=ifca(clusters=[2, 3]), plain={"method": "fedavg"}))
    address = ("digits", 0)
    for arguments, words in (
        (("federate", *address, "m"), "--trial: is missing; the sweep of method 'm' has trials 1 to 2"),
        (("federate", *address, "m", 3), "--trial: '3' isn't in the sweep"),
        (("federate", *address, "plain", 1), "--trial: method 'plain' sweeps nothing; omit --trial"),
        (("select", *address, "plain"), "--method: 'plain' sweeps nothing; allowed: m"),
    ):
        with pytest.raises(UserError, match=re.escape(words)):
            plan.job(*arguments)


def test_a_changed_value_changes_its_trial_and_the_choice_only() -> None:
    one, other = (Plan.from_settings(swept(m=ifca(clusters=ks), f={"method": "fedavg"})) for ks in ([2, 3], [2, 4]))
    changed = [str(a) for a, b in zip(one.jobs(), other.jobs(), strict=True) if a.settings != b.settings]
    assert changed == ["federate m, trial 2 digits seed 0", "select m digits seed 0", "report"]


@pytest.mark.slow
def test_snakemake_plans_trials_and_the_choice(tmp_path: Path) -> None:
    write_yaml(tmp_path / "config.yaml", swept(m=ifca(clusters=[2, 3]), plain={"method": "fedavg"}))
    shutil.copy(ROOT / "Snakefile", tmp_path)
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1", "--quiet", "host"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^rule (\w+):\n(?: +(?!wildcards).*\n)* +wildcards: (.*)$", done.stdout + done.stderr, re.M)
    where = "study=tiny, federation=digits, seed=0"
    assert sorted(job for job in found if "method" in job[1]) == [
        ("federate", f"{where}, method=plain"),
        ("select", f"{where}, method=m"),
        ("trial", f"{where}, method=m, trial=1"),
        ("trial", f"{where}, method=m, trial=2"),
    ]


# The choice, on made-up histories.

SCORE = {"evaluation": "aggregated", "split": "validation", "average": "samples", "at": "final", "smooth": 1, "ddof": 1}
Cell = tuple[float, float] | None  # correct of ten and loss in the last round; None: it diverged


def made(folder: Path, trials: list[list[Cell]], generator: np.random.Generator | None = None) -> Work:
    """Write two-round histories of trials, a list over seeds each; return the work of selecting for the last seed.

    With a generator, rows of test and training samples are random numbers of it.
    """
    inputs: dict[str, Path] = {}
    seeds = list(range(len(trials[0])))
    for number, cells in enumerate(trials, 1):
        for seed, cell in enumerate(cells):
            place = folder / f"{seed}/{number}"
            tables: dict[str, dict[str, Any]] = {
                "history": {},
                "classes": {},
                "clusters": {},
                "models": {"t": [number]},
            }
            if cell is not None:
                columns = {"round": [0, 0, 0, 1, 1, 1], "split": ["train", "validation", "test"] * 2, "n": [10] * 6}
                correct, loss = np.full(6, 5.0), np.full(6, 0.5)
                if generator is not None:
                    correct, loss = generator.integers(0, 11, 6) * 1.0, generator.random(6)
                correct[1], loss[1], correct[4], loss[4] = 0 * cell[0], 9.0, *cell
                zeros = np.zeros(6, dtype=int)
                columns |= {"client": zeros, "cluster": zeros, "evaluation": ["aggregated"] * 6}
                tables["history"] = columns | {"correct": correct, "loss": loss}
            tables["rounds"] = {"round": [1, 2], "bytes_down": [10 * number] * 2, "bytes_up": [5 + seed] * 2}
            for name, table in tables.items():
                inputs[f"seed{seed}/{number}.{name}"] = place / f"{name}.parquet"
                write_table(place / f"{name}.parquet", table)
            said = {} if cell else {"diverged": "round 1: model 0 became NaN or infinite"}
            write_json(manifest_path(place / "history.parquet"), said)
    outputs = {name: folder / f"out/{name}" for name in ("history", "classes", "rounds", "clusters", "models", "sweep")}
    asked = {"trials": [{"k": n} for n in range(len(trials))], "seeds": seeds, "score": SCORE}
    return Work(asked, {"seed": seeds[-1], "name": "m", "federation": "f"}, inputs, outputs, progress=None)  # type: ignore[arg-type]


NAN = math.nan
CHOICES: dict[str, tuple[list[list[Cell]], int]] = {
    "highest mean": ([[(5, 1), (6, 1)], [(4, 1), (9, 1)], [(6, 1), (6, 1)]], 2),  # 5.5, 6.5, 6 of 10
    "first of equal ones": ([[(1, 1), (1, 1)], [(2, 1), (7, 1)], [(7, 9), (2, 9)]], 2),
    "equal but for rounding": ([[(5, 1), (7, 1)], [(4, 1), (8, 1)]], 1),
    "equal but for the order of seeds": ([[(1, 1), (2, 1), (3, 1)], [(3, 1), (2, 1), (1, 1)]], 1),
    "diverged": ([[None, None], [(1, 1), (1, 1)]], 2),
    "diverged with one seed": ([[None, (9, 1)], [(1, 1), (1, 1)]], 2),
    "regression: lowest mean loss": ([[(NAN, 3), (NAN, 1)], [(NAN, 1), (NAN, 2)], [(NAN, 2), (NAN, 2)]], 2),
    "regression: infinite loss": ([[(NAN, math.inf), (NAN, 1)], [(NAN, 5), (NAN, 5)]], 2),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_best_trial_by_hand(name: str, tmp_path: Path) -> None:
    trials, best = CHOICES[name]
    work = made(tmp_path, trials)
    assert select.run(work) == {"chosen": best, "trials": len(trials)}
    found = read_table(work.outputs["sweep"])
    assert found["trial"][found["chosen"]].tolist() == [best]
    assert found["values"].tolist() == [f'{{"k":{n}}}' for n in range(len(trials))]
    assert found["seeds"].tolist() == [
        sum(cell is not None and np.isfinite(cell[1]) for cell in cells) for cells in trials
    ]
    # Two rounds of 10 times the trial's number bytes, and of 5 plus the seed's.
    assert found["bytes_down"].tolist() == [20 * n for n in range(1, len(trials) + 1)]
    assert found["bytes_up"][0] == np.mean([2 * (5 + seed) for seed in range(len(trials[0]))])
    for key in work.outputs.keys() - {"sweep"}:
        source = work.inputs[f"seed{work.identity['seed']}/{best}.{key}"]
        assert work.outputs[key].read_bytes() == source.read_bytes()


def test_means_and_spreads_by_hand(tmp_path: Path) -> None:
    work = made(tmp_path, [[(5, 1), (7, 2)], [(4, 1), None]])
    table = select.scores(work.settings, work.inputs)
    first, second = table.to_dict("records")
    assert (first["accuracy_mean"], first["loss_mean"]) == (pytest.approx(0.6), 1.5)
    assert first["accuracy_std"] == pytest.approx(0.2 / 2**0.5)
    population = select.scores({**work.settings, "score": SCORE | {"ddof": 0}}, work.inputs)
    assert population["accuracy_std"][0] == pytest.approx(0.1) and population["loss_std"][0] == pytest.approx(0.5)
    assert np.isnan(second["accuracy_mean"])
    assert set(table["score_split"]) == {"validation"}


def test_without_a_finite_score_the_reason_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"method 'm' on federation 'f': none of the 2 trials .* trial 2, seed 0: round"
    ):
        select.run(made(tmp_path, [[(5, 1), None], [None, (5, 1)]]))
    never = made(tmp_path, [[(5, 1)], [(5, 1)]])
    never.settings["score"] = SCORE | {"at": 7}
    with pytest.raises(UserError, match=r"finite aggregated score on validation samples \(score.at: 7\)"):
        select.run(never)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    cells=st.lists(
        st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 10), st.just(1.0))), min_size=2, max_size=2),
        min_size=2,
        max_size=4,
    ),
    seed=st.integers(0, 99),
)
def test_the_choice_is_the_same_whatever_stands_in_test_rows(
    tmp_path_factory: pytest.TempPathFactory, cells: list[list[Cell]], seed: int
) -> None:
    plain, noisy = (made(tmp_path_factory.mktemp("x"), cells, g) for g in (None, np.random.default_rng(seed)))
    one, other = (select.scores(work.settings, work.inputs) for work in (plain, noisy))
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    sums = [sum(c[0] for c in row if c) if all(row) else -1 for row in cells]
    assert select.choose(other) == (sums.index(max(sums)) + 1 if max(sums) >= 0 else None)


# The whole chain.


def record(name: str) -> dict[str, Any]:
    return json.loads((RUN / name / "manifest.json").read_text())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a study with sweeps was run, beside blocks with each of their values."""
    folder = tmp_path_factory.mktemp("sweep")
    rates = {"training.learning_rate": [1e30, 0.2]}
    study = swept(
        ifca=ifca(clusters=[2, 3]),
        two={"method": "ifca", "clusters": 2},
        three={"method": "ifca", "clusters": 3},
        lcfl={"method": "lcfl", "sweep": {"clustering": ["lcfl", "lcfl-diffnorm"], **rates}},
        plain={"method": "lcfl", "clustering": "lcfl-diffnorm", "training": {"learning_rate": 0.2}},
    )
    put(study, "training.steps", 4)
    write_yaml(folder / "config.yaml", study)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        undrawn(patch)
        assert main(["run"]) == 0
    return folder


def test_a_trial_is_what_a_block_with_its_values_is(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(done)
    for trial, block in {"ifca/trials/1": "two", "ifca/trials/2": "three", "lcfl/trials/4": "plain"}.items():
        one, other = (record(f"methods/{name}")["files"] for name in (trial, block))
        assert one == other  # sha256 of every file
    table = read_table(RUN / "methods/ifca/sweep.parquet")
    chosen = int(table["trial"][table["chosen"]][0])
    assert record("methods/ifca")["chosen"] == chosen
    assert record("methods/ifca/trials/1")["name"] == "ifca, trial 1"
    files, copied = record(f"methods/ifca/trials/{chosen}")["files"], record("methods/ifca")["files"]
    assert {name: copied[name] for name in files} == files
    # By hand: the final validation accuracy over all samples.
    for trial in (1, 2):
        history = pd.read_parquet(RUN / f"methods/ifca/trials/{trial}/history.parquet")
        last = history[(history["round"] == 3) & (history["split"] == "validation")]
        assert table["accuracy_mean"][trial - 1] == last["correct"].sum() / last["n"].sum()


def test_a_diverged_trial_stops_nothing_and_its_cost_is_kept(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(done)
    table = read_table(RUN / "methods/lcfl/sweep.parquet")
    assert table["seeds"].tolist() == [0, 1, 0, 1]
    assert np.isnan(table["accuracy_mean"][[0, 2]].astype(float)).all()
    said = record("methods/lcfl/trials/1")["diverged"]
    assert re.match(r"round \d: the update of client \d .*; training diverged: lower the learning rate", said)
    folder = RUN / "methods/lcfl/trials/1"
    assert read_table(folder / "history.parquet") == read_table(folder / "classes.parquet") == {}
    assert read_tensors(folder / "models.safetensors") == {}
    rounds = read_table(folder / "rounds.parquet")
    ended = int(said.split()[1].rstrip(":"))
    assert rounds["round"].tolist() == list(range(1, ended + 1))  # the warm-up's, and the one that failed
    assert table["bytes_down"][0] == rounds["bytes_down"].sum() > 0


def test_the_report_shows_every_trial(done: Path) -> None:
    text = (done / "results/tiny/report.html").read_text(encoding="utf-8")
    assert text.count(" (chosen)</td>") == 2
    assert "sweep-ifca" in {path.stem.rpartition("-")[0] for path in (done / "results/tiny/figures").iterdir()}
    assert re.search(r"all 4 trials sent and received [\d.]+ MB", text)
    assert "sweep:" in text.partition("<pre")[2]  # the resolved settings
    table = pd.read_csv(done / "results/tiny/tables/sweeps.csv")
    assert table.groupby("method")["trial"].count().to_dict() == {"ifca": 2, "lcfl": 4}
    times = pd.read_csv(done / "results/tiny/tables/times.csv").set_index("method")
    jobs = pd.read_csv(done / "results/tiny/tables/jobs.csv")
    names = ["warmup", "distance", "cluster", "federate"]
    chosen = int(table.query("method == 'lcfl' and chosen")["trial"].iloc[0])
    clustering = json.loads(table.query("method == 'lcfl'")["values"].iloc[chosen - 1])["clustering"]
    own = {"short", "loss" if clustering == "lcfl" else "diffnorm", clustering, f"lcfl, trial {chosen}"}
    seconds = jobs[jobs["stage"].isin(names) & jobs["name"].isin(own)]["seconds"].sum()
    assert times.loc["lcfl", "seconds"] == pytest.approx(seconds)


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
def test_a_rerun_does_what_a_changed_value_needs(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    config = Path("config.yaml")

    def ran() -> list[str]:
        capsys.readouterr()
        assert main(["run"]) == 0
        return re.findall(r"^\[\d+/\d+\] (.*)$", capsys.readouterr().err, re.M)

    assert ran() == []
    config.write_text(config.read_text().replace("- 3\n", "- 4\n", 1))
    assert Plan.from_files([config]).study.methods["ifca"].sweep == {"clusters": [2, 4]}
    assert ran() == ["federate ifca, trial 2 digits seed 0", "select ifca digits seed 0", "report"]


def test_without_a_sweep_divergence_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_yaml(Path("config.yaml"), swept(m=ifca(**{"training.learning_rate": [1e30, 1e31], "clusters": [2, 3]})))
    assert main(["run"]) == 2
    assert "none of the 4 trials has a score with every seed; trial 1, seed 0: round" in capsys.readouterr().err
    put(study := swept(m={"method": "fedavg"}), "training.learning_rate", 1e30)
    write_yaml(Path("config.yaml"), study)
    assert main(["run"]) == 2
    assert "training diverged: lower the learning rate" in capsys.readouterr().err
    assert not (RUN / "methods/m/rounds.parquet").exists()


OWN = """
import numpy as np

def halves(labels, generator):
    return {"sample": np.arange(len(labels.y)), "client": np.arange(len(labels.y)) % 2}
"""


def test_a_scheme_of_ones_own_without_validation_samples_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_scheme.py").write_text(OWN)
    study = swept(m=ifca(clusters=[1, 2]))
    study["federations"]["digits"]["partition"] = {"scheme": "own_scheme:halves", "split": "share"}
    write_yaml(Path("config.yaml"), study)
    assert main(["run"]) == 2
    assert "no client has a validation sample to choose a trial by" in capsys.readouterr().err
