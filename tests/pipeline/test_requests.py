"""What jobs ask a cluster for, with and without a prediction."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from test_pipeline import study

from clusterfl.errors import UserError
from clusterfl.pipeline import requests


class Wildcards(dict):
    """As Snakemake's: a place of a job."""


FEDAVG = Wildcards(federation="turned", seed="0", method="fedavg")


def predicted(folder, seconds, note="", **part):
    """Save a prediction in which every job (of a part) takes `seconds` and a GB, and return the requests."""
    plan = study(folder)
    jobs = list(plan.jobs(plan.part(**part) if part else None))
    rows = [SimpleNamespace(seconds=None if note else seconds(job), memory=1e9, note=note) for job in jobs]
    requests.save(SimpleNamespace(plan=plan, jobs=jobs, rows=rows, whole=not part))
    return requests.Requests(plan)


def groups(asked):
    """Return the group of each kind of job."""
    places = {
        "partition": {}, "warmup": {"warmup": "two"}, "distance": {"distance": "loss"},
        "cluster": {"clustering": "loss"}, "federate": {"method": "fedavg"},
    }  # fmt: skip
    return {
        stage: asked.group(stage)(Wildcards(federation="turned", seed="0", **more)) for stage, more in places.items()
    }


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_stated_numbers_without_a_prediction(tmp_path):
    asked = requests.Requests(study(tmp_path))
    assert [asked.memory("federate", 1500)(FEDAVG, attempt) for attempt in (1, 2)] == [1500, 3000]
    assert asked.minutes("federate", 480)(FEDAVG, 1) == 480
    alone = dict.fromkeys(("partition", "warmup", "distance", "cluster", "federate"))
    assert groups(asked) == alone


def test_predicted_numbers(tmp_path):
    """100 s are 5 minutes and 1 more; a GB is 1500 MB and 600 for the Snakemakes around it."""
    asked = predicted(tmp_path, lambda job: 100)
    assert asked.minutes("federate", 480)(FEDAVG, 1) == 6
    assert asked.memory("federate", 1)(FEDAVG, 2) == 2 * 2100


def test_what_takes_half_an_hour_is_a_chain(tmp_path):
    """A federation and seed has 11 jobs of 160 s (29 min) or 170 s (31 min): 1 partition, 1 + 2 + 2, 5 methods."""
    assert set(groups(predicted(tmp_path, lambda job: 160)).values()) == {"chain"}
    found = groups(predicted(tmp_path, lambda job: 170))
    assert (found["partition"], found["warmup"], found["cluster"]) == ("partition", None, "distance")
    assert found["federate"] == "methods"
    assert groups(predicted(tmp_path, lambda job: 601))["federate"] is None


def test_a_part_is_kept_beside_what_was_predicted_before(tmp_path):
    other = Wildcards(FEDAVG | {"seed": "3"})
    predicted(tmp_path, lambda job: 100)
    asked = predicted(tmp_path, lambda job: 400, seeds=[3])
    assert [asked.minutes("federate", 480)(place, 1) for place in (FEDAVG, other)] == [6, 21]
    asked = predicted(tmp_path, lambda job: 160)
    assert [asked.minutes("federate", 480)(place, 1) for place in (FEDAVG, other)] == [9, 9]


def test_a_part_alone_leaves_the_others_as_stated(tmp_path):
    asked = predicted(tmp_path, lambda job: 400, seeds=[3])
    assert asked.minutes("federate", 480)(FEDAVG, 1) == 480 and groups(asked)["federate"] is None


def test_a_prediction_of_other_settings_does_not_count(tmp_path):
    predicted(tmp_path, lambda job: 100)
    training = {"rounds": 5, "participation": 0.6, "evaluate_every": 2, "epochs": 2}
    asked = requests.Requests(study(tmp_path, training=training))
    assert asked.minutes("federate", 480)(FEDAVG, 1) == 480
    assert groups(asked)["federate"] is None


def test_data_that_are_missing_are_named(tmp_path):
    with pytest.raises(UserError, match="clusterfl download mnist first"):
        predicted(tmp_path, lambda job: 1, note="clusterfl download mnist first")


@pytest.mark.parametrize("content", ["[]", '{"x": 1}', '{"x": {"seconds": 1}}', '{"x": {"seconds": "1", "memory": 1}}'])
def test_a_prediction_of_another_form_is_reported(tmp_path, content):
    plan = study(tmp_path)
    requests.place(plan).parent.mkdir(parents=True)
    requests.place(plan).write_text(content)
    with pytest.raises(UserError, match=r"plan.json has no seconds and memory by job; delete it"):
        requests.Requests(plan)
