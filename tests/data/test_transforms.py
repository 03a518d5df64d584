"""Transforms and prepared samples, against slow loops and plain numpy arithmetic, bit for bit."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from federations import engine, slow_but
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter
from torch import nn

from clusterfl.config.federation import Partition
from clusterfl.data import prepared
from clusterfl.data.federation import Federation
from clusterfl.data.inputs import Inputs
from clusterfl.data.load import clients
from clusterfl.data.prepared import Prepared, on_device, sample_shape, samples_of
from clusterfl.data.samples import Samples
from clusterfl.data.transforms import Transform, blurred, noise, parse, relabelled
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.pipeline.stages.partition import make
from clusterfl.simulation import loop
from clusterfl.simulation.record import Record

# Names.


@pytest.mark.parametrize(
    "name, expected",
    [
        ("none", {}),
        ("rotate90", {"turns": 1}),
        ("rotate180", {"turns": 2}),
        ("rotate270", {"turns": 3}),
        ("rotate270+rotate180", {"turns": 1}),
        ("blur(2)", {"blur": 2.0}),
        ("blur(0.5)", {"blur": 0.5}),
        ("noise(0.1)", {"noise": 0.1}),
        ("noise(1e-1,7)", {"noise": 0.1, "noise_seed": 7}),
        ("noise(1,-3)", {"noise": 1.0, "noise_seed": -3}),
        ("swap(3,1)", {"labels": (("swap", (3, 1)),)}),
        ("relabel(2,0,1)", {"labels": (("relabel", (2, 0, 1)),)}),
        ("relabel(1,0)", {"labels": (("relabel", (1, 0)),)}),
        (" rotate90 + none + blur( 2 ) ", {"turns": 1, "blur": 2.0}),
        ("swap(0,1)+relabel(1,0,2)", {"labels": (("swap", (0, 1)), ("relabel", (1, 0, 2)))}),
    ],
)
def test_names_are_taken_apart(name, expected):
    assert parse(name) == Transform(**expected)


@pytest.mark.parametrize(
    "name",
    [
        "", "+", "rotate90+", "rotate", "rotate45", "rotate360", "rotate90()", "rotate90(1)", "none()", "Rotate90",
        "blur", "blur()", "blur(0)", "blur(-1)", "blur(1,2)", "blur(a)", "blur(nan)", "blur(inf)", "blur2(1)",
        "blur(1)x",
        "noise()", "noise(0)", "noise(1,2,3)", "noise(1,0.5)", "noise(1)+noise(1)", "blur(1)+blur(2)", "noise(1,)",
        "swap(1)", "swap(1,1)", "swap(0.5,1)", "swap(-1,1)", "swap(0,1,2)", "relabel()", "relabel(0,2)",
        "relabel(0,0,1)", "relabel(1,2,3)", "flip", "swap(0,1", "noise(1)noise(2)",
    ],
)  # fmt: skip
def test_wrong_names_are_reported(name):
    with pytest.raises(UserError) as error:
        parse(name)
    message = str(error.value)
    assert f"in '{name}'" in message and "allowed: none, rotate90" in message and "\n" not in message


# Labels.

LABELS = st.sampled_from(
    ["none", "swap(0,1)", "swap(3,1)+rotate90", "relabel(1,2,3,0)", "swap(0,2)+swap(0,1)", "relabel(3,0,1,2)+swap(0,3)"]
)


@given(st.lists(st.tuples(st.integers(0, 3), LABELS), min_size=1, max_size=30))
@settings(deadline=None)
def test_labels_are_those_of_a_slow_loop(rows):
    y, names = (np.array(part) for part in zip(*rows, strict=True))
    expected = []
    for label, name in rows:
        for step in name.split("+"):
            if step.startswith("swap"):
                a, b = map(int, step[5:-1].split(","))
                label = b if label == a else a if label == b else label
            elif step.startswith("relabel"):
                label = int(step[8:-1].split(",")[label])
        expected.append(label)
    before = y.copy()
    assert relabelled(y, names, 4).tolist() == expected
    assert np.array_equal(y, before)


def test_labels_that_do_not_fit_are_reported():
    for name, y, words in (
        ("swap(0,4)", np.arange(4), "they are 0 to 3"),
        ("relabel(2,1,0)", np.arange(4), "they are 0 to 3"),
        ("relabel(1,0)", np.arange(4), "they are 0 to 3"),
        ("swap(0,1)", np.linspace(0, 1, 4), "they are real numbers"),
    ):
        with pytest.raises(UserError) as error:
            relabelled(y, np.full(4, name), 4)
        assert f"transform '{name}' doesn't fit the labels" in str(error.value) and words in str(error.value)
    assert relabelled(np.array([0, 1]), np.full(2, "relabel(1,0)"), 2).tolist() == [1, 0]


# Blur and noise.


@pytest.mark.parametrize("radius", [0.5, 1, 2.5])
def test_blur_is_pillows(radius):
    """Colour images as Pillow blurs them, all channels at once."""
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 9, 12), dtype=np.uint8)
    before = images.copy()
    found = blurred(images, radius)
    assert found.dtype == np.uint8 and found.shape == images.shape and np.array_equal(images, before)
    for image, result in zip(images, found, strict=True):
        by_hand = Image.fromarray(image.transpose(1, 2, 0)).filter(ImageFilter.GaussianBlur(radius))
        np.testing.assert_array_equal(result, np.asarray(by_hand).transpose(2, 0, 1))
    assert not np.array_equal(found, images)


def test_noise_has_the_right_mean_and_spread():
    drawn = np.stack(
        [noise(parse("noise(0.5,3)"), sample, client, (10, 20)) for sample in range(20) for client in range(25)]
    )
    n, z = drawn.size, drawn.astype(np.float64) / 0.5
    assert drawn.dtype == np.float32 and n == 100_000
    assert abs(z.mean()) < 5 / np.sqrt(n)
    assert abs((z**2).mean() - 1) < 5 * np.sqrt(2 / n)
    assert abs((z**3).mean()) < 5 * np.sqrt(15 / n) and abs((z**4).mean() - 3) < 5 * np.sqrt(96 / n)
    assert len(np.unique(drawn[:, 0, 0])) == len(drawn)  # no two samples or clients equal


def test_noise_is_keyed_by_seed_sample_and_client():
    first = noise(parse("noise(1,3)"), 5, 7, (4,))
    assert np.array_equal(first, noise(parse("noise(1,3)"), 5, 7, (4,)))
    assert np.array_equal(noise(parse("noise(2,3)"), 5, 7, (4,)), 2 * first)
    for other in (("noise(1,4)", 5, 7), ("noise(1,3)", 6, 7), ("noise(1,3)", 5, 8), ("noise(1,3)", 7, 5)):
        assert not np.isclose(noise(parse(other[0]), *other[1:], (4,)), first).any()


# Prepared samples.


def federation(x, names, inputs, owners=None, split=None, y=None) -> Federation:
    n = len(x)
    table = {"sample": np.arange(n), "client": np.zeros(n, int) if owners is None else np.asarray(owners)}
    table |= {"split": np.full(n, "train") if split is None else np.asarray(split), "role": np.full(n, "member")}
    table |= {"transform": np.asarray(names), "true_cluster": np.full(n, -1)}
    return clients(Samples(x, np.zeros(n, int) if y is None else y), table, inputs)


CHAINS = ["none", "rotate90", "rotate180", "rotate270", "blur(1)", "noise(0.3,2)", "blur(1)+rotate90+noise(0.3,2)"]
INPUTS = [
    Inputs(),
    Inputs(scale="raw"),
    Inputs(mean=[0.25], std=[0.5]),
    Inputs(mean=[0.1, 0.2, 0.3], std=[0.3, 0.2, 0.7]),
    Inputs(mean=[0.1, 0.2, 0.3], std=[0.3, 0.2, 0.7], squashed=["train"]),
    Inputs(squashed=["test"]),
]


def by_hand(image: np.ndarray, sample: int, chain: str, inputs: Inputs, split: str) -> np.ndarray:
    """One image by plain numpy: blur, rotation, scaling, normalisation, noise."""
    step = parse(chain)
    if step.blur:
        image = blurred(image[None], step.blur)[0]
    x = np.rot90(image, step.turns, (1, 2)).astype(np.float32)
    if inputs.scale == "unit":
        x = x / np.float32(255)
        if split in inputs.squashed:
            x = x / np.float32(255)
    if inputs.mean:
        mean, std = (np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (inputs.mean, inputs.std))
        x = (x - mean) / std
    return x + noise(step, sample, 0, x.shape) if step.noise else x


@pytest.mark.parametrize("inputs", INPUTS, ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_images_are_prepared_as_by_hand(inputs, whole, monkeypatch):
    if not whole:
        monkeypatch.setattr(prepared, "WHOLE_BYTES", 0)
    x = np.random.default_rng(0).integers(0, 256, (14, 3, 6, 6), dtype=np.uint8)
    names = (CHAINS * 2)[:14]
    split = np.repeat(["train", "test"], 7)
    made = federation(x, names, inputs, split=split)
    data = on_device(made.splits, torch.device("cpu"))
    assert (data["train"].whole is not None) == whole
    for name, first in (("train", 0), ("test", 7)):
        rows = range(first, first + 7)
        expected = np.stack([by_hand(x[i], i, names[i], inputs, name) for i in rows])
        found = data[name].take_all().numpy()
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
        places = torch.tensor([[3, 0, 3], [6, 1, 2]])
        np.testing.assert_array_equal(data[name].take(places).numpy(), expected[places])
        ready, index = data[name].ready(places)
        np.testing.assert_array_equal(ready[index].numpy(), expected[places])
        np.testing.assert_array_equal(samples_of(made.splits[name]), expected)
    assert len(data["validation"]) == 0 and data["train"].shape == sample_shape(made) == (3, 6, 6)


def test_stored_samples_are_left_as_they_are():
    x = np.random.default_rng(0).integers(0, 256, (7, 3, 6, 6), dtype=np.uint8)
    features = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    for samples, names in ((x, CHAINS), (features, ["noise(1)"] * 7)):
        before = samples.copy()
        data = Prepared(federation(samples, names, Inputs(mean=[0.5], std=[0.5])).splits["train"])
        first = data.take_all()
        assert torch.equal(data.take_all(), first) and np.array_equal(samples, before)


def test_order_of_a_chain_changes_nothing_but_labels():
    x, y = np.random.default_rng(0).integers(0, 256, (2, 3, 6, 6), dtype=np.uint8), np.arange(2)
    steps = ["blur(1)", "rotate90", "noise(0.5,1)", "swap(0,1)"]
    chains = ["+".join(p) for p in permutations(steps)]
    made = [federation(x, [chain] * 2, Inputs(mean=[0.5], std=[0.5]), y=y).splits["train"] for chain in chains]
    for split in made:
        assert np.array_equal(samples_of(split), samples_of(made[0])) and split.y.tolist() == [1, 0]
    one, other = (relabelled(np.arange(3), np.full(3, n), 3) for n in ("swap(0,1)+swap(1,2)", "swap(1,2)+swap(0,1)"))
    assert one.tolist() == [2, 0, 1] and other.tolist() == [1, 2, 0]  # labels go by the chain's order


def test_features_and_tokens():
    features = np.array([[1, 2, 4], [3, 5, 7]], dtype=np.float64)
    inputs = Inputs(mean=[1, 2, 3], std=[1, 2, 4])
    plain, noisy = (samples_of(federation(features, [n] * 2, inputs).splits["train"]) for n in ("none", "noise(0.5)"))
    np.testing.assert_array_equal(plain, np.array([[0, 0, 0.25], [2, 1.5, 1]], np.float32))
    added = np.stack([noise(parse("noise(0.5)"), i, 0, (3,)) for i in range(2)])
    np.testing.assert_array_equal(noisy, plain + added)
    tokens = samples_of(federation(np.array([[1, 2], [3, 70000]], np.int32), ["none"] * 2, Inputs()).splits["train"])
    assert tokens.dtype == np.int64 and tokens.tolist() == [[1, 2], [3, 70000]]


@pytest.mark.parametrize(
    "x, name, inputs, words",
    [
        (np.zeros((1, 3)), "swap(0,1)+rotate90", {}, "'swap(0,1)+rotate90' needs images"),
        (np.zeros((1, 1, 4, 4)), "blur(1)", {}, "'blur(1)' blurs images stored as bytes; the samples are float"),
        (np.zeros((1, 3), int), "noise(1)", {}, "'noise(1)' adds noise to images or features; the samples are int64"),
        (np.zeros((1, 3, 32, 32), np.uint8), "noise(1)", {"augment": "ifca"}, "noise and inputs.augment: ifca"),
        (np.zeros((1, 1, 2, 3), np.uint8), "rotate90", {}, "rotations need square images"),
        (np.zeros((1, 3, 2, 2), np.uint8), "none", {"mean": [0, 0], "std": [1, 1]}, "need 1 or 3"),
        (np.zeros((1, 3, 32, 40), np.uint8), "none", {"augment": "crop-flip"}, "square colour images of 32 x 32"),
        (np.zeros((1, 1, 32, 32), np.uint8), "none", {"augment": "ifca"}, "square colour images of 32 x 32"),
        (np.zeros((1, 3, 32, 32), np.float32), "none", {"augment": "autoaugment"}, "use augment: none"),
        (np.zeros((1, 3)), "none", {"noise": "fresh"}, "'fresh' would have no effect: no sample's transform has noise"),
    ],
)
def test_what_does_not_fit_is_reported(x, name, inputs, words):
    with pytest.raises(UserError) as error:
        Prepared(federation(x, ["none"] * (len(x) - 1) + [name], Inputs(**inputs), y=np.arange(len(x))).splits["train"])
    assert words in str(error.value)


# Through the engine.


def turned(n=120) -> Federation:
    """Real digits, turned, blurred and noisy, over six clients of two groups."""
    from clusterfl.data import DATASETS

    x, y = (part[:n] for part in DATASETS["digits"](None))
    domains = [{"transform": "none"}, {"transform": "blur(1)"}, {"transform": "noise(0.2)"}]
    block = Partition(scheme="rotated", clients=6, angles=[0, 90], validation=0.1, domains=domains)
    samples = Samples(x, y)
    return clients(samples, make(block.resolved(), samples, 0), Inputs(mean=[0.5], std=[0.5]))


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def results(name: str, **options: Any) -> list[np.ndarray]:
    """All numbers of a run of two rounds."""
    with engine(model, turned(), rounds=2, epochs=1, batch_size=8, **options) as used:
        method = METHODS[name](**({"clusters": 2} if name == "ifca" else {}))
        state, record = loop.run(method, loop.context(used), used)
    tables = [Record.table(part) for part in (record.history, record.rounds, record.clusters)]
    return [state.theta.numpy(), state.labels, *(column for table in tables for column in table.values())]


EACH = [(name, backend) for name in ("fedavg", "ifca") for backend in ("loop", "stacked")]


@pytest.mark.parametrize("name, backend", slow_but([("ifca", "loop")], EACH))
def test_whole_or_piecewise_trains_to_the_same_bits(name, backend, monkeypatch):
    expected = results(name, backend=backend, chunk=5)
    assert np.abs(expected[0]).max() > 0.1
    monkeypatch.setattr(prepared, "WHOLE_BYTES", 0)
    for cut in ({"chunk": 1}, {"chunk": 5}, {"chunk": 1, "workers": 2}, {"chunk": 5, "workers": 2}):
        for one, other in zip(expected, results(name, backend=backend, **cut), strict=True):
            np.testing.assert_array_equal(one, other)
