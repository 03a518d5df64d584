"""The scale of a run: only settings decide it, and a run of fewer rounds is judged by what it has reached."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest
import pytest
import yaml
from conftest import tiny

from clusterfl.claims import scale
from clusterfl.config import loading
from clusterfl.pipeline.jobs import Plan
from clusterfl.registry import PACKAGE

CELL = "mnist/label-skew-1"


def study(**more: Any) -> dict[str, Any]:
    """Return the settings of a study that stands in for a shipped one."""
    own = tiny() | {"baseline": None, "seeds": {"runs": [0, 1, 2]}}
    own["training"] |= {"rounds": 12, "evaluate_every": 3}
    own["federations"]["digits"]["partition"]["validation"] = 0.1
    own["methods"] = {
        "fedavg": {"method": "fedavg"},
        "ifca": {"method": "ifca", "clusters": 2},
        "fesem": {"method": "ifca", "sweep": {"clusters": [2, 3]}},
        "lcfl": {"method": "lcfl", "clustering": "lcfl"},
    }
    cells = {CELL: {"federation": "digits"}}
    guesses = {"digits/*": ["training.rounds"], "*/ifca": ["options.clusters", "training.rounds"]}
    names = {"local": "lcfl"}
    return own | {"claims": {"paper": "clove", "cells": cells, "names": names, "guesses": guesses} | more}


def put(settings: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """Return a copy of settings with another value at a dotted place."""
    return conftest.put(copy.deepcopy(settings), place, value)


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Let a study be the one that ships for CLoVE."""

    def put_there(settings: dict[str, Any]) -> None:
        path = tmp_path / f"shipped-{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        monkeypatch.setattr(scale, "file", lambda paper: path)

    return put_there


def found(settings: dict[str, Any], method: str = "ifca", profile: str = "paper") -> scale.Scale:
    plan = Plan.from_settings(settings)
    place = scale.named(plan, profile, CELL, method)
    assert place is not None
    return scale.of_cell(plan, place, profile, CELL, method)


def test_the_same_settings_are_the_papers_scale_whatever_the_names(ship: Callable[..., None]) -> None:
    ship(study())
    assert found(study()) == scale.Scale("paper", "", 12, 12, True, 2)
    other = study() | {"study": "mine"}
    other["federations"] = {"mine": other["federations"]["digits"]}
    other["methods"]["ifca-mine"] = other["methods"].pop("ifca")
    other["claims"] |= {"cells": {CELL: {"federation": "mine"}}, "names": {"ifca": "ifca-mine", "local": "lcfl"}}
    assert found(other).name == "paper"
    assert found(other | {"seeds": {"runs": [5]}}).name == "paper"
    elsewhere = scale.of_place(Plan.from_settings(other), ("mine", "ifca-mine"))
    assert elsewhere.reason == "the shipped study has no run mine/ifca-mine"
    for method, guesses in (("fedavg", 1), ("fesem", 1), ("local", 1)):
        assert (found(study(), method).name, found(study(), method).guesses) == ("paper", guesses)


@pytest.mark.parametrize(
    "key, value, method, said",
    [
        ("model", {"model": "mlp", "hidden": [16]}, "ifca", "model."),
        ("training.learning_rate", 0.11, "ifca", "training.learning_rate 0.11, shipped 0.1"),
        ("training.rounds", 13, "ifca", "training.rounds 13, shipped 12"),
        ("methods.ifca.clusters", 3, "ifca", "options.clusters 3, shipped 2"),
        ("federations.digits.partition.test", 0.3, "ifca", "partition.test 0.3, shipped"),
        ("engine.precision", "tf32", "ifca", "precision tf32, shipped float32"),
        ("score.split", "train", "ifca", "score.split train, shipped test"),
        ("seeds.data", 0, "ifca", "seeds.data 0, shipped run"),
        ("warmups.short.rounds", 2, "local", "warmup.training.rounds 2, shipped"),
        ("methods.fesem.sweep", {"clusters": [2, 4]}, "fesem", "trials"),
        ("training.rounds", 6, "fesem", "training.rounds"),
        ("claims.iterations", "lcfl-released", "ifca", "claims.iterations isn't the shipped study's"),
    ],
)
def test_one_other_setting_is_lite(ship: Callable[..., None], key: str, value: Any, method: str, said: str) -> None:
    ship(study())
    other = found(put(study(), key, value), method)
    assert other.name == "lite" and not other.judged and said in other.reason


def test_what_ships_nothing_beside_a_claim_is_lite(ship: Callable[..., None]) -> None:
    ship(study())
    second = study(others={"released": {}})
    assert found(second, profile="released").reason == (
        f"the shipped study has nothing of {CELL}, ifca, profile released"
    )
    assert found(second).name == "paper"


def test_fewer_rounds_are_a_prefix(ship: Callable[..., None]) -> None:
    ship(study())
    short = put(study(), "training.rounds", 5)
    assert found(short) == scale.Scale("prefix", "", 12, 12, True, 2)
    often = found(put(study(), "training.evaluate_every", 1))
    assert (often.name, often.evaluated) == ("paper", False)
    assert not found(put(short, "training.evaluate_every", 1)).evaluated
    smooth = put(study(), "score.smooth", 2)  # a mean over evaluations, which are others then
    ship(smooth)
    assert found(put(smooth, "training.rounds", 5)).name == "prefix"
    assert found(put(smooth, "training.evaluate_every", 1)).name == "lite"
    points = put(study(), "claims.iterations", "lcfl-released")  # which count evaluations, not rounds
    ship(points)
    assert found(points).name == "paper" and found(put(points, "training.evaluate_every", 1)).name == "lite"


