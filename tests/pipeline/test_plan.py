"""The prediction of a study's costs: what can be known beforehand is exact, the rest has the right form."""

from __future__ import annotations

import copy
import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import put, tiny, write_yaml
from federations import engine, uneven

from clusterfl.cli import main
from clusterfl.engine.training import Training
from clusterfl.methods import METHODS
from clusterfl.pipeline.estimate import calibration, counting, startup
from clusterfl.pipeline.estimate import prediction as plan
from clusterfl.pipeline.estimate.costs import as_json, text, totals
from clusterfl.pipeline.estimate.counting import Counting, Kind
from clusterfl.pipeline.execute import execute
from clusterfl.pipeline.jobs import Plan
from clusterfl.simulation import loop
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
        patch.setattr(plan, "SECONDS", 0.2)
        study = Plan.from_files([write_yaml(folder / "config.yaml", settings)])
        before = plan.Prediction(study)
        assert not any(folder.glob("results/**/*")) and not (folder / "data").exists()
        for job in before.jobs:
            execute(job)
        yield study, before


def rows(predicted) -> dict[tuple[str, str | None], plan.Row]:
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


def test_a_part_is_predicted_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "SECONDS", 0.2)
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
    """Samples in steps and in forward passes, of the real run's tables."""
    study, prediction = predicted
    job = study.job("federate", "digits", 0, "ifca")
    tally = prediction.tallies[job.first][0]
    table, history = read_table(job.outputs["rounds"]), read_table(job.outputs["history"])
    (steps,) = [v for k, v in tally.items() if isinstance(k, Kind) and "scores" not in k.needs]
    assert steps == 10 * table["local_steps"].sum()  # batches of 10
    assert tally["rows"] == len(history["round"])
    aggregated = history["n"][history["evaluation"] == "aggregated"].sum()
    before = (read_table(job.inputs["partition"])["split"] != "train").sum()  # `stale`: of the initial model
    tests = read_table(job.outputs["classes"])["n"].sum()
    assert tally["samples"] == aggregated + table["client_forwards"].sum() + tests + before


def test_files_are_about_as_large(predicted):
    study, _ = predicted
    for job in study.jobs():
        if job.stage in ("warmup", "federate", "partition", "select"):
            files = [p for path in job.outputs.values() for p in ([path] if path.is_file() else path.iterdir())]
            size = sum(p.stat().st_size for p in files)
            assert size / 2 < rows(predicted)[job.stage, job.label].disk < 2 * size, job


def test_what_optimisers_keep_is_predicted(tmp_path, monkeypatch):
    """It takes memory, and the warm-up hands it on in a file; the methods' results don't have it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "SECONDS", 0.1)
    settings = tiny() | {"training": tiny()["training"] | {"optimizer": "adam", "optimizer_state": "kept"}}
    for place in ("methods.local", "methods.ifca", "methods.lcfl-diffnorm", "clusterings.lcfl-diffnorm"):
        put(settings, place, ...)
    study = Plan.from_files([write_yaml(tmp_path / "config.yaml", settings)])
    before = plan.Prediction(study)
    found = {(row.stage, row.name): row for row in before.rows}
    for job in study.jobs():
        if job.stage in ("warmup", "federate"):
            training = job.settings["training"]
            fresh = replace(job, settings=job.settings | {"training": training | {"optimizer_state": "fresh"}})
            row = 4 * before.speeds["digits"][1].columns
            assert before._federate(job).memory - before._federate(fresh).memory == 2 * (8 * row + 2 * row * 8)
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
    assert prediction._figures() == len(list(study.job("report").outputs["figures"].glob("*.svg")))


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


def counted(folder: Path, rounds: int, **method):
    """Count a method's job on a federation of 6 clients."""
    federation, settings = uneven(), put(tiny(), "training.rounds", rounds)
    job = Plan.from_settings(put(settings, "methods.fedavg", method)).job("federate", "digits", 0, "fedavg")
    return counting.count(job, lambda training, alike: Counting(federation, None, training, 100, alike), folder)


@pytest.mark.parametrize(("stable_rounds", "known"), [(0, True), (3, False)])
def test_a_clustering_that_may_end_early_is_marked(tmp_path, stable_rounds, known):
    assert counted(tmp_path, 6, method="clove", clusters=2, stable_rounds=stable_rounds)[1] == known


def test_rounds_that_are_not_counted_go_on_as_before(tmp_path, monkeypatch):
    whole = counted(tmp_path, 40, method="fedavg")[0]
    monkeypatch.setattr(counting, "CLIENT_ROUNDS", 60)
    few = counted(tmp_path, 40, method="fedavg")[0]
    for name in set(whole) - {"seconds", "disk"}:
        assert few[name] == pytest.approx(whole[name], abs=1e-6), name


