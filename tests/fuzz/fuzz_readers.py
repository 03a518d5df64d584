"""What is fuzzed: readers of files from outside, each with small genuine files and with what its result has to be."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from conftest import ROOT, tiny
from hypothesis import strategies as st
from PIL import Image

from clusterfl.claims import grammar
from clusterfl.claims.orderings import judge
from clusterfl.claims.printed import orderings
from clusterfl.config import loading
from clusterfl.data.readers import cifar, index, leaf, own, picture, reviews, text, vision
from clusterfl.data.samples import Samples
from clusterfl.errors import UserError
from clusterfl.pipeline.jobs import Plan
from clusterfl.storage import manifest, store


@dataclass(frozen=True)
class Reader:
    """One reader."""

    name: str  # of the file, which an error has to name
    genuine: Callable[[], list[bytes]]
    read: Callable[[Path], Any]
    check: Callable[[Any], None]
    structured: st.SearchStrategy[bytes] | None = None  # inputs made by rule, beside mutated ones
    refusal: type[Exception] = UserError


HOSTILE = st.sampled_from(
    ["", ".", "..", "../x", "/etc/x", "a/b", "a b", "-x", "--config", "a;b", "$(touch x)", "`touch x`", "a'b", 'a"b',
     "a\nb", "a\0b", "a\\b", "<script>alert(1)</script>", "é", "ﬁ", "\u202e", "con", "NUL", "a" * 81, "a:b",
     "os:system",
     "{wildcards.study}", "*", "~", "%s", "seed0", "logs", "x.scores", "=1+1"]
)  # fmt: skip
NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**60, -(2**63), 10**30, 1e308, -0.0, float("nan"), float("inf")])
VALUES = st.recursive(
    HOSTILE | NUMBERS | st.none() | st.booleans() | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE | st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def sheet() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=24), "b": np.arange(24), "label": np.arange(24) % 3, "client": ["x", "y", "z"] * 8}
    return pd.DataFrame(columns | {"test": np.arange(24) % 4 == 0})


def in_memory(write: Callable[[Any], Any]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def of_file(write: Callable[[Path], Any]) -> bytes:
    """Return what a function writes at a path."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "x")
        return (Path(folder) / "x").read_bytes()


# Results.


def columns_agree(found: dict[str, Any]) -> None:
    assert isinstance(found, dict) and len({len(column) for column in found.values()}) <= 1


def samples_agree(found: Samples) -> None:
    assert len(found.x) == len(found.y) > 0 and found.x.ndim > 1
    assert found.x.dtype.kind in "iu" or np.isfinite(found.x).all()
    assert found.y.dtype.kind == "i" and found.y.min() >= 0
    assert found.test is None or found.test.shape == found.y.shape
    assert found.owner is not None and found.owner.shape == found.y.shape and found.owner.min() == 0


def images(found: Any) -> None:
    assert found.dtype == np.uint8 and found.ndim == 3


def manifest_agrees(found: dict[str, Any]) -> None:
    assert found["study"] == "s" and found["files"]["result"]["sha256"] == hashlib.sha256(b"1").hexdigest()


def sound_tensors(found: dict[str, Any]) -> None:
    assert all(isinstance(array, np.ndarray) and array.nbytes < 1e6 for array in found.values())


def inside(plan: Plan) -> None:
    """Every job writes inside the folders of its study and of its dataset, under names that are in the settings."""
    results, data = Path("results").resolve(), Path("data").resolve()
    for job in plan.jobs():
        root = data / str(job.name) if job.stage == "download" else results / plan.study.study
        assert root.parent in (data, results)
        for path in job.outputs.values():
            assert path.resolve().is_relative_to(root) and path.resolve() != root
            assert path.resolve() == Path.cwd() / path


# Genuine files.


def parquet() -> list[bytes]:
    columns = {"client": np.arange(20), "cluster": np.arange(20) % 3, "distance": np.eye(20), "name": ["a", "é"] * 10}
    return [of_file(lambda path: store.write_table(path, columns)), in_memory(sheet().to_parquet)]


