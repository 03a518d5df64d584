"""Rows in a file: they are what a tensor's rows are, for this process and others, and don't grow its memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import engine, images, mlp, norm_and_dropout, slow_but, uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import taken
from safetensors.numpy import save

from clusterfl import api as notebook
from clusterfl.clustering.distances import METRICS
from clusterfl.clustering.metric import INPUTS
from clusterfl.errors import UserError
from clusterfl.pipeline.stages.common import read_clients
from clusterfl.pipeline.stages.distance import ARRAYS, measure
from clusterfl.simulation.warm_up import warm_up
from clusterfl.storage.blocks import blocks
from clusterfl.storage.row_store import RowStore, allocate, positions_of, runs
from clusterfl.storage.store import read_tensors, write_tensors

N, P = 7, 3


@pytest.fixture
def in_files(monkeypatch):
    """Let all rows lie in files, and be handled in blocks of few."""
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1)
    monkeypatch.setattr("clusterfl.storage.blocks.BLOCK_BYTES", 1000)


def filled(folder: Path, dtype=torch.float32) -> tuple[RowStore, torch.Tensor]:
    store = RowStore(str(folder / "rows"), N, P, dtype, owned=True)
    rows = torch.arange(float(N * P), dtype=dtype).view(N, P)
    store[:] = rows
    return store, rows


places = st.one_of(
    st.integers(-N, N - 1),
    st.slices(N).filter(lambda s: (s.step or 1) > 0),  # torch has no others
    st.lists(st.integers(-N, N - 1), min_size=1, max_size=12).map(lambda found: np.array(found)),
    st.lists(st.integers(-N, N - 1), min_size=1, max_size=12).map(torch.tensor),
    st.lists(st.booleans(), min_size=N, max_size=N).map(torch.tensor),
)


@given(places, st.sampled_from([torch.float32, torch.float64]), st.sampled_from([1, 2 * P * 4, 1 << 20]), st.booleans())
@settings(deadline=None, max_examples=200)
def test_reads_and_writes_are_those_of_a_tensor(tmp_path_factory, place, dtype, block, one_for_all):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("clusterfl.storage.blocks.BLOCK_BYTES", block)
        store, rows = filled(tmp_path_factory.mktemp("rows"), dtype)
        assert (len(store), store.shape, store.columns, store.dtype) == (N, (N, P), P, dtype)
        assert torch.equal(store[place], rows[place])
        if isinstance(place, np.ndarray | torch.Tensor) and len(set(positions_of(place, N).tolist())) < len(place):
            return  # a tensor doesn't say which of several values a row gets
        new = -torch.rand(P if one_for_all else rows[place].shape)
        store[place] = new
        rows[place] = new.to(dtype)
        assert torch.equal(store[:], rows)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 9))
def test_neighbours_are_one_call(index, longest):
    """Runs cover the index in order; within one rows are neighbours, and two that could be one aren't."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("clusterfl.storage.blocks.BLOCK_BYTES", longest * 8)
        found = list(runs(np.array(index, dtype=np.int64), 8))
    covered = [first + i for first, part in found for i in range(part.stop - part.start)]
    assert covered == index
    for (first, part), (following, _) in pairwise(found):
        assert part.stop - part.start == longest or first + part.stop - part.start != following


def test_blocks_have_a_size():
    assert blocks(5, 10, most=25) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert blocks(3, 100, most=25) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert blocks(0, 10) == []


def test_rows_never_written_are_zeros_and_take_no_space(tmp_path):
    store = RowStore(str(tmp_path / "rows"), 1000, 1000, owned=True)
    store[500] = 1.0
    assert store[499:502].sum(1).tolist() == [0, 1000, 0]
    assert os.stat(store.path).st_blocks * 512 < 100_000


def test_positions_outside_are_refused(tmp_path):
    store, _ = filled(tmp_path)
    for place in (N, -N - 1, [0, N], torch.ones(N + 1, dtype=torch.bool)):
        with pytest.raises(IndexError):
            store[place]
    with pytest.raises(RuntimeError, match="expand"):
        store[:2] = torch.zeros(3, P)


def use(store: RowStore) -> float:
    """Read and write in another process; the object's end there leaves the file alone."""
    store[2] = store[1] + 1
    total = float(store[:].sum())
    del store
    gc.collect()
    return total


