"""The estimate of a study's costs: what can be known beforehand is exact, the rest has the right form."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import measured_briefly, put, tiny, undrawn, write_yaml
from federations import engine, slow_but

from clusterfl.cli import main
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.pipeline.estimate import estimate, speed
from clusterfl.pipeline.estimate.data import Place
from clusterfl.pipeline.estimate.estimate import Estimate
from clusterfl.pipeline.estimate.rounds import Needs, needs
from clusterfl.pipeline.estimate.startup import measure
from clusterfl.pipeline.estimate.table import as_json, text, totals
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan
from clusterfl.simulation import loop
from clusterfl.simulation.record import Record
from clusterfl.storage.store import names_of, read_table

GIVEN = {
    "training.rounds": 6,
    "training.participation": 0.7,
    "training.evaluate_every": 2,
    "training.evaluations": ["aggregated", "local", "stale", "personalised"],
    "federations.digits.partition.validation": 0.1,
    "distances.loss.landmarks": 5,
    "clusterings.lcfl.clusters": "silhouette",
    "methods.lcfl.sampling": "clients",
    "methods.lcfl-diffnorm.sampling": "clients",
    "methods.picky": {"method": "ifca", "clusters": 2, "least_share": 0.3},
    "methods.swept": {"method": "ifca", "clusters": 2, "sweep": {"clusters": [2, 3]}},
}


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """A study of every stage, predicted in an empty folder, then run; and predicted again."""
    folder = tmp_path_factory.mktemp("planned")
    settings = tiny()
    for place, value in GIVEN.items():
        put(settings, place, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        measured_briefly(patch)
        undrawn(patch)
        study = Plan.from_files([write_yaml(folder / "config.yaml", settings)])
        before = Estimate(study)
        assert not any(folder.glob("results/**/*")) and not (folder / "data").exists()
        for job in before.jobs:
            execute(job)
        yield study, before


@pytest.fixture
def quick(monkeypatch):
    """Nothing is measured for long, and no process is started."""
    measured_briefly(monkeypatch)


def rows(predicted) -> dict[tuple[str, str | None], estimate.JobRow]:
    return {(row.stage, row.name): row for row in predicted[1].rows}


def test_every_job_has_a_row(predicted):
    study, prediction = predicted
    assert [(r.stage, r.name, r.federation, r.seed) for r in prediction.rows] == [
        (j.stage, j.label, j.federation, j.seed) for j in study.jobs()
    ]
    for row in prediction.rows:
        numbers = (row.seconds, row.start, row.memory, row.disk, row.sent)
        assert all(math.isfinite(n) and n >= 0 for n in numbers), row
        assert row.seconds > row.start > 0 and row.memory > 1e7 and not row.done and not row.note


def test_a_part_is_predicted_alone(tmp_path, monkeypatch, capsys, quick):
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path / "config.yaml", tiny() | {"seeds": {"runs": [0, 1]}})
    assert main(["plan", "--method", "lcfl", "--seed", "1", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [(job["stage"], job["seed"]) for job in jobs] == [("download", None)] + [
        (stage, 1) for stage in ("partition", "warmup", "distance", "cluster", "federate")
    ]
    assert all(job["seconds"] > 0 for job in jobs)


@pytest.mark.parametrize("name", ["fedavg", "local", "ifca", "lcfl", "lcfl-diffnorm"])
def test_bytes_are_the_ledgers(predicted, name):
    """Those of one-shot methods come behind the warm-up's and the distance's."""
    study, _ = predicted
    found = rows(predicted)
    job = study.job("federate", "digits", 0, name)
    table = read_table(job.outputs["rounds"])
    parts = [found["federate", name]]
    if "clusters" in job.upstream:
        measured = job.upstream["distance"]
        parts += [found["distance", measured.name], found["warmup", measured.upstream["clients"].name]]
    assert all(row.known for row in parts)
    assert sum(row.sent for row in parts) == (table["bytes_down"] + table["bytes_up"]).sum()


def test_what_hangs_on_training_is_marked(predicted):
    assert not rows(predicted)["federate", "picky"].known


def test_work_is_the_runs(predicted):
    """Samples in steps and in forward passes, of the real run's tables; clients that were drawn differ a little."""
    study, before = predicted
    job = study.job("federate", "digits", 0, "ifca")
    found = before._needs(job)
    table, history = read_table(job.outputs["rounds"]), read_table(job.outputs["history"])
    personalised = history["n"][(history["evaluation"] == "personalised") & (history["split"] == "test")]
    steps = table["local_steps"].sum() + 10 * len(personalised)  # of each personalised model
    assert found.steps == pytest.approx(10 * steps, rel=0.05)  # batches of 10
    assert found.history == pytest.approx(len(history["round"]), rel=0.1)
    scored = history["n"][np.isin(history["evaluation"], ["aggregated", "local", "personalised"])].sum()
    tests = read_table(job.outputs["classes"])["n"].sum()
    assert found.samples == pytest.approx(scored + table["client_forwards"].sum() + tests, rel=0.1)