def npz() -> list[bytes]:
    arrays = {"x": np.arange(96.0).reshape(24, 4), "y": np.arange(24) % 3, "client": np.array(["x", "y", "z"] * 8)}
    return [in_memory(lambda f: np.savez(f, **arrays)), in_memory(lambda f: np.savez_compressed(f, **arrays))]


def idx() -> list[bytes]:
    body = np.random.default_rng(0).integers(0, 256, 5 * 28 * 28, dtype=np.uint8).tobytes()
    return [bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (5, 28, 28)) + body]


def batch(protocol: int) -> bytes:
    data = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    return pickle.dumps({"data": data, "labels": [1, 2, 3], "filenames": ["a"] * 3, "batch_label": "x"}, protocol)


def batches() -> list[bytes]:
    # As Python 2 wrote them: texts are bytes, and the numbers are one of them.
    old = batch(2).replace(b"numpy._core", b"numpy.core")
    return [batch(protocol) for protocol in (2, 3, 4, 5)] + [old]


def tar(members: dict[str, bytes], mode: str = "w") -> bytes:
    def write(file: Any) -> None:
        with tarfile.open(fileobj=file, mode=mode) as archive:
            for name, data in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))

    return in_memory(write)


TEN = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]


def cifar_archives() -> list[bytes]:
    members = {f"cifar-10-batches-py/{name}": batch(2) for name in TEN}
    return [tar(members), tar(members, "w:gz")]


def zipped(members: dict[str, bytes], packing: int) -> bytes:
    def write(file: Any) -> None:
        with zipfile.ZipFile(file, "w", packing) as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    return in_memory(write)


def emnist() -> list[bytes]:
    def part(name: str, count: int) -> dict[str, bytes]:
        image = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28)) + bytes(count * 784)
        label = bytes([0, 0, 8, 1]) + count.to_bytes(4, "big") + bytes(count)
        start = f"gzip/emnist-digits-{name}"
        return {f"{start}-images-idx3-ubyte.gz": gzip.compress(image), f"{start}-labels-idx1-ubyte.gz":
                gzip.compress(label)}  # fmt: skip

    members = part("train", 3) | part("test", 2)
    return [zipped(members, zipfile.ZIP_STORED), zipped(members, zipfile.ZIP_DEFLATED)]


def indices() -> list[bytes]:
    rows = b"".join(b"%d,i%d,%d\n" % (i % 3, i, i) for i in range(9))
    members = {
        "x/federated_train.csv": b"user_id,image_id,class\n" + rows,
        "x/test.csv": b"image_id,class\ni7,1\ni8,2\n",
    }  # fmt: skip
    return [zipped(members, zipfile.ZIP_STORED), zipped(members, zipfile.ZIP_DEFLATED)]


def review_archives() -> list[bytes]:
    review = b"<review><title>A title</title><review_text>Good, it's good &amp; cheap</review_text></review>\n" * 2
    names = ("books", "dvd", "electronics", "kitchen_&_housewares")
    members = {f"sorted_data_acl/{d}/{s}.review": review for d in names for s in ("negative", "positive")}
    return [tar(members), tar(members, "w:xz")]


def leaf_files() -> list[bytes]:
    data = {"u": {"x": [[0.5] * 784] * 2, "y": [1, 2]}, "v": {"x": [[0.25] * 784], "y": [3]}}
    return [json.dumps({"users": ["u", "v"], "num_samples": [2, 1], "user_data": data}).encode()]


def pictures() -> list[bytes]:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 9, 3), dtype=np.uint8))
    return [in_memory(lambda f, kind=kind: picture.save(f, kind)) for kind in ("png", "jpeg", "gif", "bmp", "webp")]


def tensors() -> list[bytes]:
    arrays = {"theta": np.eye(4, dtype=np.float32), "x": np.arange(6, dtype=np.uint8).reshape(2, 3), "y": np.arange(2)}
    return [of_file(lambda path: store.write_tensors(path, arrays))]


def configurations() -> list[bytes]:
    return [yaml.safe_dump(tiny(), sort_keys=False).encode(), (ROOT / "config.yaml").read_bytes()]


def manifests() -> list[bytes]:
    def write(path: Path) -> None:
        path.with_name("result").write_bytes(b"1")
        manifest.write_manifest(path, [path.with_name("result")], {"study": "s", "stage": "x", "inputs": {"a": "b"}})

    return [of_file(write)]