@pytest.mark.parametrize("way", slow_but(["fork"], ["fork", "spawn"]))
def test_other_processes_use_the_same_file(tmp_path, way):
    store, rows = filled(tmp_path)
    with multiprocessing.get_context(way).Pool(1) as pool:
        found = pool.apply(use, (store,))
    rows[2] = rows[1] + 1
    assert torch.equal(store[:], rows) and found == rows.sum()


def test_the_maker_alone_deletes_the_file(tmp_path):
    store, rows = filled(tmp_path)
    other = pickle.loads(pickle.dumps(store))
    assert torch.equal(other[:], rows)
    other.close()
    assert Path(store.path).exists()
    path = Path(store.path)
    child = os.fork()
    if not child:  # what a forked worker drops isn't its own
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and path.exists()
    held = os.dup(store._file)  # as a forked worker that lives on
    del store
    assert not path.exists() and os.fstat(held).st_blocks == 0
    os.close(held)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a Linux device that is always full")
def test_a_full_disk_is_reported():
    store = RowStore("/dev/full", 5, 25)
    with pytest.raises(UserError, match=r"no space left in /dev for 500 bytes .* TMPDIR"):
        store[1] = 1.0


def test_a_file_cut_by_others_is_reported(tmp_path):
    store, _ = filled(tmp_path)
    os.truncate(store.path, 4 * P)
    with pytest.raises(EOFError, match="ends at byte 12"):
        store[:]


def test_calls_that_move_a_part_are_repeated_from_there(tmp_path, monkeypatch):
    """The system may read and write fewer bytes than asked for, and does above 2 GB."""

    def partly(call):
        return lambda file, parts, offset: call(file, [parts[0][:5]], offset)

    for name in ("preadv", "pwritev"):
        monkeypatch.setattr(os, name, partly(getattr(os, name)))
    store, rows = filled(tmp_path)
    assert torch.equal(store[:], rows) and torch.equal(store[[5, 2, 3]], rows[[5, 2, 3]])


def test_only_large_rows_lie_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 100)
    assert isinstance(allocate(4, 6), torch.Tensor)
    large = allocate(4, 6, torch.float64, str(tmp_path))
    assert isinstance(large, RowStore) and Path(large.path).parent == tmp_path
    assert torch.equal(large[:], torch.zeros(4, 6, dtype=torch.float64))


def test_stored_bytes_are_the_librarys(tmp_path, in_files):
    rng = np.random.default_rng(0)
    tensors = {
        "theta": rng.normal(size=(60, 11)).astype(np.float32), "labels": np.arange(60), "flags": rng.random(5) > 0.5,
        "sums": rng.normal(size=(60, 11)), "bytes": rng.integers(0, 9, (3, 2, 2), dtype=np.uint8),
        "empty": np.zeros((0, 4), np.float16), "größe": np.ones(1, np.int16), "strided": np.arange(12.0)[::3],
    }  # fmt: skip
    rows = {name: allocate(60, 11, torch.as_tensor(tensors[name]).dtype) for name in ("theta", "sums")}
    for name, store in rows.items():
        store[:] = tensors[name]
    swapped = {"labels": tensors["labels"].astype(">i8")}
    for number, given_ in enumerate((tensors, tensors | rows, tensors | swapped, {})):
        path = tmp_path / f"{number}.safetensors"
        write_tensors(path, given_)
        expected = {name: np.ascontiguousarray(value) for name, value in tensors.items()} if given_ else {}
        assert path.read_bytes() == save(expected)
    for name, value in read_tensors(tmp_path / "1.safetensors").items():
        np.testing.assert_array_equal(value, tensors[name])


@given(places)
@settings(deadline=None, max_examples=50)
def test_rows_are_read_from_shards(tmp_path_factory, place):
    folder = tmp_path_factory.mktemp("shards")
    rows = torch.arange(float(N * P)).view(N, P)
    for number, part in enumerate((slice(0, 3), slice(3, 6), slice(6, 7))):
        write_tensors(folder / f"{number}.safetensors", {"client": np.arange(N)[part], "theta": rows[part]})
    ids, stored = read_clients(folder, "theta")
    assert ids.tolist() == list(range(N))
    assert (len(stored), stored.shape, stored.dtype) == (N, (N, P), torch.float32)
    assert torch.equal(stored[place], rows[place])
    assert torch.equal(stored.copy(), rows)


def test_shards_without_the_array_are_reported(tmp_path):
    write_tensors(tmp_path / "0.safetensors", {"client": np.arange(2), "theta": np.zeros((2, 3), np.float32)})
    with pytest.raises(UserError, match="has no array 'last_gradient'"):
        read_clients(tmp_path, "last_gradient")