@pytest.mark.parametrize("name, models", [("fedem", 3), ("fedrc", 3), ("fedsoft", 1), ("fpfc", 1)])
def test_what_clients_of_several_clusters_do_is_the_runs(name, models, tmp_path, monkeypatch, quick):
    """Bytes to the last one; each model's steps; samples go through all models, or, to be scored, one."""
    monkeypatch.chdir(tmp_path)
    settings = tiny() | {
        "baseline": None,
        "methods": {name: {"method": name} | ({} if name == "fpfc" else {"clusters": 3})},
    }
    study = Plan.from_settings(settings | {"distances": {}, "clusterings": {}, "warmups": {}})
    before, job = Estimate(study), study.job("federate", "digits", 0, name)
    found = before._needs(job)
    for each in study.jobs([job]):
        execute(each)
    table, history = read_table(job.outputs["rounds"]), read_table(job.outputs["history"])
    (row,) = (row for row in before.rows if row.stage == "federate")
    assert row.known and row.sent == (table["bytes_down"] + table["bytes_up"]).sum()
    assert found.steps == pytest.approx(10 * table["local_steps"].sum(), rel=0.05)  # batches of 10
    scored = models * (history["n"].sum() + read_table(job.outputs["classes"])["n"].sum())
    assert found.samples == pytest.approx(scored + table["client_forwards"].sum(), rel=0.1)


def test_files_are_about_as_large(predicted):
    study, _ = predicted
    for job in study.jobs():
        if job.stage in ("warmup", "federate", "partition", "select"):
            files = [p for path in job.outputs.values() for p in ([path] if path.is_file() else path.iterdir())]
            size = sum(p.stat().st_size for p in files)
            assert size / 2 < rows(predicted)[job.stage, job.label].disk < 2 * size, job


def test_what_optimisers_keep_is_predicted(tmp_path, monkeypatch, quick):
    """It takes memory, and the warm-up hands it on in a file; the methods' results don't have it."""
    monkeypatch.chdir(tmp_path)
    settings = tiny() | {"training": tiny()["training"] | {"optimizer": "adam", "optimizer_state": "kept"}}
    for place in ("methods.local", "methods.ifca", "methods.lcfl-diffnorm", "clusterings.lcfl-diffnorm"):
        put(settings, place, ...)
    study = Plan.from_files([write_yaml(tmp_path / "config.yaml", settings)])
    before = Estimate(study)
    found = {(row.stage, row.name): row for row in before.rows}
    for job in study.jobs():
        if job.stage in ("warmup", "federate"):
            training = job.settings["training"]
            fresh = replace(job, settings=job.settings | {"training": training | {"optimizer_state": "fresh"}})
            row = 4 * before.speeds["digits", 1].layout.columns
            assert before._federate(job).memory - before._federate(fresh).memory == 2 * 8 * row  # of 8 clients
    for job in before.jobs:
        if job.stage != "report":
            execute(job)
        if job.stage in ("warmup", "federate"):
            files = [p for path in job.outputs.values() for p in ([path] if path.is_file() else path.iterdir())]
            assert 0.5 < sum(p.stat().st_size for p in files) / found[job.stage, job.label].disk < 2, job
    common = names_of(study.job("federate", "digits", 0, "lcfl").inputs["warmup.common"])
    assert {"client_mean", "client_square", "client_steps"} <= common
    assert not any(
        n.startswith("client_") for n in names_of(study.job("federate", "digits", 0, "lcfl").outputs["models"])
    )


