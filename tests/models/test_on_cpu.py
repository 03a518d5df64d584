"""Classes of modules for CPUs: PyTorch's own values and gradients, where texts end early and where responses tie."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from clusterfl.engine import products
from clusterfl.engine.products import tuned
from clusterfl.models import MODELS
from clusterfl.models.ifca import ResponseNorm, ResponseNormOnCPU
from clusterfl.streams import torch_stream


def both(module, x, weights):
    """Return outputs and gradients by a module and by its form for a CPU, of a weighted sum of outputs."""
    found = []
    for one in (module, tuned(module, x[:1])):
        one = one.train()
        with torch_stream(5, "dropout"):
            output = one(x)
        (output * weights).sum().backward()
        found.append([output.detach(), *(p.grad for p in one.parameters())])
    assert [type(part) for part in one.modules()] != [type(part) for part in module.modules()]
    return found


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("ends", [[40, 3, 17], [1, 1, 1], [0, 0, 0], [39, 40, 2], [36, 5, 0]])
def test_textcnn_and_its_form_for_a_cpu(dropout, ends):
    """Texts of these lengths among 40 words: full ones, empty ones, a batch that ends where all have padding."""
    with torch_stream(0, "model"):
        module = MODELS["textcnn"]((40,), 4, words=30, size=8, filters=11, dropout=dropout)
        x = torch.randint(1, 30, (3, 40))
    for text, end in zip(x, ends, strict=True):
        text[end:] = 0
    (mine, *expected), (theirs, *found) = both(module, x, torch.randn(3, 4, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-6)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_first_of_equal_windows_has_the_gradient():
    """Two words with vectors (1), text 1 2 1 2: responses 1, 1, 1, 1, of which word 1 alone is trained.

    PyTorch's `amax` shares the gradient among the four; the sum over words is the same.
    """
    module = MODELS["textcnn"]((4,), 1, words=3, size=1, filters=1, widths=[1], dropout=0.0)
    with torch.no_grad():
        module.embedding.weight.copy_(torch.tensor([[0.0], [1.0], [1.0]]))
        for layer in (module.convolutions[0], module.output):
            layer.weight.fill_(1.0)
            layer.bias.zero_()
    plain, fast = both(module, torch.tensor([[1, 2, 1, 2]]), torch.ones(1, 1))
    assert plain[0].item() == fast[0].item() == 1
    assert plain[1].flatten().tolist() == [0, 0.5, 0.5] and fast[1].flatten().tolist() == [0, 1, 0]


def test_scores_of_a_text_depend_on_no_other():
    """Where nothing is trained, all of a text is computed, however short its neighbours are."""
    module = MODELS["textcnn"]((40,), 4, words=30, size=8, filters=11)
    x = torch.randint(1, 30, (4, 40), generator=torch.Generator().manual_seed(0))
    x[1:, 5:] = 0
    made = tuned(module, x[:1]).eval()
    with torch.inference_mode():
        together = made(x)
        for i in range(4):
            torch.testing.assert_close(made(x[i : i + 1]), together[i : i + 1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(module.eval()(x), together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("size", "beta"), [(9, 0.75), (4, 0.75), (1, 0.75), (5, 0.5)])
def test_response_normalisation_is_pytorchs(size, beta):
    """Values and gradients, also of windows of an even size, which reach further down than up."""
    draw = torch.Generator().manual_seed(size)
    x = 3 * torch.randn(2, 12, 5, 4, generator=draw)
    flow, found = torch.randn(x.shape, generator=draw), []
    for kind in (nn.LocalResponseNorm, ResponseNorm, ResponseNormOnCPU):
        given = x.clone().requires_grad_()
        output = kind(size, alpha=0.3, beta=beta, k=2.0)(given)
        (output * flow).sum().backward()
        found.append((output.detach(), given.grad))
    for ours in found[1:]:
        for one, other in zip(ours, found[0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_networks_have_their_forms_for_a_cpu():
    """The module itself stays as it is; its copy computes with channels last."""
    for name, shape, kind in (("textcnn", (40,), "TextCNN"), ("ifca-cifar-cnn", (3, 24, 24), "ResponseNorm")):
        module = MODELS[name](shape, 4)
        made = tuned(module, torch.zeros(1, *shape, dtype=torch.int64 if name == "textcnn" else torch.float32))
        kinds = [{type(part).__name__ for part in one.modules()} for one in (module, made)]
        assert kind in kinds[0] and kind + "OnCPU" not in kinds[0]
        assert kind + "OnCPU" in kinds[1] and kind not in kinds[1]
        assert list(copy.deepcopy(made).state_dict()) == list(module.state_dict())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [((2, 2), 3, 1, 1), ((4, 4), 3, 2, 1), ((1, 1), 3, 1, 1), ((4, 3), (3, 2), (2, 1), (0, 0)), ((4, 4), 1, 2, 0)],
)
def test_a_convolution_of_few_pixels_is_pytorchs(monkeypatch, size, kernel, stride, padding, bias):
    """As a product: values, and gradients of weights, biases and inputs; a second layer asks for the last ones."""
    monkeypatch.setattr(products, "LARGE", 1)
    draw = torch.Generator().manual_seed(4)
    with torch_stream(0, "model"):
        layers = nn.Conv2d(5, 6, 1), nn.Conv2d(6, 7, kernel, stride, padding, bias=bias)
    x = torch.randn(3, 5, *size, generator=draw)
    module = nn.Sequential(*layers)
    (mine, *expected), (theirs, *found) = both(module, x, torch.randn(module(x).shape, generator=draw))
    assert [type(part) for part in tuned(module, x[:1])] == [products.Conv2d] * 2
    torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-6)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_convolution_that_is_no_product_keeps_pytorchs_bits(monkeypatch):
    """To more pixels than `FEW`, of few weights; and groups, dilation, padding by words or by other than zeros."""
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(4))
    assert type(tuned(nn.Sequential(nn.Conv2d(4, 4, 3)), x[:1])[0]) is nn.Conv2d
    monkeypatch.setattr(products, "LARGE", 1)
    made = tuned(nn.Sequential(nn.Conv2d(4, 4, 3)), x[:1])
    assert type(made[0]) is products.Conv2d
    torch.testing.assert_close(made(x), nn.Conv2d.forward(made[0], x), rtol=0, atol=0)
    for other in ({"groups": 2}, {"dilation": 2}, {"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}):
        assert type(tuned(nn.Sequential(nn.Conv2d(4, 4, 3, **other)), x[:1])[0]) is nn.Conv2d


def test_resnets_last_layers_are_products_on_a_cpu():
    """Of 64 x 64 pixels 2 x 2 are left, of its 20 convolutions four have a million weights; their steps are PyTorch's.

    Each on what it is given in the network. Gradients of the whole differ by more than rounding where a kernel's last
    bit moves a number over the kink of a ReLU: by .003 of their length on a processor with AVX2, channels last alone.
    """
    with torch_stream(0, "model"):
        module = MODELS["resnet"]((3, 64, 64), 7).train()
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    made, given = tuned(module, x[:1]), []
    parts = [part for part in made.modules() if type(part) is products.Conv2d]
    for part in parts:
        part.register_forward_pre_hook(lambda part, inputs: given.append(inputs[0].detach()))
    torch.testing.assert_close(made(x), module(x), rtol=1e-3, atol=1e-4)
    assert len(parts) == len(given) == 4
    for part, seen in zip(parts, given, strict=True):
        found = []
        for kind in (products.Conv2d, nn.Conv2d):
            here, inputs = copy.deepcopy(part), seen.clone().requires_grad_()
            here.__class__ = kind
            output = kind.forward(here, inputs)
            output.backward(torch.randn(output.shape, generator=torch.Generator().manual_seed(2)))
            found.append((output.detach(), inputs.grad, here.weight.grad))
        for one, other in zip(*found, strict=True):
            assert (one - other).norm() <= 1e-5 * other.norm()
            assert other.norm() > 0
