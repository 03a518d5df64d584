"""Networks: their numbers of parameters, by hand and as printed, and their shapes."""

from __future__ import annotations

import math
import re

import pytest
import torch

from clusterfl.data.inputs import Inputs
from clusterfl.errors import UserError
from clusterfl.models import MODELS
from clusterfl.pipeline.stages.common import _model
from clusterfl.streams import torch_stream

COUNTS = [
    # LCFL: 417,482 and 610,142 in its released configuration
    ("lcfl-cnn", (1, 28, 28), 10, {}, (25 * 16 + 16) + (16 * 25 * 32 + 32) + (1568 * 256 + 256) + 2570, 417_482),
    ("lcfl-cifar-cnn", (3, 32, 32), 10, {}, (75 * 32 + 32) + (800 * 84 + 84) + (2100 * 256 + 256) + 2570, 610_142),
    # IFCA
    ("mlp", (1, 28, 28), 10, {}, 784 * 200 + 200 + 200 * 10 + 10, 159_010),
    (
        "ifca-cifar-cnn", (3, 24, 24), 10, {},
        (75 * 64 + 64) + (1600 * 64 + 64) + (2304 * 384 + 384) + (384 * 192 + 192) + 1930, 1_068_298,
    ),
    ("leaf-cnn", (1, 28, 28), 62, {}, 832 + 51_264 + (3136 * 2048 + 2048) + (2048 * 62 + 62), 6_603_710),
    # CLoVE: 5,142 by its layers' sizes; 62 classes for FEMNIST
    ("clove-cnn", (1, 28, 28), 10, {}, 156 + 2416 + 2570, 5_142),
    ("clove-cnn", (1, 28, 28), 62, {}, 156 + 2416 + 256 * 62 + 62, 18_506),
    (
        "clove-cifar-cnn", (3, 32, 32), 10, {},
        (27 * 64 + 64) + (576 * 128 + 128) + (1152 * 256 + 256) + (2304 * 512 + 512) + 2 * 960
        + (2048 * 1024 + 1024) + (1024 * 512 + 512) + 5130, 4_181_002,
    ),
    (
        "mlp", (5000,), 2, {"hidden": [1000, 500, 100]},
        (5000 * 1000 + 1000) + (1000 * 500 + 500) + (500 * 100 + 100) + 202, 5_551_802,
    ),
    ("textcnn", (200,), 4, {}, 32000 * 100 + 100 * 100 * (3 + 4 + 5) + 300 + 300 * 4 + 4, 3_321_504),
    ("textcnn", (200,), 4, {"units": 6}, 32000 * 100 + 120_300 + 300 * 6 + 6, 3_322_106),
    (
        "clove-autoencoder", (1, 28, 28), 784, {},
        2 * (784 * 784 + 784) + (784 * 392 + 392) + (392 * 196 + 196) + (196 * 392 + 392) + (392 * 784 + 784),
        2_000_964,
    ),
    (
        "clove-cifar-autoencoder", (3, 32, 32), 3072, {},
        (27 * 32 + 32) + (288 * 64 + 64) + (576 * 128 + 128) + (2048 * 128 + 128) + (128 * 2048 + 2048)
        + (1152 * 64 + 64) + (576 * 32 + 32) + (288 * 3 + 3), 712_835,
    ),
    # FedGWC: 815,332 by its released layers; MobileNetV2 and ResNet as torchvision's documentation counts them
    (
        "fedgwc-cnn", (3, 32, 32), 100, {},
        (75 * 64 + 64) + (1600 * 64 + 64) + (1600 * 384 + 384) + (384 * 192 + 192) + 19_300, 815_332,
    ),
    ("lenet5", (1, 28, 28), 47, {}, 156 + 2416 + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 47 + 47), 64_851),
    ("mobilenet-v2", (3, 64, 64), 1000, {}, 3_504_872, 3_504_872),
    ("resnet", (3, 32, 32), 1000, {}, 11_689_512, 11_689_512),
    ("resnet", (3, 32, 32), 1000, {"depth": 50}, 25_557_032, 25_557_032),
    # FlexCFL, by its released layers
    ("flexcfl-mlp", (1, 28, 28), 10, {}, (784 * 128 + 128) + (128 * 10 + 10), 101_770),
    ("flexcfl-cnn", (1, 28, 28), 10, {}, 832 + 51_264 + (7 * 7 * 64 * 1024 + 1024) + 10_250, 3_274_634),
    ("flexcfl-mnist-cnn", (1, 28, 28), 10, {}, (32 * 9 + 32) + (64 * 32 * 9 + 64) + (7 * 7 * 64 * 10 + 10), 50_186),
    # RR-Cluster: guesses, as PFLlib's and LEAF's networks; four gates, and two biases for each
    ("rr-cnn", (1, 28, 28), 10, {}, 832 + 51_264 + (1024 * 512 + 512) + 5130, 582_026),
    (
        "char-lstm", (80,), 80, {},
        80 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 256 * 80 + 80, 819_920,
    ),
    ("linear", (1,), 1, {}, 2, 2),  # RR-Cluster's slope and intercept
    ("linear", (20,), 1, {}, 21, 21),
    ("linear", (20,), 1, {"bias": False}, 20, 20),  # CLoVE's regression
    ("mlp", (1, 8, 8), 10, {"hidden": [64]}, 4810, 4_810),  # the default study's
]  # fmt: skip

