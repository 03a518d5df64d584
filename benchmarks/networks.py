"""A round of every network of the papers, with the optimiser and the batch of the study that has it."""

from __future__ import annotations

from functools import partial

from . import made
from .loop import Local
from .works import Round, Work

BAR = 0.5  # two processes that do what the loop does
CIFAR = (3, 32, 32)
ADAM = Local("adam", 0.001, batch_size=100, epochs=1)  # CLoVE
SGD = Local(batch_size=20, epochs=1)  # LCFL, RR-Cluster
LARGER = Local(batch_size=64, epochs=1)  # FedGWC
TEXTS = partial(made.texts, length=made.LENGTH, words=made.WORDS, classes=made.TOPICS)
LINES = partial(made.texts, length=made.LINE, words=made.CHARACTERS, classes=made.CHARACTERS)
SMALL = partial(made.images, shape=CIFAR)


def _round(model: str, clients: int, samples: int, data: made.Data, local: Local, what: str) -> Round:
    words = (
        f"one FedAvg round, batch {local.batch_size}, 1 epoch, {local.optimizer}, {clients} clients x {samples} {what}"
    )
    name = f"network-{model}"
    return Round(name, f"{words}: {model}", 15, BAR, model, clients, clients, data, samples, local=local)


NETWORKS: list[Work] = [
    _round("clove-cnn", 24, 500, made.images, ADAM, "images"),
    _round("clove-cifar-cnn", 4, 200, SMALL, ADAM, "images of 32 x 32"),
    _round("clove-autoencoder", 16, 500, partial(made.images, target="input"), ADAM, "images, their own targets"),
    _round("clove-cifar-autoencoder", 8, 300, partial(made.images, shape=CIFAR, target="input"), ADAM,
           "images of 32 x 32, their own targets"),
    _round("textcnn", 8, 100, TEXTS, ADAM, "texts of 200 words"),
    _round("lcfl-cifar-cnn", 16, 100, SMALL, SGD, "images of 32 x 32"),
    _round("ifca-cifar-cnn", 8, 100, partial(made.images, shape=(3, 24, 24)), Local(batch_size=50, epochs=1),
           "images of 24 x 24"),
    _round("leaf-cnn", 16, 100, partial(made.images, classes=62), SGD, "images"),
    _round("flexcfl-mlp", 24, 500, made.images, SGD, "images"),
    _round("flexcfl-cnn", 8, 100, made.images, SGD, "images"),
    _round("flexcfl-mnist-cnn", 8, 200, made.images, SGD, "images"),
    _round("rr-cnn", 24, 100, made.images, SGD, "images"),
    _round("char-lstm", 8, 100, LINES, SGD, "lines of 80 characters"),
    _round("lenet5", 48, 128, partial(made.images, classes=47), LARGER, "images"),
    _round("fedgwc-cnn", 8, 128, partial(made.images, shape=CIFAR, classes=100), LARGER, "images of 32 x 32"),
    _round("resnet", 4, 64, partial(made.images, shape=(3, 64, 64), classes=100), Local(batch_size=16, epochs=1),
           "images of 64 x 64"),
    _round("mobilenet-v2", 4, 64, partial(made.images, shape=(3, 64, 64), classes=100),
           Local(batch_size=16, epochs=1), "images of 64 x 64"),
]  # fmt: skip
