"""The benchmarks: both sides do the same work, and every row says what the table needs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from benchmarks import __main__ as benchmarks
from benchmarks import hooks, loop, made, measure, page, plain_hooks, works
from benchmarks.loop import Local
from clusterfl import streams
from clusterfl.engine.engine import Engine
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.models import MODELS

TINY = works.Round("tiny", "a tiny round", 1, 0.5, "linear", 8, 8, made.planted, 20, 4, local=Local(epochs=1))


def plain(used, module, row, federation):
    """Return the loop's module, clients and start for a row of parameters."""
    torch.nn.utils.vector_to_parameters(row, module.parameters())
    x, y = works.arrays(federation, federation.clients)
    clients = [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(x, y, strict=True)]
    return module, clients, [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize(
    ("make", "model", "local"),
    [
        (made.images, "mlp", Local(batch_size=20, epochs=2)),
        (made.images, "mlp", Local("adam", 0.001, batch_size=20, epochs=2)),
        (made.images, "lcfl-cnn", Local(momentum=0.9, batch_size=20, epochs=1)),
        (made.images, "lenet5", Local(batch_size=20, epochs=1, learning_rate=0.1)),
        pytest.param(
            partial(made.images, shape=(1, 8, 8), target="input"),
            "clove-autoencoder",
            Local("adam", 0.001, batch_size=20),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            partial(made.texts, length=9, words=80, classes=5),
            "char-lstm",
            Local(batch_size=20, learning_rate=0.1, epochs=1),
            marks=pytest.mark.slow,
        ),
        (made.planted, "linear", Local(batch_size=10, epochs=5)),
        (made.regression, "linear", Local(batch_size=10, epochs=5)),
    ],
)
def test_loop_and_engine_train_the_same_model(make, model, local):
    """Given the engine's orders of the samples, the loop ends with the engine's average: 45 samples, a short batch."""
    federation = make(3, 45)
    module, written = made.network(model, federation), made.plain(model, federation)

    def shuffle(client, epoch, n):
        return torch.as_tensor(streams.permutations(0, "shuffle", [n], [client], 1, epoch)[0])

    with Engine(module, federation, Training(**asdict(local)), device="cpu") as used:
        start = used.initial(0)
        ours = works.fedavg(used, start)
        theirs = torch.cat([p.flatten() for p in loop.train(*plain(used, written, start, federation), local, shuffle)])
    assert (ours - start).norm() > 0.005
    assert (ours - theirs).norm() < 1e-3 * (ours - start).norm()


@pytest.mark.parametrize("name", hooks.ROUNDS)
def test_both_sides_of_a_hook_train_the_same_model(name):
    federation, local = made.images(3, 45), Local(epochs=2)
    work = next(work for work in hooks.HOOKS if work.name == f"hook-{name}-mlp")
    module = made.network("mlp", federation)

    def shuffle(client, epoch, n):
        return torch.as_tensor(streams.permutations(0, "shuffle", [n], [client], 1, epoch)[0])

    training = work.training().model_copy(update=asdict(local))
    with Engine(module, federation, training, device="cpu", copies=work.copies) as used:
        row = used.initial(0).view(work.copies, -1)[:1].expand(work.copies, -1).flatten()
        used.initial = lambda index: row
        start, ours = used.initial(0), work.ours(used)()
        one = start.view(work.copies, -1)[0]
        held = plain(used, module, one, federation)
    theirs = torch.cat([p.flatten() for p in work.loops(*held, local, shuffle)])
    assert (ours - start).norm() > 0.005
    assert (ours[: len(theirs)] - theirs).norm() < 1e-3 * (ours - start).norm()


def test_both_sides_describe_the_same_features():
    federation, work = made.images(3, 45), next(work for work in hooks.HOOKS if work.name == "hook-described-mlp")
    module = made.network("mlp", federation)
    with Engine(module, federation, work.training(), device="cpu") as used:
        ours = work.ours(used)()
        theirs = work.loops(*plain(used, module, used.initial(0), federation))
    assert ours.shape == (3, 2 + 2 * 10, 10)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_both_sides_of_the_server_find_the_same():
    deltas, samples, threshold = (work for work in hooks.HOOKS if isinstance(work, hooks.Server))
    few = {"rows": deltas.made()["rows"][:6]}
    np.testing.assert_allclose(deltas.ours(**few), plain_hooks.cosines(**few), atol=1e-5)
    few = samples.made() | {"samples": samples.made()["samples"][:6]}
    np.testing.assert_allclose(samples.ours(**few), plain_hooks.angles(**few), atol=1e-4)
    given = threshold.made()
    few = given | {"distance": given["distance"][:50, :50]}
    found = threshold.ours(**few)
    assert 1 < len(set(found)) < 50
    assert adjusted_rand_score(found, plain_hooks.agglomerated(**few)) == 1


def test_loop_and_engine_measure_the_same_losses():
    federation = made.images(4, 30)
    module = made.network("mlp", federation)
    with Engine(module, federation, Training(), device="cpu") as used:
        theta = torch.stack([used.initial(k) for k in range(3)])
        ours, models = used.losses(theta, np.arange(4)), []
        for row in theta:
            module, clients, parameters = plain(used, module, row, federation)
            models.append(parameters)
    assert np.allclose(ours, loop.losses(module, clients, models), rtol=1e-4)


def test_sides_take_turns_and_the_first_of_each_is_left_out():
    calls, clock = [], iter(range(10, 20))

    def side(name):
        calls.append(name)
        return next(clock)

    assert measure.in_turn(lambda: side("ours"), lambda: side("loop"), 2) == [(13, 12), (14, 15)]
    assert calls == ["ours", "loop", "loop", "ours", "ours", "loop"]


@pytest.mark.skipif(not measure.memory_is_known(), reason="needs Linux")
def test_memory_is_that_of_a_process_and_its_children():
    code = "import os; x = b'1' * (100 << 20); y = os.fork() or b'1' * (60 << 20); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        found = measure._resident(process.pid)
        process.communicate("\n\n")
    assert 160 << 20 < found < 200 << 20  # the shared 100 MiB count once


def test_growth_compares_time_by_client_and_has_its_page(monkeypatch, tmp_path):
    def seconds(work, clients, **options):
        return [clients / 1000 * (1.2 if clients == 400 else 1)], 2.0

    monkeypatch.setattr(works, "alone", seconds)
    work = works.Growth("g", "growing", 1, "linear", "planted", 20, 4.0, {}, sizes=(100, 200, 400))
    work.run(bench := works.Bench())
    memory, time = bench.rows
    assert (memory.value, memory.ratio, memory.met) == (2.0, 0.5, True)
    assert (time.value, time.reference, time.ratio) == pytest.approx((1.2, 1.0, 1.2)) and time.met
    assert [point.clients for point in bench.points] == [100, 200, 400]
    text = page.write(bench, tmp_path).read_text(encoding="utf-8")
    assert 'aria-label="More clients"' in text and len(pd.read_parquet(tmp_path / "benchmark-growth.parquet")) == 3


OPTIONS = {"method": "ifca", "clusters": 2, "training": {"rounds": 1, "epochs": 1}}
SMALL = works.Memory("small", "a small one", 1, "linear", "planted", 20, 3.0, OPTIONS, clients=8)
STARTING = [SMALL, *benchmarks.chosen(["start-help"])]  # processes, several of each


@pytest.mark.slow
@pytest.mark.parametrize("others", [[], pytest.param(STARTING, marks=pytest.mark.slow)], ids=["here", "processes"])
def test_end_to_end(tmp_path, capsys, others):
    several = [TINY, replace(TINY, name="few", pairs=1, bar=1e-9), *others]
    names = [work.name for work in several]
    done = benchmarks.run(several, works.Bench(pairs=2))
    text = page.write(done, tmp_path).read_text(encoding="utf-8")
    rows = pd.read_parquet(tmp_path / "benchmark.parquet")
    assert list(rows["work"]) == names
    needed = ["work", "unit", "value", "reference", "ratio", "bar", "met"]
    assert rows[needed].notna().all(axis=None) and {"seconds", "loop_seconds"} <= set(rows)
    assert (rows["met"] == (rows["ratio"] <= rows["bar"])).all() and not rows["met"][1]
    assert list(rows["pairs"][:2]) == [2, 1] and rows["pairs"][2:].isna().all()
    assert rows["ratio"].between(rows["ratio_min"], rows["ratio_max"])[:2].all()
    assert rows["value"][0] / rows["seconds"][0] == pytest.approx(1000 / 8)
    assert rows["reference"][0] / rows["loop_seconds"][0] == pytest.approx(1000 / 4)
    assert b"processor" in pq.read_schema(tmp_path / "benchmark.parquet").metadata
    assert all(name in text for name in names) and "src=" not in text and "<link" not in text
    assert f"[{len(names)}/{len(names)}] {names[-1]}: " in capsys.readouterr().err


def test_an_unknown_name_is_reported(capsys):
    with pytest.raises(UserError, match="'round-mlq'; did you mean 'round-mlp"):
        benchmarks.chosen(["round-mlq"])
    assert benchmarks.main(["--only", "nothing"]) == 2
    assert {w.name for w in benchmarks.chosen(["round-mlp"])} == {f"round-mlp-{o}" for o in ("sgd", "adam", "momentum")}
    assert [w.name for w in benchmarks.chosen(["round-lcfl-cnn", "round-lcfl-cnn"])] == ["round-lcfl-cnn"]
    assert len({work.name for work in benchmarks.WORKS}) == len(benchmarks.WORKS)


def test_every_network_has_a_round():
    """Of the table of models; `linear` and `mlp` are in the works before."""
    named = {work.model for work in benchmarks.WORKS if isinstance(work, works.Round)}
    assert named >= set(MODELS)