def test_time_grows_with_the_rounds(tmp_path):
    """The part that is linear in them: of work that was counted, with any speed."""
    once, twice, thrice = (counted(tmp_path, n, method="fedavg")[0] for n in (20, 40, 60))
    (kind,) = [key for key in once if isinstance(key, Kind)]
    speed = calibration.Speed(1.0, {kind: 2e-6}, (1e-4, 1e-6), 1e-3)
    times = [speed.of(tally | {"seconds": 0.0}) for tally in (once, twice, thrice)]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])
    assert 1.8 < times[1] / times[0] <= 2.0
    assert speed.of(once | {"seconds": 0.0}, threads=2) < times[0]


@pytest.mark.parametrize("name", METHODS)
def test_a_count_sends_what_the_engine_does(name):
    """The same method on the engine that trains and on the one that counts, for every method."""
    options = {"clusters": 2} if "clusters" in METHODS.options(name).model_fields else {}
    options = METHODS.options(name)(**options, **({"start": "initial"} if name == "lcfl" else {})).model_dump()
    federation = uneven()
    given = {"clustering": federation.true_cluster} if name == "lcfl" else {}
    found = []
    with engine(federation=federation, rounds=3, participation=0.5, epochs=2) as real:
        for used in (real, Counting(federation, None, real.training, real.layout.columns)):
            method = METHODS[name](loop.context(used, 3, **given), **options)
            record = loop.run(method, used)[1]
            table = loop.Record.table(record.rounds)
            found.append(
                {key: table[key].tolist() for key in ("bytes_down", "bytes_up", "local_steps", "client_forwards")}
            )
    assert found[0] == found[1]


@pytest.mark.parametrize("exponent", [1, 2, 3])
def test_growth_that_was_seen_goes_on(monkeypatch, exponent):
    """With a clock that work of n moves by n ** exponent."""
    now = [0.0]
    monkeypatch.setattr(calibration, "perf_counter", lambda: now[0])

    def work(n: int) -> None:
        now[0] += n**exponent

    assert calibration.grown(work, 1000, limit=100.0) == pytest.approx(1000**exponent)
    assert calibration.typical(work, 4, limit=1e6)[:2] == (4, 4**exponent)


def test_speed_of_an_engine_is_finite():
    kinds = [Kind(Training(epochs=1).model_dump_json(exclude=counting.ON_SERVER), frozenset(needs), (), apart)
             for needs, apart in (((), False), (("updates",), True))]  # fmt: skip
    found = calibration.speed(engine, kinds, 0.05)
    numbers = [*found.training.values(), *found.forward, found.engine, found.merge, found.whole, found.memory]
    assert len(found.training) == 2 and all(math.isfinite(n) and n >= 0 for n in numbers)
    assert found.of(defaultdict(float, {kinds[0]: 10.0, "seconds": 1.0})) > 1.0


def test_data_that_must_be_fetched(tmp_path, monkeypatch, capsys):
    """Jobs whose sizes nobody knows yet say what to do; those of the other federation are predicted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "SECONDS", 0.1)
    fixed = defaultdict(lambda: (1.0, 1e8)), (0.1, 1e5, 1e-6)
    monkeypatch.setattr(startup, "measure", lambda *arguments: fixed)
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
    told = capsys.readouterr().err
    assert main(["check", "--config", "missing.yaml"]) == 2
    assert capsys.readouterr().err == told
    file = str(write_yaml(tmp_path / "bad.yaml", put(tiny(), "methods.ifca.clusters", 0)))
    assert main(["plan", "--config", file]) == 2
    told = capsys.readouterr().err
    assert main(["jobs", "--config", file]) == 2
    assert capsys.readouterr().err == told and "clusters" in told
    with pytest.raises(SystemExit):
        main(["plan", "--threads", "0"])


def test_a_method_that_splits_is_predicted(tmp_path, monkeypatch):
    """Its sums are of as many models as there are after the split."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "SECONDS", 0.05)
    options = {"method": "cfl", "upstream_index_bug": True, "eps_mean": 100, "eps_max": 1e-9, "first_split": 1}
    settings = put(tiny(), "methods", {"cfl": options})
    for name in ("warmups", "distances", "clusterings"):
        put(settings, name, {})
    study = Plan.from_files([write_yaml(tmp_path / "config.yaml", put(settings, "baseline", ...))])
    (row,) = [row for row in plan.Prediction(study).rows if row.stage == "federate"]
    assert row.seconds > 0