def test_figures_are_the_reports(predicted):
    study, prediction = predicted
    assert sum(map(prediction._figures, study.study.federations)) == len(
        list(study.job("report").outputs["figures"].glob("*.svg"))
    )


def test_totals(predicted):
    """Two cores can't be faster than half of one, nor than the longest chain."""
    found = totals(predicted[1])
    todo = [row for row in predicted[1].rows if not row.done]
    assert found["seconds"] == pytest.approx(sum(row.seconds for row in todo))
    assert found["in_one_process"] < found["seconds"]
    longest = max(row.seconds for row in todo)
    assert max(longest, found["seconds"] / found["cores"]) <= found["on_all_cores"] * (1 + 1e-9)
    assert found["on_all_cores"] <= found["seconds"] * (1 + 1e-9) and found["unknown"] == 0
    assert found["forked"] <= min(found["on_all_cores"], found["in_one_process"]) * (1 + 1e-9)


def test_what_is_done_is_said(predicted):
    prediction = copy.copy(predicted[1])
    prediction.by_job = {}
    for job in prediction.jobs:
        prediction.by_job[job.first] = prediction._row(job)
    assert all(row.done for row in prediction.by_job.values())


def counted(method: str = "fedavg", training: dict | None = None, **options) -> Needs:
    """Count a method's job on a federation of 6 clients."""
    settings = put(tiny(), "methods.fedavg", {"method": method, **options})
    settings["training"] |= training or {}
    with engine(copies=METHODS[method].copies) as used:
        job = Plan.from_settings(settings).job("federate", "digits", 0, "fedavg")
        return needs(job, Place(None, None, used.federation, None, 0.0), used.layout)


OWN = """
from dataclasses import dataclass

from clusterfl.simulation.method import Method

@dataclass(frozen=True, kw_only=True)
class Asking(Method):
    def assign(self, context, state, round_, clients, losses):
        losses()
        return super().assign(context, state, round_, clients, losses)

@dataclass(frozen=True, kw_only=True)
class Weighing(Method):
    def weights(self, context, clients):
        return super().weights(context, clients) ** 0.5

@dataclass(frozen=True, kw_only=True)
class Wide(Method):
    def begin(self, context):
        context.initial(0)[20] += 1
        return super().begin(context)

@dataclass(frozen=True, kw_only=True)
class Twice(Method):
    def sample(self, context, state, round_):
        return super().sample(context, state, round_).repeat(2)
"""


