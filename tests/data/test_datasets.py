"""Datasets: the table is complete, and every reader reads its published format, rightly and with care.

The small files are made here in the published formats. The slow tests on genuine files run where the environment
variable CLUSTERFL_MIRROR names a folder that has them.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from clusterfl.cli import main
from clusterfl.data import DATASETS, catalogue, fetch
from clusterfl.data.catalogue import content, rows
from clusterfl.data.readers import cifar
from clusterfl.data.readers.text import LETTERS
from clusterfl.data.samples import Samples
from clusterfl.errors import UserError
from clusterfl.pipeline.jobs import Plan
from clusterfl.pipeline.stages import download
from clusterfl.pipeline.stages.download import obtain
from clusterfl.storage.store import read_json, read_tensors

# The table.


def test_every_dataset_has_a_row_and_every_row_a_reader():
    own = {"table", "images", "arrays"}  # readers of the user's own data
    assert set(rows()) == set(DATASETS) - own
    for name in rows():
        DATASETS.options(name)()  # every option has a default
        assert callable(DATASETS[name])


@pytest.mark.parametrize("name", rows())
def test_rows_are_complete(name):
    row = rows()[name]
    assert row.title and row.about.endswith(".") and row.licence and row.citation
    if row.stand_in_for:
        assert rows()[row.stand_in_for].stand_in_for is None
        assert row.title != rows()[row.stand_in_for].title
    for file in (file for files in row.sources for file in files):
        assert not Path(file.path).is_absolute() and ".." not in Path(file.path).parts
        assert file.packed_md5 is None or file.checksum


@pytest.mark.parametrize(
    "change, words",
    [
        ({"licens": "MIT"}, "mnist.licens: Extra inputs"),
        ({"classes": 9}, "10 names for 9 classes"),
        ({"content": "abc"}, "mnist.content: String should match"),
        ({"sources": [[{"path": "x"}]]}, "`get` doesn't say how"),
    ],
)
def test_a_wrong_row_is_reported(tmp_path, monkeypatch, change, words):
    table = yaml.safe_load(catalogue.TABLE.read_text(encoding="utf-8"))
    table["mnist"] |= {"names": list("abcdefghij")} | change
    monkeypatch.setattr(catalogue, "TABLE", tmp_path / "table.yaml")
    catalogue.TABLE.write_text(yaml.safe_dump(table))
    with pytest.raises(UserError, match=words):
        rows.__wrapped__()


# The genuine data.

GENERATED = [name for name, row in rows().items() if row.content and not row.sources]
FETCHED = [name for name, row in rows().items() if row.content and row.sources]


def fits_row(name: str, samples: Samples) -> None:
    row = rows()[name]
    assert content(samples) == row.content
    assert samples.x.shape[1:] == row.shape and samples.x.nbytes + samples.y.nbytes == row.bytes
    tests = 0 if samples.test is None else int(samples.test.sum())
    assert (len(samples.y) - tests, tests) == (row.samples.train, row.samples.test)
    if row.classes is None:
        assert samples.y.dtype == np.float32
    else:
        assert samples.y.dtype == np.int64 and samples.y.min() >= 0 and samples.y.max() < row.classes


@pytest.mark.parametrize("name", GENERATED)
def test_data_that_need_no_files(name, tmp_path):
    fits_row(name, obtain(name, tmp_path, {})[0])


@pytest.fixture
def mirror() -> Path:
    """The folder of genuine files."""
    place = os.environ.get("CLUSTERFL_MIRROR", "")
    if not place or not Path(place).is_dir():
        pytest.skip("CLUSTERFL_MIRROR names no folder of genuine files")
    return Path(place)


@pytest.mark.slow
@pytest.mark.parametrize("name", FETCHED)
def test_genuine_data(name, mirror, tmp_path):
    if not any(
        all(any((mirror / place).exists() for place in file.mirror) for file in files) for files in rows()[name].sources
    ):
        pytest.skip(f"{mirror} has no {name}")
    if name == "cifar100" and (mirror / "cifar-100").is_dir():
        pytest.importorskip("pillow_jxl")
    fits_row(name, obtain(name, tmp_path, {})[0])


# MNIST's format.


def idx(array: np.ndarray) -> bytes:
    """Bytes in MNIST's format: a magic number that tells type and dimensions, the sizes, the values."""
    return struct.pack(f">{1 + array.ndim}i", 0x800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def mnist_files(folder: Path, pack=bytes, suffix: str = "") -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (7, 28, 28))
    labels = np.arange(7)
    for part, stop in (("train", 5), ("t10k", 2)):
        (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(images[-stop:])))
        (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels[-stop:])))
    return images, labels