def test_printed_iterations_refer_to_rounds_of_the_shipped_cell_then_study_then_run(ship: Callable[..., None]) -> None:
    """Whatever the study says that is compared."""
    shipped = study()
    for key, value, asked in (("training.rounds", 12, 12), ("claims.rounds", 200, 200), ("cell", 50, 50)):
        shipped = put(shipped, f"claims.cells.{CELL}.rounds" if key == "cell" else key, value)
        ship(shipped)
        for own in (study(), put(study(), "claims.rounds", 77)):
            assert (found(own).rounds, found(own).printed) == (12, asked)


@pytest.mark.parametrize(
    "privacy, name",
    [
        ({"epsilon": 4}, "lite"),
        ({"epsilon": float("inf")}, "prefix"),
        ({"noise_multiplier": 1.0}, "prefix"),
    ],
)
def test_noise_found_for_all_rounds_allows_no_prefix(
    ship: Callable[..., None], privacy: dict[str, Any], name: str
) -> None:
    private = study()
    private["methods"]["fedavg"]["privacy"] = {"clip": 1.0, "delta": 0.01, "accounting": "theorem-4.2"} | privacy
    private["training"] |= {"weights": "uniform", "participation": 0.5}
    ship(private)
    assert found(private, "fedavg").name == "paper"
    other = found(put(private, "training.rounds", 6), "fedavg")
    assert other.name == name and ("privacy.epsilon: its noise" in other.reason) == (name == "lite")


def test_a_sweep_and_an_unknown_schedule_allow_no_prefix() -> None:
    plan = Plan.from_settings(study())
    assert scale.bound(plan.job("select", "digits", 0, "fesem")) == "a sweep chooses by the last round"
    job = plan.job("federate", "digits", 0, "ifca")
    assert scale.bound(job) == ""
    job.settings.update(method="fpfc", options={"means": False})
    assert scale.bound(job) == ""
    job.settings["options"]["means"] = True
    assert scale.bound(job) == "means: it changes what the last round leaves"
    job.settings["training"]["schedule"] = "cosine"
    assert scale.bound(job) == "training.schedule: cosine depends on the number of rounds"


def test_no_other_part_of_the_package_reads_the_total_of_rounds() -> None:
    """A new one either changes no number of a round before the last, or belongs into `scale.bound`."""
    known = {
        "simulation/loop.py": "the loop, its records and the last evaluation",
        "methods/fedgwc.py": "sizes of what is recorded",
        "methods/fpfc.py": "means after the last round: `Method.ending`",
        "methods/flux.py": "refuses common rounds that leave none for the clusters",
        "methods/flhc.py": "refuses common rounds that leave none for the clusters",
        "simulation/warm_up.py": "a warm-up's own rounds, which must be equal",
        "privacy/private.py": "noise found for all rounds",
        "privacy/wrapper.py": "sizes of what is recorded",
    }
    pattern = re.compile(r"training\.rounds\b|\[\"rounds\"\]")
    rooms = ("methods", "privacy", "simulation", "engine", "clustering")
    parts = [path for room in rooms for path in (PACKAGE / room).rglob("*.py")]
    reading = {path.relative_to(PACKAGE).as_posix() for path in parts if pattern.search(path.read_text("utf-8"))}
    assert reading <= known.keys()


@pytest.mark.parametrize("paper", scale.STUDIES)
def test_a_shipped_study_is_of_its_own_scale(paper: str) -> None:
    plan = Plan(loading.load(loading.read([scale.file(paper)])))
    own = scale.claims_of(plan)
    assert own.paper == paper
    cells = {(cell.federation, cell.suffix): key for key, cell in own.cells.items()}
    for key in list(cells.values())[::7]:
        for method in plan.on(own.cells[key].federation).methods:
            name = next((k for k, v in own.names.items() if v == method), method)
            place = scale.named(plan, own.profile, key, name)
            if place is not None:
                assert scale.of_cell(plan, place, own.profile, key, name).name == "paper"


@pytest.mark.parametrize("paper", scale.STUDIES)
def test_every_guess_is_a_setting_of_a_run(paper: str) -> None:
    plan = scale.shipped(paper)
    own, used = scale.claims_of(plan), set()
    for federation in plan.study.federations:
        for method in plan.on(federation).methods:
            job = plan.job("federate", federation, 0, method)
            for name in scale.guessed(own, (federation, method)):
                stage, _, rest = name.partition(".")
                above = {one.stage: one for one in job.upstream.values()}
                place, keys = (above[stage].settings, rest) if stage in above else (job.settings, name)
                for key in keys.split("."):
                    assert key in place, f"{federation}/{method} has no setting {name}"
                    place = place[key]
            used |= {g for g in own.guesses if scale.fnmatchcase(f"{federation}/{method}", g)}
    assert used == set(own.guesses)


def test_lite_overlays_are_lite() -> None:
    """No run of a reduced overlay is taken for one of the paper's, but where it changes nothing."""
    folder = scale.file("lcfl").parent
    for paper, name in scale.STUDIES.items():
        overlay = folder / name.replace(".yaml", ".lite.yaml")
        plan = Plan(loading.load(loading.read([folder / name, overlay])))
        own = scale.claims_of(plan)
        key = next(key for key, cell in own.cells.items() if cell.federation in plan.study.federations)
        for method in plan.on(own.cells[key].federation).methods:
            assert scale.of_place(plan, (own.cells[key].federation, method)).name == "lite", (paper, method)
