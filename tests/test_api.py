"""`clusterfl.load` and `clusterfl.run` from Python: what can't be is named in a sentence, as by the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from federations import mlp, uneven

import clusterfl
from clusterfl.errors import UserError
from clusterfl.methods.fixed import begin_with
from clusterfl.methods.ifca import IFCA
from clusterfl.models import MODELS
from clusterfl.simulation.method import Context, Method, State

SHORT = {"rounds": 1, "epochs": 1}


@dataclass(frozen=True, kw_only=True)
class Named(Method):
    """Has an option that run takes for its own."""

    seed: int = 5


@dataclass(frozen=True, kw_only=True)
class Drawing(Method):
    """Draws from a generator that no seed of the run decides."""

    def begin(self, context: Context) -> State:
        """Group at random."""
        return begin_with(context, np.random.randint(0, 2, context.clients))


@dataclass(frozen=True, kw_only=True)
class Measuring(Method):
    """Has options of the names of run's parameters for one-shot methods."""

    metric: str = "cosine"
    clusterer: str = "ward"
    landmarks: int = 3
    seen: ClassVar[list[Any]] = []

    def begin(self, context: Context) -> State:
        """Say which options came here."""
        self.seen[:] = [self.metric, self.clusterer, self.landmarks]
        return super().begin(context)


def run(method: Any = "ifca", federation: Any = None, model: Any = mlp, **options: Any) -> Any:
    given = {"training": SHORT, "clusters": 2} | options
    return clusterfl.run(method, uneven() if federation is None else federation, model, **given)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"training": {"round": 2}}, ["training.round: unknown key (value 2); did you mean 'rounds'? allowed: "]),
        ({"training": 5}, ["training: found 5; should hold keys and values"]),
        ({"method": "lcfl", "warmup": {"epoch": 2}}, ["warmup.epoch: unknown key", "did you mean 'epochs'?"]),
        ({"method": "lcfl", "warmup": 2}, ["warmup: found 2; should hold keys and values"]),
        ({"rebalance": {"minimum": -1}}, ["rebalance.minimum: found -1; it should be"]),
        ({"privacy": {"clip": 2}}, ["privacy: found {'clip': 2}; no noise: give either epsilon"]),
        (
            {
                "training": SHORT | {"weights": "uniform", "largest_update": 0.1},
                "privacy": {"clip": 0.1, "epsilon": 4, "delta": 1e-3},
            },
            ["training.largest_update: 0.1 isn't above privacy.clip: 0.1", "name its client; omit it, or set a larger"],
        ),
        ({"seed": "a"}, ["seed: found 'a'; allowed: whole numbers from 0 on"]),
        ({"workers": 0}, ["workers: found 0; allowed: whole numbers from 1 on"]),
        ({"federation": "digits"}, ["federation: found 'digits'; allowed: ", "give clusterfl.load('digits')"]),
        ({"model": "mlp"}, ["model: found 'mlp'; allowed: a torch module, ", "lambda: MODELS['mlp']((5,), 3)"]),
        ({"model": lambda: 3}, ["model: what is given makes 3; allowed: a torch module, "]),
        ({"method": dict}, ["method: found <class 'dict'>; allowed: a name of the table", "'my_module:Class'"]),
        ({"metric": "nonsense"}, ["metric: found 'nonsense', but method IFCA isn't one-shot", "allowed: clusters, "]),
        ({"warmup": {"rounds": 2}}, ["warmup: found {'rounds': 2}, but method IFCA isn't one-shot"]),
        ({"method": "clove", "clusterer": "wrad"}, ["CLoVE.clusterer: found 'wrad'; "]),
        ({"method": Named}, ["method Named: its option 'seed' has the name of a parameter of clusterfl.run"]),
        ({"method": IFCA(clusters=2)}, ["method: found IFCA(clusters=2", "whose options go to run by their names"]),
    ],
)
def test_what_cannot_run_is_named(given, says):
    with pytest.raises(UserError) as caught:
        run(**given)
    for words in says:
        assert words in str(caught.value)


def test_an_option_reaches_the_method_whose_it_is():
    run(Measuring, metric="euclid", landmarks=9, clusters=None)
    assert Measuring.seen == ["euclid", "ward", 9]


def test_draws_from_numpys_global_generator_are_named():
    with pytest.warns(UserWarning, match="^Drawing: NumPy's global generator was drawn from .*random_state") as caught:
        run(Drawing, clusters=None)
    assert caught[0].filename == __file__


def test_the_network_that_the_sentence_advises_runs():
    assert len(run(model=lambda: MODELS["mlp"]((5,), 3)).accuracy())


def test_a_split_that_was_not_measured_is_named():
    result = run()
    assert len(result.accuracy()) == len(result.accuracy("train")) > 0
    with pytest.raises(UserError, match=r"split: found 'tests', .*; did you mean 'test'\? allowed: test, train"):
        result.accuracy("tests")


def test_a_dataset_with_options_is_a_block(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i % 4},{i / 10},{i % 7},{i % 2}\n" for i in range(80))
    (tmp_path / "mine.csv").write_text(f"who,a,b,y\n{rows}")
    block = {"dataset": "table", "path": "mine.csv", "label": "y", "client": "who"}
    assert clusterfl.load(block, "natural").clients == 4
    with pytest.raises(UserError, match=r"dataset.pth: unknown key .*; did you mean 'path'"):
        clusterfl.load(block | {"pth": "mine.csv"}, "natural")
    with pytest.raises(UserError, match=r"dataset: found \['digits'\]; should hold keys and values"):
        clusterfl.load(["digits"])  # type: ignore[arg-type]


def test_clusters_begin_after_the_warm_up() -> None:
    found = run("lcfl", warmup={"rounds": 2, "epochs": 1}, training=SHORT | {"rounds": 4})
    assert sorted(set(found.history["round"])) == [0, 1, 2, 3, 4]
    assert sorted(set(found.clusters["round"])) == [3, 4]