def operands() -> list[bytes]:
    return sorted({side.encode() for ordering in orderings() for side in (ordering.left, ordering.right)})


# Inputs made by rule.


@st.composite
def settings(draw: Any) -> bytes:
    """A sound configuration in which some keys and values are others."""
    study = tiny()
    for _ in range(draw(st.integers(1, 3))):
        block: Any = study
        while True:
            keys = list(block) if isinstance(block, dict) else list(range(len(block)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(block[key], dict | list) and draw(st.integers(0, 4)):
                block = block[key]
                continue
            act = draw(st.sampled_from(["value", "key", "drop"]))
            if act == "value" or isinstance(block, list):
                block[key] = draw(VALUES)
            elif act == "key":
                block[draw(HOSTILE | st.text(max_size=5))] = block[key] if draw(st.booleans()) else block.pop(key)
            else:
                del block[key]
            break
    return yaml.safe_dump(study, sort_keys=False, allow_unicode=draw(st.booleans())).encode("utf-8", "surrogatepass")


@st.composite
def headers(draw: Any) -> bytes:
    """A safetensors file whose header says anything."""
    shape = st.lists(st.sampled_from([0, 1, 2, 3, 2**31, 2**60, -1, 2**64]), max_size=3)
    kinds = st.sampled_from(["F32", "F64", "I64", "U8", "BOOL", "BF16", "F16", "F8_E4M3", "F8_E5M2", "C64", "X", ""])
    entry = st.fixed_dictionaries(
        {"dtype": kinds, "shape": shape, "data_offsets": st.lists(st.integers(0, 24), min_size=2, max_size=2)}
    )
    names = st.sampled_from(["x", "y", "theta", "__metadata__", "\n", ""])
    text_ = json.dumps(draw(st.dictionaries(names, entry | VALUES, max_size=3)), default=str).encode()
    length = draw(st.sampled_from([len(text_), len(text_) + 1, 2**60, 0]) | st.just(len(text_)))
    return length.to_bytes(8, "little") + text_ + bytes(draw(st.integers(0, 24)))


LINES = st.lists(
    st.lists(
        st.sampled_from(["a", "b", "label", "client", "test", "0", "1", "-1", "1e999", "nan", "", '"', "'", "x\0", "=1",
                         "9" * 30, "true", "é", "\ud800", "1,2", "\r"]), max_size=6
    ).map(",".join), max_size=8,
).map(lambda lines: "\n".join(["a,b,label,client,test", *lines]).encode("utf-8", "surrogatepass"))  # fmt: skip
INSTRUCTIONS = st.lists(
    st.sampled_from(
        [bytes([code]) for code in range(40, 152)]
        + [b"c__builtin__\neval\n", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"X\x04\x00\x00\x00data", b"K\x01",
           b"U\x02u1", b"cnumpy.core.multiarray\n_reconstruct\n", b"r\xff\xff\xff\x7f", b"(", b"}", b"\x86", b"R", b"b",
           b"c_codecs\nencode\n", b"\x96\xff\xff\xff\xff\xff\xff\xff\x0f", b"\x8e\xff\xff\xff\xff\xff\xff\xff\x0f",
           b"iposix\nsystem\n", b"L99999999999999999999L\n"]
    ), max_size=30,
).map(lambda parts: b"\x80\x02" + b"".join(parts) + b".")  # fmt: skip
TERMS = st.lists(
    st.sampled_from(["min(", "max(", ")", ";", "{", "}", "setting=", "at=", "suffix=", "std:", "ifca", "fedavg",
                     "empty",
                     "-", "1", "9" * 400, ".5", "é", "\n", " ", "=", "@", "="]), max_size=8,
).map(lambda parts: "".join(parts).encode())  # fmt: skip
LEAF = st.fixed_dictionaries(
    {"users": VALUES | st.lists(HOSTILE, max_size=2), "num_samples": VALUES | st.just([1]), "user_data": VALUES}
).map(lambda value: json.dumps(value).encode())

MANIFESTS = st.dictionaries(st.sampled_from(["schema", "study", "files", "own"]), VALUES).map(
    lambda value: json.dumps({"schema": 1, "study": "s"} | value).encode()
)


# Readers.


def configuration(path: Path) -> Plan:
    return Plan(loading.load(loading.read([path]), str(path)))


def of_manifest(path: Path) -> Any:
    result = path.with_name("result")
    result.write_bytes(b"1")
    return manifest.verified(result, {"study": "s"})


def operand(path: Path) -> Any:
    """Evaluate an operand on the printed numbers, in the first ordering of each relation."""
    parsed = path.read_bytes().decode("utf-8", "replace")
    found = [grammar.parse(parsed)]
    for ordering in _orderings():
        changed = type(ordering)(**(vars(ordering) | {"left": parsed}))
        printed = grammar.on_print(changed)
        found += [judge(printed, len(list(grammar.places(changed))))] if printed else []
    return found


@cache
def _orderings() -> list[Any]:
    return list({ordering.relation: ordering for ordering in orderings()}.values())


def operand_agrees(found: Any) -> None:
    parsed, *verdicts = found
    assert (parsed.constant is not None) + parsed.empty + bool(parsed.methods) == 1
    assert all(verdict.holding <= verdict.evaluated <= verdict.combinations for verdict in verdicts)


def small(read: Callable[..., Any], **options: Any) -> Callable[[Path], Any]:
    return lambda path: read(path.parent, path=str(path), **options)


NAMED = {"label": "label", "client": "client", "test": "test"}
READERS = {
    "parquet, results": Reader("t.parquet", parquet, store.read_table, columns_agree),
    "parquet, own": Reader("t.parquet", parquet, small(own.table, **NAMED), samples_agree),
    "csv, own": Reader(
        "t.csv", lambda: [in_memory(lambda f: sheet().to_csv(f, index=False))], small(own.table, **NAMED),
        samples_agree, LINES,
    ),
    "npz, own": Reader("t.npz", npz, small(own.arrays), samples_agree),
    "configuration": Reader("c.yaml", configurations, configuration, inside, settings()),
    "idx": Reader("images-idx3-ubyte", idx, lambda path: vision._idx(path, 3, None), images),
    "cifar, batch": Reader(
        "data_batch_1", batches, lambda path: cifar.batch(path.read_bytes(), str(path), ("labels",)),
        lambda found: columns_agree(found), INSTRUCTIONS,
    ),
    "cifar, archive": Reader(
        "cifar-10-python.tar.gz", cifar_archives, lambda path: cifar.cifar10(path.parent),
        lambda found: images(found.x[:, 0]),
    ),
    "emnist, archive": Reader(
        "gzip.zip", emnist, lambda path: vision.emnist_digits(path.parent), lambda found: images(found.x[:, 0])
    ),
    "photographs, index": Reader(
        "x-user-1k.zip", indices, lambda path: [list(index._table(path, p)) for p in ("federated_train", "test")],
        lambda found: [int(row["class"]) for rows in found for row in rows] and None,
    ),
    "reviews, archive": Reader(
        "domain_sentiment_data.tar.gz", review_archives, lambda path: reviews.amazon_labelled(path.parent, words=9),
        lambda found: columns_agree({"x": found.x, "y": found.y, "group": found.group}),
    ),
    "leaf": Reader(
        "a.json", leaf_files, lambda path: leaf._part(path.parent, leaf._images),
        lambda found: [columns_agree(dict(zip("xy", p, strict=True))) for ps in found.values() for p in ps] and None,
        LEAF,
    ),
    "csv, news": Reader(
        "train.csv", lambda: [b'"3","Title, one","Text #39;s"\n"1","B","C\\d"\n'], lambda path: text._articles(path),
        lambda found: columns_agree(dict(zip("xy", found, strict=True))), LINES,
    ),
    "pictures": Reader("a.png", pictures, lambda path: picture.decoded(path, 8, "rgb"), images),
    "safetensors": Reader("m.safetensors", tensors, store.read_tensors, sound_tensors,
                          headers()),
    "manifest": Reader("manifest.json", manifests, of_manifest, manifest_agrees, MANIFESTS),
    "claims' grammar": Reader("operand", operands, operand, operand_agrees, TERMS, ValueError),
}  # fmt: skip