@pytest.mark.parametrize(
    ("method", "options", "known"),
    [
        ("clove", {"clusters": 2}, True),
        ("clove", {"clusters": 2, "stable_rounds": 3}, False),
        ("ifca", {"clusters": 2, "least_share": 0.1}, False),
        ("fedgwc", {}, False),
        ("fesem", {"clusters": 2}, True),
        ("own_estimate:Asking", {}, False),
        ("own_estimate:Weighing", {}, True),
    ],
)
def test_bytes_that_nobody_knows_are_marked(tmp_path, monkeypatch, method, options, known):
    (tmp_path / "own_estimate.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    found = counted(method, {"rounds": 6, "participation": 0.5}, **options)
    assert found.known == known and found.sent > 0


def test_a_hook_that_models_of_one_number_are_too_few_for_leaves_its_row_open(tmp_path, monkeypatch, capsys, quick):
    (tmp_path / "own_estimate.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    study = tiny() | {"methods": {"mine": {"method": "own_estimate:Wide"}, "fedavg": {"method": "fedavg"}}}
    for kind in ("clusterings", "distances", "warmups"):
        put(study, kind, ...)
    write_yaml(tmp_path / "study.yaml", study)
    assert main(["plan", "--config", "study.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("federate   mine "))
    assert row.endswith("hooks of own_estimate:Wide, called with models of one number, fail with IndexError: index 20 "
                        "is out of bounds for dimension 0 with size 1")  # fmt: skip
    assert any("1 of them can't be predicted yet and aren't in these sums" in line for line in lines)


def test_what_no_run_can_go_on_with_is_named(tmp_path, monkeypatch):
    (tmp_path / "own_estimate.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="'Twice': sample, in round 1, gives client 0 after client 0"):
        counted("own_estimate:Twice")


@pytest.mark.parametrize("given", [{"sampler": "poisson"}, {"faults": {"dropout": 0.2}}])
def test_draws_that_are_chance_are_marked(given):
    assert not counted(training=given).known


def test_work_grows_with_the_rounds():
    once, twice, thrice = (counted(training={"rounds": n}) for n in (20, 40, 60))
    for name in ("steps", "passes", "samples", "merged", "sent", "history"):
        low, middle, high = (getattr(found, name) for found in (once, twice, thrice))
        assert high - middle == pytest.approx(middle - low) and 1.8 < middle / low <= 2.0, name


@pytest.mark.parametrize("name", slow_but(["fedavg", "ifca", "cfl", "clove", "pacfl"], sorted(set(METHODS) - {"lcfl"})))
def test_a_method_sends_what_is_estimated(name):
    """As its real rounds do, for every method that needs no clustering; the last one is in the study above."""
    given = {"clusters": 2} if "clusters" in METHODS.options(name).model_fields else {}
    training = {"rounds": 5, "participation": 0.5, "epochs": 2, "steps": None}
    found = counted(name, training, **given)
    with engine(rounds=5, participation=0.5, epochs=2, copies=METHODS[name].copies) as used:
        record = loop.run(METHODS.make(name, given), loop.context(used), used)[1]
    table = Record.table(record.rounds)
    sent = (table["bytes_down"] + table["bytes_up"]).sum()
    assert found.sent == pytest.approx(sent, rel=0 if found.known else 0.5)
    assert 0.5 < found.steps / (10 * table["local_steps"].sum()) < 2


@pytest.mark.parametrize(
    ("name", "options", "more"),
    [
        ("flux", {"centred": True}, {}),
        ("feddrift", {"measure": "errors"}, {}),
        ("fedavg", {}, {"batch_size": 3, "short_batches": "drop"}),
    ],
)
def test_options_that_change_what_clients_do_are_in_the_estimate(name, options, more):
    """One more number from each client with `centred`; as many with errors as with losses; whole batches alone."""
    training = {"rounds": 5, "epochs": 2, "steps": None} | more
    found, plainly = counted(name, training, **options), counted(name, training | {"short_batches": "train"})
    with engine(rounds=5, epochs=2, **more) as used:
        record = loop.run(METHODS.make(name, options), loop.context(used), used)[1]
    table = Record.table(record.rounds)
    if name != "feddrift":
        assert found.sent == (table["bytes_down"] + table["bytes_up"]).sum()
    assert (found.steps < plainly.steps) == bool(more)
    assert found.sent - plainly.sent == (4 * 6 if name == "flux" else 0)


def test_a_start_is_measured_in_a_process_of_its_own(tmp_path):
    config, kind = write_yaml(tmp_path / "config.yaml", tiny()), ("clusterfl.pipeline.stages.download",)
    ((seconds, memory),) = measure([config], [kind]).values()
    assert 0.05 < seconds < 120 and 1e7 < memory < 1e10


def test_growth_with_the_square(monkeypatch):
    """With a clock that work of n moves by n ** 2."""
    now = [0.0]
    monkeypatch.setattr(speed, "perf_counter", lambda: now[0])
    monkeypatch.setattr(speed, "SECONDS", 100.0)

    def work(n: int) -> None:
        now[0] += n**2

    assert speed.pairs(work, 1000) == pytest.approx(1000**2)
    assert speed.measured(work, 3)[0] == 3


def test_speed_of_an_engine_is_finite(quick):
    found = speed.Speed(engine)
    need = Needs(Training(epochs=1), 2, steps=100.0, passes=10.0, samples=50.0, merged=2.0, seconds=1.0)
    seconds = found.of(need)
    assert math.isfinite(seconds) and 1.0 < found.of(need, threads=2) <= seconds
    assert min(found.engine, found.passing, found.sample, found.merged, found.memory, *found.steps.values()) >= 0


def test_data_that_must_be_fetched(tmp_path, monkeypatch, capsys, quick):
    """Jobs whose sizes nobody knows yet say what to do; those of the other federation are predicted."""
    monkeypatch.chdir(tmp_path)
    settings = put(tiny(), "federations.far", {"dataset": "mnist", "partition": {"scheme": "iid", "clients": 4}})
    for name in ("local", "ifca", "lcfl", "lcfl-diffnorm"):
        put(settings, f"methods.{name}", ...)
    for kind in ("clusterings", "distances", "warmups"):
        put(settings, kind, ...)
    file = str(write_yaml(tmp_path / "config.yaml", settings))
    assert main(["plan", "--config", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    unknown = [row for row in found["jobs"] if row["seconds"] is None]
    assert {(row["stage"], row["federation"]) for row in unknown} == {
        ("download", None), ("partition", "far"), ("federate", "far"), ("report", None),
    }  # fmt: skip
    assert {row["note"] for row in unknown} == {"first run: clusterfl download mnist"}
    assert found["totals"]["unknown"] == 4 and found["totals"]["jobs"] == len(found["jobs"]) == 7


def test_seeds_with_data_of_their_own(tmp_path, monkeypatch, quick):
    """One seed's data stand for the others, whose downloads have rows, too; federations of one shape share a speed."""
    monkeypatch.chdir(tmp_path)
    dataset = {"dataset": "linear", "samples": 60, "seed": "run"}
    block = {"dataset": dataset, "partition": {"scheme": "iid", "clients": 4}}
    settings = tiny() | {"seeds": {"runs": [0, 1]}, "federations": {"one": block, "other": block}}
    settings["methods"] = {"fedavg": {"method": "fedavg"}}
    for kind in ("clusterings", "distances", "warmups"):
        put(settings, kind, ...)
    found = Estimate(Plan.from_files([write_yaml(tmp_path / "config.yaml", settings)]))
    assert [row.stage for row in found.rows].count("download") == 2
    assert all(row.seconds > 0 for row in found.rows)
    assert found.speeds["one", 1] is found.speeds["other", 1]


def test_table(predicted):
    shown = text(predicted[1])
    assert [line.split()[0] for line in shown.splitlines()[1 : 1 + len(predicted[1].rows)]] == [
        row.stage for row in predicted[1].rows
    ]
    assert "depends on how training goes" in shown
    assert json.loads(as_json(predicted[1]))["totals"]["jobs"] == len(predicted[1].rows)


def test_bad_studies_are_refused_as_elsewhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--config", "missing.yaml"]) == 2
    said = capsys.readouterr().err
    assert main(["check", "--config", "missing.yaml"]) == 2
    assert capsys.readouterr().err == said
    file = str(write_yaml(tmp_path / "bad.yaml", put(tiny(), "methods.ifca.clusters", 0)))
    assert main(["plan", "--config", file]) == 2
    said = capsys.readouterr().err
    assert main(["jobs", "--config", file]) == 2
    assert capsys.readouterr().err == said and "clusters" in said
    with pytest.raises(SystemExit):
        main(["plan", "--threads", "0"])


def test_a_method_that_splits_is_predicted(tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    options = {"method": "cfl", "upstream_index_bug": True, "eps_mean": 100, "eps_max": 1e-9, "first_split": 1}
    settings = put(tiny(), "methods", {"cfl": options})
    for name in ("warmups", "distances", "clusterings"):
        put(settings, name, {})
    study = Plan.from_files([write_yaml(tmp_path / "config.yaml", put(settings, "baseline", ...))])
    (row,) = [row for row in Estimate(study).rows if row.stage == "federate"]
    assert row.seconds > 0