@pytest.mark.parametrize("name, inner", [("mnist", "MNIST"), ("fashionmnist", "FashionMNIST")])
def test_mnists_format(tmp_path, name, inner):
    images, labels = mnist_files(tmp_path / inner / "raw")
    samples = DATASETS[name](tmp_path)
    assert samples.x.dtype == np.uint8 and samples.x.shape == (7, 1, 28, 28)
    np.testing.assert_array_equal(samples.x[:, 0], np.concatenate([images[-5:], images[-2:]]))
    np.testing.assert_array_equal(samples.y, np.concatenate([labels[-5:], labels[-2:]]))
    assert samples.test.tolist() == [False] * 5 + [True] * 2


def test_damaged_files_in_mnists_format_are_reported(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    mnist_files(raw)
    whole = (raw / "train-images-idx3-ubyte").read_bytes()
    (raw / "train-images-idx3-ubyte").write_bytes(whole[:-1])
    with pytest.raises(UserError, match="train-images-idx3-ubyte isn't whole"):
        DATASETS["mnist"](tmp_path)
    (raw / "train-images-idx3-ubyte").write_bytes(idx(np.arange(5)))
    with pytest.raises(UserError, match=r"holds uint8 \[5\], where 3 dimensions"):
        DATASETS["mnist"](tmp_path)
    (raw / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((4, 28, 28))))
    with pytest.raises(UserError, match="4 images and 5 labels"):
        DATASETS["mnist"](tmp_path)
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="has no t10k-labels-idx1-ubyte"):
        DATASETS["mnist"](tmp_path)


def emnist_archive(path: Path, name: str, labels: np.ndarray) -> np.ndarray:
    """Write the publisher's archive with one set in it: images column by column, each file packed."""
    upright = np.random.default_rng(0).integers(0, 256, (len(labels), 28, 28))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../emnist-other-train-images-idx3-ubyte.gz", b"not asked for")
        for part, rows_ in (("train", slice(None, -1)), ("test", slice(-1, None))):
            archive.writestr(
                f"gzip/emnist-{name}-{part}-images-idx3-ubyte.gz", gzip.compress(idx(upright[rows_].swapaxes(1, 2)))
            )
            archive.writestr(f"gzip/emnist-{name}-{part}-labels-idx1-ubyte.gz", gzip.compress(idx(labels[rows_])))
    return upright


@pytest.mark.parametrize("name, first", [("letters", 1), ("digits", 0), ("balanced", 0), ("byclass", 0)])
def test_emnist_is_put_upright_and_counts_from_zero(tmp_path, name, first):
    upright = emnist_archive(tmp_path / "gzip.zip", name, np.arange(4) + first)
    samples = DATASETS[f"emnist-{name}"](tmp_path)
    np.testing.assert_array_equal(samples.x[:, 0], upright)
    assert samples.y.tolist() == [0, 1, 2, 3] and samples.test.tolist() == [False] * 3 + [True]


def test_letters_a_to_j_come_out_of_emnist_black_on_white(tmp_path):
    upright = emnist_archive(tmp_path / "gzip.zip", "byclass", np.array([35, 36, 45, 46]))
    samples = DATASETS["nist-letters-emnist"](tmp_path)
    assert set(samples.y.tolist()) == {0, 9}
    np.testing.assert_array_equal(samples.x[:, 0], 255 - upright[[1, 2]])


def test_damaged_emnist_is_reported(tmp_path):
    emnist_archive(tmp_path / "gzip.zip", "digits", np.arange(4))
    with pytest.raises(UserError, match=r"gzip.zip has no emnist-letters-train"):
        DATASETS["emnist-letters"](tmp_path)
    (tmp_path / "gzip.zip").write_bytes((tmp_path / "gzip.zip").read_bytes()[:-30])
    with pytest.raises(UserError, match=r"gzip.zip is damaged"):
        DATASETS["emnist-digits"](tmp_path)


# CIFAR's format.