def test_every_input_of_a_metric_is_read_from_the_warm_up():
    assert ARRAYS.keys() == set(INPUTS) == {METRICS.input(metric) for metric in METRICS}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("m", [1, 2, 9])
def test_blocks_change_no_bit_of_a_distance(metric, m, monkeypatch):
    """More columns than NumPy's buffer of 8192: beyond it sums depend on how they are cut."""
    values = np.random.default_rng(0).normal(size=(m, m if METRICS.input(metric) == "losses" else 20_000))
    values = taken(metric, values)
    whole = METRICS[metric](values)
    for block in (1, 5 * 8 * 20_000):
        monkeypatch.setattr("clusterfl.storage.blocks.BLOCK_BYTES", block)
        np.testing.assert_array_equal(METRICS[metric](values), whole)


@pytest.mark.parametrize("metric", METRICS)
def test_distances_of_rows_in_files_have_the_same_bits(metric, tmp_path, request):
    """Also where a model's row ends in buffers, which no metric sees."""
    with engine(norm_and_dropout, images(), rounds=2, epochs=1, participation=0.5) as used:

        def warmed():
            warm = warm_up(used, gradients=True, deltas=True)
            return {"theta": warm.theta, "last_gradient": warm.gradients, "delta": warm.deltas}

        name, p = ARRAYS[METRICS.input(metric)], used.layout.parameter_columns
        kept = warmed()
        expected, costs = measure(used, kept[name], metric, {})
        if METRICS.input(metric) not in ("losses", "samples"):
            np.testing.assert_array_equal(METRICS[metric](kept[name][:, :p].numpy()), expected)
        request.getfixturevalue("in_files")
        stored = warmed()
        for key, rows in stored.items():
            assert isinstance(rows, RowStore) and torch.equal(rows[:], kept[key])
        for part in (slice(0, 3), slice(3, 5)):
            shard = {"client": np.arange(5)[part]} | {key: rows[part] for key, rows in stored.items()}
            write_tensors(tmp_path / f"{part.start}.safetensors", shard)
        for array in (stored[name], read_clients(tmp_path, name)[1]):
            found, again = measure(used, array, metric, {})
            np.testing.assert_array_equal(found, expected)
            assert again == costs


GROWTH = """
import resource
import numpy as np
from torch import nn
from clusterfl.engine.engine import Engine
from clusterfl.engine.training import Training
from clusterfl.simulation import loop
from clusterfl.storage import blocks, row_store
from clusterfl.data.federation import Federation
from clusterfl.methods import METHODS
from clusterfl.pipeline.stages.distance import measure
from clusterfl.simulation.warm_up import warm_up

blocks.BLOCK_BYTES, row_store.DISK_BYTES = 2 << 20, 1

def peak(clients):
    x, owner = np.ones((3 * clients, 1), np.float32), np.repeat(np.arange(clients), 3)
    data = Federation.from_arrays(x, np.arange(len(x)) % 2, owner, np.tile(["train", "train", "test"], clients))
    wide = lambda: nn.Sequential(nn.Linear(1, 15_000, bias=False), nn.Linear(15_000, 2, bias=False))
    with Engine(wide, data, Training(rounds=1, epochs=1), backend="loop", device="cpu", chunk=4) as used:
        loop.run(METHODS["local"](), loop.context(used), used)
        warm = warm_up(used)
        measure(used, warm.theta, "parameters", {})
        extra = {"clustering": np.arange(clients) % 2, "warmup": warm.state, "members": lambda: warm.theta}
        METHODS["lcfl"](start="members").begin(loop.context(used, **extra))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

print(-peak(80) + peak(240))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_clients():
    """160 more clients of 45,000 numbers each: 29 MB in all and twice that in sums, 83 MB if they lay in memory."""
    exact = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # freed blocks go back to the system at once
    result = subprocess.run([sys.executable, "-c", GROWTH], env=exact, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 30


def test_a_finished_run_has_its_models_in_a_file(monkeypatch):
    """Whoever has run `local` in a notebook has many models, and reads those that are looked at."""
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1 << 30)
    kept = notebook.run("local", uneven(), mlp, training={"rounds": 1}).models
    monkeypatch.setattr("clusterfl.storage.row_store.DISK_BYTES", 1)
    stored = notebook.run("local", uneven(), mlp, training={"rounds": 1}).models
    assert isinstance(kept, torch.Tensor) and isinstance(stored, RowStore)
    assert torch.equal(stored[2], kept[2]) and torch.equal(stored[:], kept)