TEXT = ("textcnn", "char-lstm")  # networks that take whole numbers


@pytest.mark.parametrize("name, shape, outputs, options, by_hand, count", COUNTS)
def test_parameters(name, shape, outputs, options, by_hand, count):
    model = MODELS[name](shape, outputs, **options)
    assert sum(p.numel() for p in model.parameters()) == by_hand == count
    whole = torch.zeros(3, *shape, dtype=torch.int64 if name in TEXT else torch.float32)
    expected = shape if "autoencoder" in name else (options.get("units", outputs),)
    assert model(whole).shape == (3, *expected)


def test_every_network_is_counted():
    assert {row[0] for row in COUNTS} == set(MODELS)


@pytest.mark.parametrize("name, penalised", [("flexcfl-mlp", 2), ("flexcfl-cnn", 0), ("flexcfl-mnist-cnn", 0)])
def test_flexcfls_first_weights_are_kerass_and_its_matrices_alone_have_a_penalty(name, penalised):
    """Glorot's uniform: up to sqrt(6 / (inputs + outputs)), a filter's area counted with both; biases are zeros."""
    model = MODELS[name]((1, 28, 28), 10)
    for parameter in (own.detach() for own in model.parameters()):
        if parameter.ndim == 1:
            assert not parameter.any()
            continue
        bound = math.sqrt(6 / ((parameter.shape[0] + parameter.shape[1]) * parameter[0, 0].numel()))
        assert 0.95 * bound < parameter.abs().max() <= bound * (1 + 1e-6)
        assert float(parameter.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    decays = getattr(model, "weight_decays", {})
    assert decays == {name: 0.002 for name, p in model.named_parameters() if penalised and p.ndim == 2}


def test_autoencoders_keep_to_their_outputs_range():
    x = torch.rand(2, 3, 32, 32) * 10
    assert MODELS["clove-autoencoder"]((3, 32, 32), 3072)(x).min() >= 0
    assert MODELS["clove-cifar-autoencoder"]((3, 32, 32), 3072)(x).abs().max() <= 1


def test_a_bottleneck_is_linear():
    """Codes may be negative: of n = 4, with weights 1 and biases 0, the code of (1, 1, 1, 1) is -4 x 4 x 2 = -32."""
    model = MODELS["clove-autoencoder"]((4,), 4)
    linear = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    assert [layer.out_features for layer in linear] == [4, 2, 1, 2, 4, 4]
    with torch.no_grad():
        for layer in linear:
            layer.weight.fill_(1 if layer is not linear[2] else -1)
            layer.bias.zero_()
        linear[3].weight.fill_(-1)  # (32, 32), which a ReLU keeps; had the code been cut at 0, all that follows were 0
        linear[5].weight.fill_(0.001)
    assert model(torch.ones(1, 4)).tolist()[0] == pytest.approx([1 / (1 + math.exp(-0.256))] * 4)


def test_pooling_at_even_sizes_pads_behind():
    """TensorFlow's SAME: of 24 columns, windows start at 0, 2, ..., 22, the last one reaching over the edge."""
    pad, pool = list(MODELS["ifca-cifar-cnn"]((3, 24, 24), 10).features)[2:4]
    x = torch.arange(1.0, 25).repeat(24, 1)[None, None]
    assert pool(pad(x))[0, 0, 0].tolist() == [*range(3, 24, 2), 24]


def test_textcnn_takes_the_largest_response_by_hand():
    """Words (1, 0) and (0, 2), one filter of width 1 that adds up a vector: responses 1, 2, 1 (+ .5); 2.5 counts."""
    model = MODELS["textcnn"]((3,), 1, words=2, size=2, filters=1, widths=[1], dropout=0.0)
    with torch.no_grad():
        model.embedding.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        for layer, weight in ((model.convolutions[0], 1.0), (model.output, 3.0)):
            layer.weight.fill_(weight)
            layer.bias.fill_(0.5)
    assert model(torch.tensor([[0, 1, 0]])).item() == 3 * 2.5 + 0.5


def test_response_normalisation_is_tensorflows():
    """x / (1 + .001 / 9 x the sum of squares over 4 channels on either side) ** .75 (tf.nn.lrn)."""
    normalise = next(m for m in MODELS["ifca-cifar-cnn"]((3, 24, 24), 10).features if "Norm" in type(m).__name__)
    x = 20 * torch.randn(1, 64, 1, 1, generator=torch.Generator().manual_seed(0))
    squares = x.flatten().double() ** 2
    near = torch.stack([squares[max(c - 4, 0) : c + 5].sum() for c in range(64)])
    expected = x.flatten().double() * (1 + 0.001 / 9 * near) ** -0.75
    torch.testing.assert_close(normalise(x).flatten().double(), expected, rtol=1e-5, atol=0)


def test_initial_values_of_the_tutorial_network():
    """A normal distribution cut at two standard deviations has .8796 of its spread."""
    model = MODELS["ifca-cifar-cnn"]((3, 24, 24), 10)
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)]
    for layer, spread, bias in zip(layers, [0.05, 0.05, 0.04, 0.04, 1 / 192], [0, 0.1, 0.1, 0.1, 0], strict=True):
        weight = layer.weight.detach()
        assert weight.abs().max() <= 2 * spread
        assert weight.std().item() == pytest.approx(0.8796 * spread, rel=5 / math.sqrt(2 * weight.numel()))
        assert (layer.bias == bias).all()