def cifar_batches(folder: Path, names: list[str], labels: list[str], protocol: int = 2) -> list[dict]:
    """Write pickled batches of three images, as Python 2 or 3 writes them."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    batches = []
    for name in names:
        batch = {"data": rng.integers(0, 256, (3, 3072), dtype=np.uint8), "batch_label": name, "filenames": ["a"] * 3}
        batch |= {key: rng.integers(0, 10, 3).tolist() for key in labels}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
        batches.append(batch)
    return batches


def archived(folder: Path, inner: str, archive: str) -> None:
    with tarfile.open(folder / archive, "w:gz") as tar:
        tar.add(folder / inner, inner)


TEN = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]


@pytest.mark.parametrize("protocol", [2, 5])
def test_cifar10_from_its_files_or_its_archive(tmp_path, protocol):
    batches = cifar_batches(tmp_path / "cifar-10-batches-py", TEN, ["labels"], protocol)
    samples = DATASETS["cifar10"](tmp_path)
    assert samples.x.shape == (18, 3, 32, 32) and samples.x.dtype == np.uint8
    np.testing.assert_array_equal(samples.x[3, 2, 1, 0], batches[1]["data"][0, 2 * 1024 + 32])
    assert samples.y.tolist() == [label for batch in batches for label in batch["labels"]]
    assert samples.test.tolist() == [False] * 15 + [True] * 3
    archived(tmp_path, "cifar-10-batches-py", "cifar-10-python.tar.gz")
    for path in (tmp_path / "cifar-10-batches-py").iterdir():
        path.unlink()
    assert content(DATASETS["cifar10"](tmp_path)) == content(samples)


def test_cifar100_has_its_coarse_labels_as_groups(tmp_path):
    batches = cifar_batches(tmp_path / "cifar-100-python", ["train", "test"], ["fine_labels", "coarse_labels"])
    samples = DATASETS["cifar100"](tmp_path)
    assert samples.y.tolist() == batches[0]["fine_labels"] + batches[1]["fine_labels"]
    assert samples.group.tolist() == batches[0]["coarse_labels"] + batches[1]["coarse_labels"]
    assert samples.test.tolist() == [False] * 3 + [True] * 3


class Malice:
    def __reduce__(self):
        return os.system, ("touch harm",)


def test_a_malicious_pickle_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cifar_batches(tmp_path / "cifar-10-batches-py", TEN, ["labels"])
    (tmp_path / "cifar-10-batches-py/data_batch_3").write_bytes(pickle.dumps({"data": Malice()}))
    with pytest.raises(UserError, match=r"data_batch_3 asks for posix.system, which no image file needs"):
        DATASETS["cifar10"](tmp_path)
    archived(tmp_path, "cifar-10-batches-py", "cifar-10-python.tar.gz")
    with pytest.raises(UserError, match=r"cifar-10-python.tar.gz: cifar-10-batches-py/data_batch_3 asks for posix"):
        DATASETS["cifar10"](tmp_path)
    assert not (tmp_path / "harm").exists()


def test_damaged_cifar_is_reported(tmp_path):
    inner = tmp_path / "cifar-10-batches-py"
    cifar_batches(inner, TEN, ["labels"])
    whole = (inner / "test_batch").read_bytes()
    (inner / "test_batch").write_bytes(whole[:100])
    with pytest.raises(UserError, match=r"test_batch can't be read"):
        DATASETS["cifar10"](tmp_path)
    (inner / "test_batch").write_bytes(pickle.dumps({"data": np.zeros((3, 5))}))
    with pytest.raises(UserError, match="holds no images of 3,072 bytes"):
        DATASETS["cifar10"](tmp_path)
    (inner / "test_batch").unlink()
    archived(tmp_path, "cifar-10-batches-py", "cifar-10-python.tar.gz")
    with pytest.raises(UserError, match="has no cifar-10-batches-py/test_batch"):
        DATASETS["cifar10"](tmp_path)
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"tar.gz can't be read"):
        DATASETS["cifar10"](tmp_path)


@pytest.mark.slow
def test_cifar100_from_mosaics(tmp_path, monkeypatch):
    """The 11th mosaic comes after the 10th, and an image's place in its mosaic is row by row."""
    folder = tmp_path / "cifar-100"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (5000, 32, 32, 3), dtype=np.uint8)
    mosaic = np.vstack([np.hstack(list(images[row * 50 : row * 50 + 50])) for row in range(100)])
    for part, count in (("train", 11), ("test", 1)):
        for number in range(count):
            (folder / f"{part}-{number}.jxl").touch()
        labels = np.repeat(np.arange(count), 5000)
        np.savez(folder / f"{part}-labels.npz", fine=labels, coarse=labels // 5)
    shifts = {f"train-{n}.jxl": n for n in range(11)} | {"test-0.jxl": 99}
    monkeypatch.setattr(cifar, "_picture", lambda path: mosaic + np.uint8(shifts[path.name]))
    samples = DATASETS["cifar100"](tmp_path)
    np.testing.assert_array_equal(samples.x[:5000].transpose(0, 2, 3, 1), images)
    np.testing.assert_array_equal(samples.x[50000:55000], samples.x[:5000] + np.uint8(10))
    np.testing.assert_array_equal(samples.x[55000:], samples.x[:5000] + np.uint8(99))
    assert samples.y[54999] == 10 and samples.group[54999] == 2 and samples.test.sum() == 5000


def test_mosaics_without_a_decoder_are_reported(tmp_path, monkeypatch):
    (tmp_path / "cifar-100").mkdir()
    (tmp_path / "cifar-100/train-0.jxl").touch()
    np.savez(tmp_path / "cifar-100/train-labels.npz", fine=[0], coarse=[0])
    monkeypatch.setitem(sys.modules, "pillow_jxl", None)
    monkeypatch.setattr(cifar.shutil, "which", lambda program: None)
    with pytest.raises(UserError, match=r"train-0.jxl is a JPEG XL file.*pip install 'clusterfl\[jxl\]'"):
        DATASETS["cifar100"](tmp_path)


# LEAF's format.


def leaf(path: Path, data: dict[str, tuple[list, list]], **changes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {
        "users": list(data),
        "num_samples": [len(y) for _, y in data.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in data.items()},
    }
    path.write_text(json.dumps(whole | changes))


@pytest.mark.parametrize("name", ["femnist", "nist-letters"])
def test_images_by_writer(tmp_path, name):
    def picture(shade):
        return [shade, *[1.0] * 783]

    leaf(tmp_path / "train/a_1.json", {"w9": ([picture(0.1)], [3])})
    leaf(tmp_path / "train/a_0.json", {"w5": ([picture(0.2), picture(0.3)], [1, 2]), "w0": ([], [])})
    leaf(tmp_path / "test/a_0.json", {"w5": ([picture(0.4)], [1.0]), "w7": ([picture(0.5)], [4])})
    samples = DATASETS[name](tmp_path)
    assert samples.x.shape == (5, 1, 28, 28) and samples.x.dtype == np.float32
    np.testing.assert_allclose(samples.x[:, 0, 0, 0], [0.2, 0.3, 0.1, 0.4, 0.5])
    assert samples.y.tolist() == [1, 2, 3, 1, 4]
    assert samples.owner.tolist() == [1, 1, 3, 1, 2]  # of w0, w5, w7, w9
    assert samples.test.tolist() == [False] * 3 + [True] * 2


def test_plays_by_role(tmp_path):
    text = LETTERS[::-1]
    leaf(tmp_path / "train/a.json", {"ROMEO": ([text], ["\n"])})
    leaf(tmp_path / "test/a.json", {"JULIET": ([text.replace("}", "é"), "a" * 80], ["b", "}"])})
    samples = DATASETS["shakespeare"](tmp_path)
    assert samples.x.dtype == np.int16 and samples.x.shape == (3, 80)
    assert samples.x[0].tolist() == list(range(79, -1, -1))
    assert samples.x[1, 0] == LETTERS.index(" ")  # what LEAF's alphabet lacks
    assert samples.y.tolist() == [0, LETTERS.index("b"), 79]
    assert samples.owner.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    "name, x, y, changes, words",
    [
        ("femnist", [[0.0] * 783], [1], {}, "cannot reshape"),
        ("femnist", [[0.0] * 784], [1.5], {}, "isn't a whole number"),
        ("femnist", [[0.0] * 784], [1], {"num_samples": [2]}, "1 samples and 1 labels, where 2 are stated"),
        ("femnist", [[0.0] * 784], [1], {"user_data": {}}, "it has no 'w'"),
        ("femnist", [[0.0] * 784], [1], {"users": []}, "isn't in LEAF's format"),
        ("shakespeare", ["short"], ["a"], {}, "texts of 80 characters"),
    ],
)
def test_what_is_not_in_leafs_format_is_reported(tmp_path, name, x, y, changes, words):
    leaf(tmp_path / "train/a.json", {"w": (x, y)}, **changes)
    with pytest.raises(UserError, match=words):
        DATASETS[name](tmp_path)


def test_missing_or_broken_leaf_files_are_reported(tmp_path):
    with pytest.raises(UserError, match="train holds no JSON files"):
        DATASETS["femnist"](tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train/a.json").write_text("{")
    with pytest.raises(UserError, match=r"a.json isn't in LEAF's format"):
        DATASETS["femnist"](tmp_path)


# Texts.


def test_windows_of_a_speakers_text(tmp_path):
    speech = "".join(LETTERS[10 + n % 60] for n in range(90))
    speeches = [f"Second Lord:\n{speech[:30]}", f"Extra:\n{'x' * 80}", "First:\n", f"First:\n{speech}"]
    (tmp_path / "tinyshakespeare.txt").write_text("\n\n".join([*speeches, f"Second Lord:\n{speech[30:]}\n"]))
    samples = DATASETS["shakespeare-tiny"](tmp_path, stride=3)
    assert samples.owner.tolist() == [0] * 4 + [1] * 4  # Extra has no character after 80
    assert "".join(LETTERS[n] for n in samples.x[1]) == ("\n" + speech)[3:83]  # First's empty speech, a line break
    joined = speech[:30] + "\n" + speech[30:]
    assert "".join(LETTERS[n] for n in samples.x[7]) == joined[9:89] and LETTERS[samples.y[7]] == joined[89]
    assert len(DATASETS["shakespeare-tiny"](tmp_path).y) == 2 * 3  # every fifth of eleven windows
    (tmp_path / "tinyshakespeare.txt").write_text("To be or not\nto be")
    with pytest.raises(UserError, match="'To be or not' isn't a speaker's name"):
        DATASETS["shakespeare-tiny"](tmp_path)


def news(path: Path, articles: list[tuple[str, str, str]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, quoting=csv.QUOTE_ALL).writerows(articles)


def test_words_of_news(tmp_path):
    news(
        tmp_path / "train.csv", [("3", 'The "cat', "sat\\on the cat"), ("1", "It isn #39;t", "the CAT &lt;b&gt; #36;5")]
    )
    news(tmp_path / "test.csv", [("4", "the unseen", "cat")])
    samples = DATASETS["agnews"](tmp_path, words=3, length=6)
    # cat and the occur three times each; then the first by alphabet of those that occur once: 5.
    assert samples.x.dtype == np.int16
    assert samples.x.tolist() == [[3, 2, 1, 1, 3, 2], [1, 1, 3, 2, 1, 4], [3, 1, 2, 0, 0, 0]]
    assert samples.y.tolist() == [2, 0, 3] and samples.test.tolist() == [False, False, True]
    alone = DATASETS["agnews-test"](tmp_path)
    assert alone.x.shape == (1, 200) and alone.x[0, :4].tolist() == [3, 4, 2, 0] and alone.test is None
    news(tmp_path / "test.csv", [("4", "a", "b"), ("5", "a", "b")])
    with pytest.raises(UserError, match="article 2: no class from 1 to 4"):
        DATASETS["agnews-test"](tmp_path)


def amazon_file(path: Path, **changes) -> None:
    """Write a matrix of 3 features by 5 reviews in KD3A's form."""
    facts = {
        "xx_data": [[1.0, 2.0, 3.0, 4.0]],
        "xx_row": [[0, 1, 2, 0]],
        "xx_col": [[0, 0, 3, 4]],
        "xx_shape": [[3, 5]],
        "yy": [[1], [-1], [1], [-1], [-1]],
        "offset": [[0], [1], [3], [4], [5]],
    }
    np.savez(path, **{key: np.array(value) for key, value in (facts | changes).items() if value is not None})


def test_ready_made_features_of_reviews(tmp_path):
    amazon_file(tmp_path / "amazon.npz")
    samples = DATASETS["amazon"](tmp_path, words=2)
    assert samples.x.tolist() == [[1, 2], [0, 0], [0, 0], [0, 0], [4, 0]] and samples.x.dtype == np.float32
    assert samples.y.tolist() == [1, 0, 1, 0, 0] and samples.group.tolist() == [0, 1, 1, 2, 3]
    for change, words in (
        ({"offset": [0, 1, 3, 4, 9]}, "domains from"),
        ({"yy": None}, "isn't KD3A's"),
        ({"yy": np.array([None])}, "isn't KD3A's"),  # an object array: a pickle, which isn't read
    ):
        amazon_file(tmp_path / "amazon.npz", **change)
        with pytest.raises(UserError, match=words):
            DATASETS["amazon"](tmp_path)


def review_archive(path: Path, mode: str, bodies: dict[str, bytes]) -> None:
    with tarfile.open(path, mode) as archive:
        for name, body in bodies.items():
            member = tarfile.TarInfo(f"sorted_data_acl/{name}")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))


def review(title: str, text: str) -> bytes:
    tags = f"<unique_id>\n1\n</unique_id>\n<title>\n{title}\n</title>\n<review_text>\n{text}\n</review_text>\n"
    return f"<review>\n{tags}</review>\n".encode("latin-1")


@pytest.mark.parametrize(
    "name, mode", [("sorted_data_acl_labelled.tar.xz", "w:xz"), ("domain_sentiment_data.tar.gz", "w:gz")]
)
def test_reviews_as_bags_of_words(tmp_path, name, mode):
    bodies = {
        f"{domain}/{sign}.review": review("Fine", f"{word} &quot;word&quot; \xe9t\xe9 < a & b")
        for domain in ("books", "dvd", "electronics", "kitchen_&_housewares")
        for sign, word in (("positive", "good"), ("negative", "bad bad bad"))
    }
    bodies["books/unlabeled.review"] = review("no", "unread " * 99)
    bodies["books/negative.review"] += review("More", "bad")
    review_archive(tmp_path / name, mode, bodies)
    samples = DATASETS["amazon-labelled"](tmp_path, words=1)
    assert samples.x.dtype == np.float32 and samples.x[:, 0].tolist() == [3, 1, 0, 3, 0, 3, 0, 3, 0]
    assert samples.y.tolist() == [0, 0, 1, 0, 1, 0, 1, 0, 1] and samples.group.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    every = DATASETS["amazon-labelled"](tmp_path)
    assert every.x.shape == (9, 5000) and every.x[3].sum() == 1 + 3 + 1 + 1 + 2  # fine, bad x 3, word, t, a, b


def test_damaged_reviews_are_reported(tmp_path):
    path = tmp_path / "sorted_data_acl_labelled.tar.xz"
    review_archive(path, "w:xz", {"books/negative.review": b"<review>\n<title>\na\n</title>\n</review>"})
    with pytest.raises(UserError, match="review 1 has 0 texts"):
        DATASETS["amazon-labelled"](tmp_path)
    review_archive(path, "w:xz", {"books/negative.review": review("a", "b")})
    with pytest.raises(UserError, match=r"has no books/positive.review"):
        DATASETS["amazon-labelled"](tmp_path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="can't be read"):
        DATASETS["amazon-labelled"](tmp_path)


# Photographs.


def photographs(folder: Path, train: str, changes: tuple[str, str] = ("", "")) -> None:
    with zipfile.ZipFile(folder / "x-user-1k.zip", "w") as archive:
        table = "user_id,image_id,class\nzoe,aa1,5\nadam,bb2,7\nzoe,cc3,5\n"
        archive.writestr(f"x-user-1k/{train}", table.replace(*changes))
        archive.writestr("x-user-1k/test.csv", "image_id,class\ndd4,7\n")
    (folder / "images/a/b").mkdir(parents=True, exist_ok=True)
    colours = {"aa1": (9, 99, 199), "bb2": (0, 0, 0), "cc3": (255, 255, 255), "dd4": (50, 60, 70)}
    for name, colour in colours.items():
        Image.new("RGB", (40, 20), colour).save(folder / "images/a/b" / f"{name}.png")
    stripes = np.zeros((10, 40), dtype=np.uint8)  # a grey picture with a bright middle
    stripes[:, 15:25] = 255
    Image.fromarray(stripes).save(folder / "images/bb2.jpg", quality=100)
    (folder / "images/a/b/bb2.png").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "name, train", [("landmarks", "federated_train.csv"), ("inaturalist", "federated_train_user_120k.csv")]
)
def test_photographs_by_author(tmp_path, name, train):
    photographs(tmp_path, train)
    samples = DATASETS[name](tmp_path, size=10)
    assert isinstance(samples.x, np.memmap) and samples.x.shape == (4, 3, 10, 10) and samples.x.dtype == np.uint8
    assert samples.x[0, :, 5, 5].tolist() == [9, 99, 199] and samples.x[1].min() > 240  # the middle square alone
    assert samples.y.tolist() == [5, 7, 5, 7] and samples.test.tolist() == [False] * 3 + [True]
    assert samples.owner.tolist() == [1, 0, 1, -1]  # adam, zoe; test images have no author


def test_missing_photographs_are_reported(tmp_path):
    with pytest.raises(UserError, match="can't be read"):
        DATASETS["landmarks"](tmp_path)
    photographs(tmp_path, "federated_train.csv")
    (tmp_path / "images/a/b/dd4.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"dd4.png can't be read as an image"):
        DATASETS["landmarks"](tmp_path, size=4)
    (tmp_path / "images/a/b/cc3.png").unlink()
    with pytest.raises(UserError, match=r"lacks 1 of 4 images, first cc3.jpg; download the training images"):
        DATASETS["landmarks"](tmp_path)
    photographs(tmp_path, "federated_train.csv", ("class", "label"))
    with pytest.raises(UserError, match="has no column 'class'"):
        DATASETS["landmarks"](tmp_path)
    photographs(tmp_path, "federated_train.csv", ("bb2,7", "bb2,dog"))
    with pytest.raises(UserError, match="line 3 has class 'dog'"):
        DATASETS["landmarks"](tmp_path)
    photographs(tmp_path, "other.csv")
    with pytest.raises(UserError, match=r"holds 0 files federated_train\*.csv"):
        DATASETS["landmarks"](tmp_path)
    assert not list(tmp_path.glob("*.npy"))


# Generated regression.


def fitted(samples: Samples) -> np.ndarray:
    """Least squares in each group: what the planted models must be, up to noise."""
    groups = range(samples.group.max() + 1)
    x, y = samples.x.astype(np.float64), samples.y
    return np.array([np.linalg.lstsq(x[samples.group == g], y[samples.group == g], rcond=None)[0] for g in groups])


@pytest.mark.parametrize("delta", [0.0003, 0.02, 0.7, 1.0])
def test_linear_models_keep_their_distances(delta):
    samples = DATASETS["linear"](None, delta=delta, noise=0.0, samples=100, seed=3)
    assert samples.x.shape == (500, 20) and samples.group.tolist() == np.repeat(np.arange(5), 100).tolist()
    models = fitted(samples)
    np.testing.assert_allclose(np.linalg.norm(models, axis=1), 1, atol=1e-5)
    apart = np.linalg.norm(models[:, None] - models, axis=2)[np.triu_indices(5, 1)]
    assert apart.min() >= delta - 1e-5 and apart.max() <= 5 * delta + 1e-5
    assert content(DATASETS["linear"](None, delta=delta, noise=0.0, samples=100, seed=4)) != content(samples)


@pytest.mark.parametrize("name", ["linear", "linear-ifca", "linear-1d"])
def test_each_run_has_generated_data_of_its_own_if_asked(name):
    """``seed: run`` is the run's data seed; one number for all runs, or for their partitions, means one dataset."""
    block = {"dataset": name, "seed": "run"}
    study = {"study": "s", "seeds": {"runs": [3, 5]}}
    study |= {"federations": {"f": {"dataset": block, "partition": {"scheme": "by-group"}}}}
    study |= {"model": {"model": "linear"}, "methods": {"fedavg": {"method": "fedavg"}}}

    def downloads(settings):
        plan = Plan.from_settings(settings)
        used = [plan.job("partition", "f", run).upstream["samples"] for run in (3, 5)]
        every = [job for job in plan.jobs() if job.stage == "download"]
        assert {job.first for job in every} == {job.first for job in used} and len(every) == len({*map(id, every)})
        return [job.settings["options"]["seed"] for job in used], len(every)

    assert downloads(study) == ([3, 5], 2)
    assert downloads(study | {"seeds": {"runs": [3, 5], "data": 7}}) == ([7, 7], 1)
    block["seed"] = 7
    assert downloads(study) == ([7, 7], 1)
    with pytest.raises(UserError, match=rf"{name}: seed: 'run' is a run's seed.*give a number"):
        DATASETS[name](None, seed="run")


def test_impossible_linear_models_are_reported():
    with pytest.raises(UserError, match=r"no 20 models of unit norm at least 1.9 apart in 1000 draws"):
        DATASETS["linear"](None, clusters=20, dimension=3, delta=1.9, samples=1)
    with pytest.raises(UserError, match="no 3 different models"):
        DATASETS["linear-ifca"](None, clusters=3, dimension=1, samples=1)


def test_linear_models_of_ifca():
    samples = DATASETS["linear-ifca"](None, dimension=30, radius=2.5, noise=0.01, samples=400)
    models = fitted(samples)
    np.testing.assert_allclose(np.linalg.norm(models, axis=1), 2.5, atol=0.01)
    for model in models:
        ones = np.abs(model) > 0.1
        np.testing.assert_allclose(model, ones * 2.5 / np.sqrt(ones.sum()), atol=0.01)
    residual = samples.y - (samples.x * models[samples.group]).sum(axis=1)
    assert 0.009 < residual.std() < 0.011


def test_lines():
    samples = DATASETS["linear-1d"](None, sizes=[500, 100], slopes=[3.0, -1.0], intercepts=[0.5, 2.0], noise=0.2)
    assert samples.x.shape == (600, 1) and np.bincount(samples.group).tolist() == [500, 100]
    for group, expected in enumerate(([3.0, 0.5], [-1.0, 2.0])):
        rows_ = samples.group == group
        np.testing.assert_allclose(np.polyfit(samples.x[rows_, 0], samples.y[rows_], 1), expected, atol=0.08)
    with pytest.raises(UserError, match="one value for each line"):
        DATASETS["linear-1d"](None, sizes=[5])


def test_digits_are_the_real_ones():
    from sklearn.datasets import load_digits

    x, y = DATASETS["digits"](None)
    assert x.shape == (1797, 1, 8, 8) and x.dtype == np.uint8
    np.testing.assert_allclose(x[:, 0] / 255 * 16, load_digits().images, atol=0.04)  # 0..16 on 256 shades
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


# The stage.


@pytest.fixture
def small_mnist(tmp_path, monkeypatch) -> Path:
    """A mirror with seven images as MNIST, and a table that knows their checksums but another content."""
    monkeypatch.chdir(tmp_path)
    mnist_files(tmp_path / "mirror/MNIST/raw", gzip.compress, ".gz")
    row = rows()["mnist"]
    files = tuple(f.model_copy(update={"sha256": None, "packed_md5": None, "url": None}) for f in row.sources[0])
    table = {"mnist": row.model_copy(update={"sources": (files,), "content": None})}
    for module in (download, fetch):
        monkeypatch.setattr(module, "rows", lambda: table)
    return tmp_path / "mirror"


def test_download_in_an_empty_folder(small_mnist, capsys):
    assert main(["download", "mnist", "--mirror", str(small_mnist)]) == 0
    arrays = read_tensors(Path("data/mnist/samples.safetensors"))
    assert {name: (array.shape, array.dtype) for name, array in arrays.items()} == {
        "x": ((7, 1, 28, 28), np.uint8),
        "y": ((7,), np.int64),
        "test": ((7,), np.bool_),
    }
    assert read_json(Path("data/mnist/manifest.json"))["content"] == content(Samples(arrays["x"], arrays["y"]))


def test_other_content_than_the_tables_is_reported(small_mnist, monkeypatch, tmp_path):
    known = rows()["digits"].content
    table = {"mnist": fetch.rows()["mnist"].model_copy(update={"content": known})}
    monkeypatch.setattr(download, "rows", lambda: table)
    monkeypatch.setenv("CLUSTERFL_MIRROR", str(small_mnist))
    with pytest.raises(UserError, match=f"x and y have sha256 [0-9a-f]{{64}}, {known} expected"):
        obtain("mnist", tmp_path / "data", {})


def test_the_tables_content_is_that_of_default_options(tmp_path):
    samples, _ = obtain("linear-1d", tmp_path, {"sizes": [5, 5, 5, 5]})
    assert len(samples.y) == 20


@pytest.mark.parametrize(
    "field, value", [("test", "np.zeros(3)"), ("owner", "np.zeros(4, int)"), ("group", "np.ones(3)")]
)
def test_arrays_that_do_not_fit_are_reported(tmp_path, monkeypatch, field, value):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"misfit_{field}.py").write_text(
        "import numpy as np\nfrom clusterfl.data.samples import Samples\n\n"
        f"def data(folder):\n    return Samples(np.zeros((3, 2)), np.zeros(3, int), {field}={value})\n"
    )
    with pytest.raises(UserError, match=rf"{field} needs one .* for each of the 3 samples"):
        obtain(f"misfit_{field}:data", tmp_path / "out", {})
