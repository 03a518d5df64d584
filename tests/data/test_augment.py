"""Augmentations: the draws, each kind against a slow loop or its source, and no influence of chunks and workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from federations import engine, slow_but
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from clusterfl import streams
from clusterfl.data import prepared
from clusterfl.data.augment import AUGMENTATIONS, Draws, Ifca, quantiles
from clusterfl.data.federation import Federation
from clusterfl.data.inputs import Inputs
from clusterfl.data.load import clients
from clusterfl.data.prepared import Prepared, augmented_once, sample_shape, samples_of
from clusterfl.data.readers.vision import torchvision
from clusterfl.data.samples import Samples
from clusterfl.engine.training import Training
from clusterfl.errors import UserError
from clusterfl.methods import METHODS
from clusterfl.pipeline.checkpoint import Unfinished
from clusterfl.pipeline.stages import common, distance
from clusterfl.simulation import loop
from clusterfl.storage.store import write_table, write_tensors


def pictures(n: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(seed).integers(20, 220, (n, 3, 32, 32), dtype=np.uint8))


def draws(n: int = 40, seed: int = 5) -> Draws:
    return Draws(seed, (torch.arange(n) // 7, torch.full((n,), 3), torch.arange(n)))


# Draws.


@given(st.integers(0, 2**63), st.lists(st.tuples(*[st.integers(-1, 2**40)] * 3), min_size=1, max_size=20))
@settings(deadline=None)
def test_hashes_on_a_device_are_those_of_numpy(seed, rows):
    counters = np.array(rows, dtype=np.int64).T
    expected = streams.hashed(seed, "purpose", *counters)
    found = streams.hashed_on_device(seed, "purpose", *map(torch.as_tensor, counters))
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found.numpy().view(np.uint64), expected)


def test_draws_are_even_and_differ_by_number_counter_and_seed():
    many = Draws(0, (torch.arange(9000),))
    found = many.below(9, 0)
    assert found.min() == 0 and found.max() == 8
    assert stats.chisquare(np.bincount(found.numpy(), minlength=9)).pvalue > 1e-3
    assert stats.kstest(many.uniform(1).double().numpy(), "uniform").pvalue > 1e-3
    for other in (
        many.below(9, 1),
        Draws(1, many.counters).below(9, 0),
        Draws(0, (torch.arange(9000) + 9000,)).below(9, 0),
    ):
        assert abs((other == found).double().mean() - 1 / 9) < 5 * np.sqrt(8 / 81 / 9000)
    assert torch.equal(Draws(0, (torch.tensor([4711]),)).below(9, 0), found[4711:4712])  # neighbours change nothing


# Crop and flip.


def test_crop_and_flip_are_those_of_a_slow_loop():
    x, drawn = pictures(), draws()
    before = x.clone()
    found = AUGMENTATIONS["crop-flip"].train(x, drawn)
    top, left, mirrored = drawn.below(9, 0), drawn.below(9, 1), drawn.below(2, 2)
    assert len({*zip(top.tolist(), left.tolist(), strict=True)}) > 20 and 0 < mirrored.sum() < 40
    for i in range(40):
        padded = np.zeros((3, 40, 40), np.uint8)
        padded[:, 4:36, 4:36] = before[i]
        image = padded[:, top[i] : top[i] + 32, left[i] : left[i] + 32]
        image = image[:, :, ::-1] if mirrored[i] else image
        np.testing.assert_array_equal(found[i].numpy(), image)
    assert torch.equal(x, before)
    assert AUGMENTATIONS["crop-flip"].finish(x, drawn) is x


# AutoAugment.


class Given(Draws):
    """Draws with given answers: which policy, the two chances in units of 2^-30, the two signs."""

    def __init__(self, *answers: int):
        super().__init__(0, (torch.zeros(1),))
        object.__setattr__(self, "answers", answers)

    def below(self, limit: int, number: int) -> torch.Tensor:
        return torch.tensor([self.answers[number]])


@pytest.fixture(scope="module")
def policy() -> Any:
    torchvision()
    from torchvision.transforms import autoaugment

    return autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)


@pytest.mark.parametrize("number", slow_but(range(0, 25, 4), range(25)))
def test_autoaugment_is_torchvisions(policy, number, monkeypatch):
    """Each policy with each pair of signs, both operations done, one, or none."""
    assert len(policy.policies) == 25
    image = pictures(1, number)
    chances = [step[1] for step in policy.policies[number]]
    seen = []
    for signs in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for done in ((True, True), (True, False), (False, True), (False, False)):
            # An operation is done below its probability; policy 14's second one has probability 0.
            drawn = [p / 2 if yes and p else p + 1e-6 for yes, p in zip(done, chances, strict=True)]
            answer = (number, torch.tensor(drawn), torch.tensor(signs))
            monkeypatch.setattr(policy, "get_params", lambda n, answer=answer: answer)
            expected = policy(image[0])
            negative = [1 - sign for sign in signs]  # torchvision's 0 is minus
            said = Given(number, *(int(chance * (1 << 30)) for chance in drawn), *negative)
            found = AUGMENTATIONS["autoaugment"].train(image.clone(), said)
            assert torch.equal(found[0], expected)
            seen.append(expected)
    assert any(not torch.equal(image[0], other) for other in seen)


def test_autoaugment_on_many_images_is_that_on_each(policy, monkeypatch):
    """By torchvision's own code with our draws, image by image."""
    x, drawn = pictures(200), draws(200)
    found = AUGMENTATIONS["autoaugment"].train(x.clone(), drawn)
    which = drawn.below(25, 0)
    chances, negative = ([drawn.below(limit, k + i).tolist() for i in (0, 1)] for limit, k in ((1 << 30, 1), (2, 3)))
    for i in range(200):
        answer = (
            int(which[i]),
            torch.tensor([c[i] / (1 << 30) for c in chances], dtype=torch.float64),
            torch.tensor([1 - n[i] for n in negative]),
        )
        monkeypatch.setattr(policy, "get_params", lambda n, answer=answer: answer)
        assert torch.equal(found[i], policy(x[i])), i
    changed = (found != x).flatten(1).any(1).double().mean()
    assert len(which.unique()) == 25 and 0.7 < changed < 1