def test_padding_is_never_trained():
    with torch_stream(0, "model"):
        model = MODELS["textcnn"]((6,), 2, words=5, size=3, filters=2, dropout=0.0)
    model(torch.tensor([[1, 2, 0, 0, 0, 0], [4, 3, 2, 1, 0, 0]])).sum().backward()
    assert (model.embedding.weight[0] == 0).all() and (model.embedding.weight.grad[0] == 0).all()
    assert (model.embedding.weight.grad[1] != 0).any()


@pytest.mark.parametrize(
    "name, shape, outputs, says",
    [
        ("clove-cnn", (20,), 10, "images [channels, height, width] of at least 16 x 16"),
        ("clove-cnn", (1, 15, 28), 10, "at least 16 x 16"),
        ("lcfl-cnn", (1, 3, 3), 10, "at least 4 x 4"),
        ("lcfl-cifar-cnn", (64,), 10, "take mlp or linear"),
        ("clove-cifar-cnn", (3, 8, 8), 10, "at least 16 x 16"),
        ("ifca-cifar-cnn", (784,), 10, "at least 4 x 4"),
        ("textcnn", (1, 28, 28), 4, "texts as whole numbers"),
        ("textcnn", (4,), 4, "widest filter sees 5 words"),
        ("clove-autoencoder", (1, 28, 28), 10, "all 784 numbers of a sample, not 10; set inputs: {target: input}"),
        ("clove-autoencoder", (3,), 3, "at least 4 numbers"),
        ("clove-cifar-autoencoder", (1, 28, 28), 784, "multiples of 8"),
        ("clove-cifar-autoencoder", (3, 32, 32), 10, "not 10"),
    ],
)
def test_a_network_for_other_samples_is_refused(name, shape, outputs, says):
    with pytest.raises(UserError, match=f"model '{name}' can't be made for samples of shape .*{re.escape(says)}"):
        _model({"model": name, "options": {}}, shape, outputs)


@pytest.mark.parametrize("name, shape", [("clove-cnn", (1, 16, 16)), ("lcfl-cnn", (1, 4, 4)),
                                         ("clove-cifar-cnn", (3, 16, 16)), ("ifca-cifar-cnn", (3, 4, 4)),
                                         ("textcnn", (5,)), ("clove-autoencoder", (4,)),
                                         ("clove-cifar-autoencoder", (1, 8, 8))])  # fmt: skip
def test_the_smallest_samples_are_taken(name, shape):
    outputs = math.prod(shape) if "autoencoder" in name else 3
    x = torch.zeros(2, *shape, dtype=torch.int64 if name in TEXT else torch.float32)
    assert MODELS[name](shape, outputs)(x).numel() == 2 * outputs


def test_input_as_target_is_a_setting_of_the_inputs():
    assert Inputs().target == "label" and Inputs(target="input").target == "input"