# IFCA's pipeline.


def _halves(n: int, transform: str) -> np.ndarray:
    """Return no transform for the first half of the samples, one for the others."""
    return np.array(["none", transform])[np.arange(n) * 2 // n]


def federation(augment: str, n: int = 48, transform: str = "none", **inputs: Any) -> Federation:
    x = pictures(n).numpy()
    split = np.tile(np.repeat(["train", "test"], [9, 3]), n // 12)
    table = {"sample": np.arange(n), "client": np.repeat(np.arange(n // 12), 12), "split": split}
    table |= {"role": np.full(n, "member"), "transform": _halves(n, transform), "true_cluster": np.full(n, -1)}
    return clients(Samples(x, np.arange(n) % 3), table, Inputs(augment=augment, **inputs))


def test_ifca_crops_and_standardises_in_training_and_evaluation():
    made = federation("ifca")
    data = Prepared(made.splits["train"])
    assert data.shape == sample_shape(made) == (3, 24, 24) and Prepared(made.splits["test"]).shape == (3, 24, 24)
    places = torch.arange(len(data))
    trained, evaluated = data.take(places, draws(len(data))), data.take_all()
    for x in (trained, evaluated):
        assert x.dtype == torch.float32 and x.shape == (36, 3, 24, 24)
        flat = x.double().flatten(1)
        assert flat.mean(1).abs().max() < 1e-5 and (flat.std(1, correction=0) - 1).abs().max() < 1e-5
    raw = made.splits["train"].pool.x[made.splits["train"].rows].astype(np.float64)[:, :, 4:28, 4:28]
    mean, deviation = raw.mean(axis=(1, 2, 3), keepdims=True), raw.std(axis=(1, 2, 3), keepdims=True)
    np.testing.assert_allclose(evaluated.numpy(), (raw - mean) / deviation, atol=2e-5)  # the crop at the centre
    assert not torch.allclose(trained, evaluated, atol=0.1)


@pytest.mark.parametrize("scale", ["unit", "raw"])
def test_ifcas_training_images_are_the_tutorials(scale):
    """A slow loop: crop, flip, brightness, contrast about each channel's mean, standardisation, as TensorFlow does.

    The brightness, which the pipeline leaves out, takes any value without changing the result.
    """
    data = Prepared(federation("ifca", scale=scale).splits["train"])
    drawn = draws(len(data))
    found = data.take(torch.arange(len(data)), drawn).numpy()
    top, left, mirrored, factor = drawn.below(9, 0), drawn.below(9, 1), drawn.below(2, 2), drawn.uniform(3)
    factor = 0.2 + 1.6 * factor.double().numpy()
    assert factor.min() < 0.5 and factor.max() > 1.5
    for i, brightness in enumerate(np.linspace(-63, 63, len(data))):
        image = data.x[data.rows[i]].numpy().astype(np.float64)
        image = image[:, top[i] : top[i] + 24, left[i] : left[i] + 24]
        image = (image[:, :, ::-1] if mirrored[i] else image) + brightness
        means = image.mean(axis=(1, 2), keepdims=True)
        image = (image - means) * factor[i] + means
        np.testing.assert_allclose(found[i], (image - image.mean()) / image.std(), atol=1e-4)


def test_contrast_does_not_cancel_but_brightness_does():
    """Why one is drawn and the other isn't: a channel-wise factor changes how the channels' means compare."""
    x = pictures(4).float() + torch.tensor([0.0, 40, 90]).reshape(3, 1, 1)
    standard = Ifca().finish(x, None)
    assert torch.allclose(Ifca().finish(x + 17, None), standard, atol=1e-4)
    means = x.mean((-2, -1), keepdim=True)
    assert not torch.allclose(Ifca().finish((x - means) * 0.3 + means, None), standard, atol=0.1)


def test_flat_images_stay_finite():
    flat = torch.full((1, 3, 32, 32), 7.0)
    assert (Ifca().finish(flat, None) == 0).all() and (Ifca().finish(flat[..., :24, :24], draws(1)) == 0).all()


# In the engine.


def model() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 3))


def theta(augment: str, **options: Any) -> np.ndarray:
    made = options.pop("made", None) or federation(augment)
    with engine(model, made, **({"rounds": 2, "epochs": 2, "batch_size": 4, "backend": "loop"} | options)) as used:
        state, _ = loop.run(METHODS["fedavg"](), loop.context(used), used)
    return state.theta.numpy()


@pytest.mark.parametrize("augment", slow_but(["crop-flip"], AUGMENTATIONS))
def test_chunks_and_workers_change_no_bit(augment):
    expected = theta(augment, chunk=4)
    for cut in ({"chunk": 1}, {"chunk": 4, "workers": 2}, {"chunk": 1, "workers": 2}):
        np.testing.assert_array_equal(theta(augment, **cut), expected)
    assert not np.array_equal(theta(augment, chunk=4, seed=4), expected)
    stacked = theta(augment, backend="stacked")
    np.testing.assert_allclose(stacked, expected, atol=1e-5)  # the same draws, other rounding
    np.testing.assert_array_equal(theta(augment, backend="stacked", chunk=1), stacked)


def test_augmentation_changes_training_but_no_evaluation():
    plain, flipped = federation("none"), federation("crop-flip")
    assert not np.allclose(theta("", made=plain), theta("", made=flipped))
    np.testing.assert_array_equal(samples_of(plain.splits["train"]), samples_of(flipped.splits["train"]))


def test_draws_differ_between_epochs_rounds_and_clients(monkeypatch):
    """What each step gets: the same picture looks different in another epoch, round or client."""
    seen: list[tuple[list[int], torch.Tensor]] = []
    original = AUGMENTATIONS["crop-flip"].train

    def watched(x: torch.Tensor, drawn: Draws) -> torch.Tensor:
        seen.extend(zip(zip(*(c.tolist() for c in drawn.counters), strict=True), original(x, drawn), strict=True))
        return original(x, drawn)

    monkeypatch.setattr(AUGMENTATIONS["crop-flip"], "train", watched)
    made = federation("crop-flip")
    made.splits["train"].pool.x[:] = made.splits["train"].pool.x[0]  # all pictures are one
    theta("", made=made)
    counters = [key for key, _ in seen]
    real = dict(seen)
    assert len(real) == len({*counters}) and {len(key) for key in counters} == {4}  # client, round, step, sample
    clients_seen, rounds, steps, own = ({key[i] for key in counters} for i in range(4))
    assert clients_seen == set(range(4)) and rounds == {1, 2} and steps == set(range(6)) and own == set(range(9))
    looks = {image.numpy().tobytes() for image in real.values()}
    assert len(looks) > 0.5 * min(162, len(real))  # of 9 x 9 crops and two sides
    for sample in own:  # the same sample of the same client: another look in each of the epochs and rounds, mostly
        views = [image.numpy().tobytes() for key, image in real.items() if key[0] == 0 and key[3] == sample]
        assert len(views) >= 4 and len(set(views)) > 1


# Images that are augmented once, for a distance.


@pytest.mark.parametrize("augment", ["crop-flip", "autoaugment"])
def test_training_images_augmented_once(augment, monkeypatch):
    """Each as a step of round 0 would change it, turned before that; the rest of the federation is left as it was."""
    made = federation(augment, transform="rotate90", mean=[0.5], std=[0.2])
    once, split = augmented_once(made, 7), made.splits["train"]
    data, client = Prepared(split), np.repeat(np.arange(4), 9)
    zeros = torch.zeros(36, dtype=torch.int64)
    drawn = Draws(7, (torch.as_tensor(client), zeros, zeros, torch.arange(36) % 9))
    expected = data.take(torch.arange(36), drawn).numpy()
    np.testing.assert_array_equal(samples_of(once.splits["train"]), expected)
    assert not np.array_equal(expected, samples_of(split))
    np.testing.assert_array_equal(samples_of(once.splits["test"]), samples_of(made.splits["test"]))
    np.testing.assert_array_equal(once.splits["train"].y, split.y)
    assert not np.array_equal(samples_of(augmented_once(made, 8).splits["train"]), expected)
    monkeypatch.setattr(prepared, "AT_ONCE", 5)
    np.testing.assert_array_equal(samples_of(augmented_once(made, 7).splits["train"]), expected)


def test_a_distance_sees_the_images_augmented_once(tmp_path):
    """Losses of the stage `distance` on all data, each loss by hand."""
    made = federation("crop-flip")
    split, n = made.splits["train"], 48
    samples = {"x": split.pool.x, "y": np.arange(n) % 3}
    table = {"sample": np.arange(n), "client": np.repeat(np.arange(4), 12)}
    table |= {"split": np.tile(np.repeat(["train", "test"], [9, 3]), 4), "transform": np.full(n, "none")}
    table |= {"role": np.full(n, "member"), "true_cluster": np.full(n, -1)}
    write_tensors(tmp_path / "samples.safetensors", samples)
    write_table(tmp_path / "partition.parquet", table)
    inputs = {"samples": tmp_path / "samples.safetensors", "partition": tmp_path / "partition.parquet"}
    settings = {"model": {"model": "linear", "options": {}}, "inputs": {"augment": "crop-flip"}, "device": "cpu"}
    settings |= {"precision": "float32", "data": "augmented", "seed": 7}
    work = SimpleNamespace(settings=settings, inputs=inputs, chunk=None, threads=1)
    with common.engine(work, Training()) as used:
        theta = torch.randn(4, used.layout.columns, generator=torch.Generator().manual_seed(0)) / 50
        found = distance.measured(used, theta, np.arange(4), np.arange(4), "augmented", lambda n: None, Unfinished())
        trained, tested = samples_of(augmented_once(made, 7).splits["train"]), samples_of(made.splits["test"])
        for i in range(4):
            x = np.concatenate([trained[9 * i :][:9], tested[3 * i :][:3]])
            y = np.concatenate([split.y[9 * i :][:9], made.splits["test"].y[3 * i :][:3]])
            for j in range(4):
                used.layout.load(used.worker.module, theta[j])
                loss = nn.functional.cross_entropy(used.worker.module(torch.as_tensor(x)), torch.as_tensor(y))
                assert found[i, j] == pytest.approx(loss.item(), rel=1e-5)


def test_crops_of_another_size_are_not_for_a_distance():
    with pytest.raises(UserError, match=r"ifca, whose crops have another size .* use data: all"):
        augmented_once(federation("ifca"), 7)


# Fresh noise.


def noisy(augment: str = "none", **inputs: Any) -> Federation:
    """Two clients without noise and two with."""
    return federation(augment, transform="noise(0.5,3)", **inputs)


def test_quantiles_are_normal():
    table = quantiles().double().numpy()
    assert len(table) == 1 << 16 and (np.diff(table) > 0).all() and (table == -table[::-1]).all()
    assert np.square(table).mean() == pytest.approx(1, abs=1e-6) and table.max() == pytest.approx(4.32, abs=0.01)
    assert (table**4).mean() == pytest.approx(3, abs=0.01)  # kurtosis
    assert stats.kstest(table, "norm").statistic < 2**-17 + 2e-5


def test_fresh_noise_is_normal_and_of_its_own_sample_step_round_and_client():
    drawn = draws(200)
    found = drawn.normal(torch.arange(200), (3, 5, 7)).double()
    assert found.shape == (200, 3, 5, 7) and stats.kstest(found.flatten().numpy(), "norm").pvalue > 1e-3
    places = found.flatten(1).numpy()
    between = np.corrcoef(places)[np.triu_indices(200, 1)]
    assert abs(between.mean()) < 5 / np.sqrt(len(between) * 105) and np.abs(between).max() < 0.6
    within = np.corrcoef(places.T)[np.triu_indices(105, 1)]
    assert abs(within.mean()) < 5 / np.sqrt(len(within) * 200) and np.abs(within).max() < 0.4
    assert torch.equal(drawn.normal(torch.tensor([7, 3]), (3, 5, 7)).double(), found[[7, 3]])  # whatever is beside it
    assert torch.equal(drawn.normal(torch.tensor([7]), (106,))[0, :105].double(), found[7].flatten())
    for i in range(3):
        counters = [c + (k == i) * 1000 for k, c in enumerate(drawn.counters)]
        other = Draws(drawn.seed, tuple(counters)).normal(torch.arange(200), (3, 5, 7)).double()
        assert abs(np.corrcoef(other.flatten(), found.flatten())[0, 1]) < 5 / np.sqrt(found.numel())
    assert not torch.equal(Draws(drawn.seed + 1, drawn.counters).normal(torch.tensor([7]), (105,)), found[7].flatten())


def test_fresh_noise_is_added_in_training_after_normalisation_and_to_noisy_samples_alone():
    fixed, fresh = (Prepared(noisy(mean=[0.4], std=[0.2], noise=n).splits["train"]) for n in (None, "fresh"))
    plain = Prepared(federation("none", mean=[0.4], std=[0.2]).splits["train"])
    places, drawn = torch.arange(len(fresh)), draws(len(fresh))
    half = len(fresh) // 2
    assert torch.equal(fresh.take_all(), fixed.take_all())  # an evaluation has a sample's own
    found = fresh.take(places, drawn)
    assert torch.equal(found[:half], plain.take_all()[:half])
    added = found[half:] - plain.take_all()[half:]
    expected = 0.5 * drawn.normal(places[half:], (3, 32, 32))
    torch.testing.assert_close(added, expected, atol=1e-6, rtol=0)
    own = fixed.take_all()[half:] - plain.take_all()[half:]
    assert abs(np.corrcoef(added.flatten(), own.flatten())[0, 1]) < 5 / np.sqrt(added.numel())
    assert fixed.augmentation is None and fresh.augmentation is not None


@pytest.mark.slow
@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_fresh_noise_has_no_bit_of_chunks_and_workers(augment):
    made = noisy(augment, noise="fresh")
    expected = theta("", made=made, chunk=4)
    for cut in ({"chunk": 1}, {"chunk": 4, "workers": 2}):
        np.testing.assert_array_equal(theta("", made=made, **cut), expected)
    stacked = theta("", made=made, backend="stacked")
    np.testing.assert_allclose(stacked, expected, atol=1e-5)
    np.testing.assert_array_equal(theta("", made=made, backend="stacked", chunk=1), stacked)
    assert not np.allclose(theta("", made=noisy(augment), chunk=4), expected)
    assert not np.array_equal(theta("", made=made, chunk=4, seed=4), expected)


def test_settings_without_the_key_are_those_of_before():
    assert "noise" not in Inputs().model_dump(mode="json")
    assert Inputs(noise="fresh").model_dump(mode="json")["noise"] == "fresh"
