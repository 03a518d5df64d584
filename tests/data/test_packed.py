"""Archives and pickles that somebody made to harm: what would write, run or fill something is refused in time."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterfl.data import DATASETS, packed
from clusterfl.data.readers import cifar, index, leaf, own, pickled, reviews, text, vision
from clusterfl.errors import UserError
from clusterfl.storage import manifest, store

TEN = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
GIGABYTE = 1 << 30


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """A gigabyte more than there is: what a header claims isn't taken."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + GIGABYTE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def batch(**changes: Any) -> bytes:
    return pickle.dumps({"data": np.zeros((3, 3072), np.uint8), "labels": [1, 2, 3]} | changes, protocol=2)


def member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# Archives.


def test_an_archive_writes_nothing_by_the_names_that_it_gives(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    harm = [
        member("../slipped", b"x"), member(f"{tmp_path}/absolute", b"x"),
        member("cifar-10-batches-py/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("cifar-10-batches-py/device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    ]  # fmt: skip
    good = [member(f"cifar-10-batches-py/{name}", batch()) for name in TEN]
    archive(inside / "cifar-10-python.tar.gz", harm + good)
    assert len(DATASETS["cifar10"](inside).x) == 18
    assert everything(tmp_path) == ["inside", "inside/cifar-10-python.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_link_or_device_is_no_member(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "secret").write_bytes(batch())
    link = member("cifar-10-batches-py/test_batch", type=kind, linkname=f"{tmp_path}/secret")
    good = [member(f"cifar-10-batches-py/{name}", batch()) for name in TEN[:-1]]
    archive(tmp_path / "cifar-10-python.tar.gz", [*good, link])
    with pytest.raises(UserError, match="has no cifar-10-batches-py/test_batch"):
        DATASETS["cifar10"](tmp_path)


@pytest.mark.slow
def test_names_of_a_zip_lead_nowhere(tmp_path: Path) -> None:
    place = tmp_path / "a/b"
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / "gzip.zip", "w") as zipped:
        for name in ("../../emnist-digits-slipped-ubyte.gz", f"{tmp_path}/emnist-digits-absolute-ubyte.gz"):
            zipped.writestr(name, gzip.compress(b"x"))
    with pytest.raises(UserError, match="has no emnist-digits-train"):
        DATASETS["emnist-digits"](place)
    assert everything(tmp_path) == ["a", "a/b", "a/b/gzip.zip"]


BOMB = bytes(3_000_000)


def tar_of(name: str, archive_name: str) -> Callable[[Path], None]:
    return lambda folder: archive(folder / archive_name, [member(name, BOMB)])


def zip_of(name: str, archive_name: str, data: bytes = BOMB) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with zipfile.ZipFile(folder / archive_name, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr(name, data)

    return write


BOMBS: dict[str, tuple[Any, Callable[[Path], None], Callable[[Path], Any]]] = {
    "CIFAR": (cifar, tar_of("cifar-10-batches-py/test_batch", "cifar-10-python.tar.gz"), DATASETS["cifar10"]),
    "EMNIST": (
        vision, zip_of("gzip/emnist-digits-train-images-idx3-ubyte.gz", "gzip.zip", gzip.compress(BOMB)),
        DATASETS["emnist-digits"],
    ),
    "reviews": (
        reviews, tar_of("x/books/positive.review", "domain_sentiment_data.tar.gz"), DATASETS["amazon-labelled"],
    ),
    "index": (index, zip_of("federated_train.csv", "x-user-1k.zip"), DATASETS["landmarks"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_member_that_unpacks_to_more_than_any_genuine_one_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, write, read = BOMBS[name]
    assert 1 << 28 <= module.MOST <= 1 << 30
    monkeypatch.setattr(module, "MOST", 1_000_000)
    write(tmp_path)
    with pytest.raises(UserError, match=r"is longer than the 1,000,000 bytes that it may have"):
        read(tmp_path)


@pytest.mark.parametrize("rows", [2**60, 2**31, 10**12, -1])
def test_an_array_larger_than_its_bytes_takes_no_memory(tmp_path: Path, rows: int) -> None:
    """2^31 rows of the first size would fit into the memory of some machines, where numpy alone would take it."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (rows,)})
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as zipped:
        zipped.writestr("x.npy", buffer.getvalue() + bytes(80))
    with pytest.raises(UserError, match=rf"t.npz can't be read.*x.npy has 80 bytes of numbers, and.* {8 * rows}"):
        own.arrays(tmp_path, path=str(tmp_path / "t.npz"))


def test_an_array_whose_two_headers_lie_takes_no_memory(tmp_path: Path) -> None:
    """The archive's header says 3.2 GB, too, of which 80 bytes are there."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (400_000_000,)})
    place, stated = tmp_path / "t.npz", len(buffer.getvalue()) + 3_200_000_000
    with zipfile.ZipFile(place, "w") as zipped:
        zipped.writestr("x.npy", buffer.getvalue() + bytes(80))
    sizes = struct.pack("<II", stated - 3_200_000_000 + 80, stated - 3_200_000_000 + 80)
    whole = place.read_bytes()
    assert whole.count(sizes) == 2
    place.write_bytes(whole.replace(sizes, sizes[:4] + struct.pack("<I", stated)))
    with pytest.raises(ValueError, match=r"EOF|Unable to allocate"):
        packed.arrays(place)


@pytest.mark.parametrize("dtype", ["|V0", "<U0", "|S0"])
def test_an_array_of_nothing_is_refused(tmp_path: Path, dtype: str) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": (2**62,)})
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as zipped:
        zipped.writestr("x.npy", buffer.getvalue())
    with pytest.raises(ValueError, match=r"x\.npy holds Python objects, or nothing"):
        packed.arrays(tmp_path / "t.npz")


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3)), np.array(["a", "é"]),
                                   np.zeros((0, 3)), np.array(5), np.arange(3, dtype=">i4")])  # fmt: skip
def test_arrays_are_those_that_numpy_reads(tmp_path: Path, array: np.ndarray, version: tuple[int, int]) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version)
    with zipfile.ZipFile(tmp_path / "t.npz", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("x.npy", buffer.getvalue())
    found = packed.arrays(tmp_path / "t.npz")["x"]
    np.testing.assert_array_equal(found, np.load(tmp_path / "t.npz")["x"])
    assert found.dtype == array.dtype and found.flags.writeable


# Pickles. Each would do something with Python's own unpickler.


class Malice:
    def __init__(self, *call: Any):
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


DATA = b"\x80\x02}X\x04\x00\x00\x00data"
PUTS = [b"q" + bytes([place]) + b"h" + bytes([place]) for place in range(60)]  # and get it again
HUGE = b"\x8a\x06" + (2**40).to_bytes(6, "little")
LONG = 4_000_000  # characters
TEXT = b"X" + LONG.to_bytes(4, "little") + b"a" * LONG
ENCODE = b"c_codecs\nencode\nq\x02X\x06\x00\x00\x00latin1q\x03"
BYTES = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def array(shape: bytes = b"K\x01M\x00\x0c\x86", dtype: bytes = BYTES, raw: bytes = b"T\x00\x0c\x00\x00" + bytes(3072)):
    """Return the instructions that make an array of 3,072 bytes as Python 2 writes them, or another."""
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    return start + shape + dtype + b"\x89" + raw + b"tb"


HARMFUL: dict[str, bytes] = {
    "a program": pickle.dumps({"data": Malice(os.system, ("touch harm",))}),
    "a program, in protocol 0": pickle.dumps({"data": Malice(os.system, ("touch harm",))}, protocol=0),
    "code": pickle.dumps({"data": Malice(eval, ("open('harm', 'w')",))}),
    "a name inside a module": b"\x80\x04\x8c\x05numpy\x8c\x0df2py.os.getid\x93.",
    "an instance": b"(S'touch harm'\nios\nsystem\n.",
    "attributes of what is allowed": b"\x80\x02cnumpy\nndarray\nN}X\x01\x00\x00\x00aK\x01s\x86b.",
    "memory for places": DATA + b"K\x01r\xff\xff\xff\x7fs.",
    "memory for bytes": DATA + b"\x96" + (2**40).to_bytes(8, "little") + b"s.",
    "memory for an array": DATA + b"cnumpy\nndarray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85Rs.",
    # The hash of a pair of pairs of ..., 60 deep, takes 2^60 steps.
    "time for a hash": b"\x80\x02}" + b")" + b"2\x86" * 60 + b"K\x01s.",
    # The same, put and got again, and where the last instruction before the put doesn't show that it is a tuple.
    "time for a hash, by places": b"\x80\x02})" + b"\x86".join(PUTS) + b"\x86K\x01s.",
    "time for a hash, by BUILD of nothing": b"\x80\x02})" + b"\x86".join(b"Nb" + put for put in PUTS) + b"\x86K\x01s.",
    "time for a hash, by APPENDS of none": b"\x80\x02})" + b"\x86".join(b"(e" + put for put in PUTS) + b"\x86K\x01s.",
    # The hash of a tuple in a tuple in ... ends in a crash of the interpreter.
    "a deep key": b"\x80\x02})" + b"\x85" * 1_000_000 + b"K\x01s.",
    # Ten bytes make another 4 MB of a text that is there once.
    "memory for one text encoded again and again": (
        DATA + b"](" + TEXT + b"q\x01" + ENCODE + b"h\x02h\x01h\x03\x86R" * 2000 + b"es."
    ),
    "an array of objects": DATA
    + array(b"K\x01\x85", b"cnumpy\ndtype\nU\x01OK\x00K\x01\x87R", b"](K\x01K\x02e")
    + b"s.",
    "fields of objects": (
        DATA + b"cnumpy\ndtype\n}(X\x05\x00\x00\x00names](U\x01aeX\x07\x00\x00\x00formats](U\x01Oeu\x85Rs."
    ),
    "a type of a million types": DATA + b"cnumpy\ndtype\nX\x41\x42\x0f\x00u" + b"1," * 500_000 + b"\x85Rs.",
    "a shape of 2^40": DATA + array(HUGE + b"M\x00\x0c\x86") + b"s.",
    "numbers that nobody wrote": DATA + b"cnumpy\nndarray\nM\x10'M\x00\x0c\x86U\x02u1\x86Rs.",
    "one number 2^40 times": DATA + b"cnumpy\nndarray\n(" + HUGE + b"\x85U\x02u1C\x01aK\x00K\x00\x85tRs.",
    "attributes of what makes arrays": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nN}U\x05valueK\x01s\x86b.",
    "defaults of what encodes": b"\x80\x02c_codecs\nencode\nN}U\x0c__defaults__)s\x86b.",
    "a key that is no text": b"\x80\x02}NK\x01s.",
    "a codec": b"\x80\x02}X\x04\x00\x00\x00datac_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86Rs.",
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_pickle_does_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="data_batch_1") as refused:
        cifar.batch(HARMFUL[name], "data_batch_1", ("labels",))
    assert "MemoryError" not in str(refused.value)
    assert not (tmp_path / "harm").exists()
    assert not hasattr(pickled._Array, "a") and pickled._Array.value is None
    assert pickled._to_bytes.__defaults__ is None


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_cut_anywhere_is_refused(protocol: int) -> None:
    values = {"data": np.zeros((3, 3072), np.uint8), "labels": [1, 2, 3], "filenames": ["a"] * 3, "batch_label": "x"}
    whole = pickle.dumps(values, protocol)
    assert cifar.batch(whole, "data_batch_1", ("labels",))["labels"].tolist() == [1, 2, 3]
    inside = range(600, len(whole) - 600)  # mostly the array's numbers
    for end in [i for i in range(len(whole)) if i not in inside or i % 97 == 0]:
        with pytest.raises(UserError, match="data_batch_1"):
            cifar.batch(whole[:end], "data_batch_1", ("labels",))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["u1", "<i4", "<i8", "<f4", "<f8"])
@pytest.mark.parametrize("protocol", range(6))
def test_arrays_are_those_that_pickle_reads(protocol: int, dtype: str, order: Any) -> None:
    values = np.asarray(np.random.default_rng(0).integers(0, 99, (4, 3)), dtype, order=order)
    found = pickled.unpickled(pickle.dumps({"a": values, "b": [values, 1, "x", None]}, protocol), "t")
    np.testing.assert_array_equal(found["a"], values, strict=True)
    assert found["b"][1:] == [1, "x", None]


def test_arrays_of_python_2() -> None:
    (found,) = pickled.unpickled(DATA + array() + b"s.", "t").values()
    np.testing.assert_array_equal(found, np.zeros((1, 3072), np.uint8), strict=True)


@pytest.mark.parametrize(
    "labels", [None, [1, 2], [1, 2, -1], [1, 2, 100], [1, 2, "3"], [1, 2, True], np.arange(3), [1, 2, 10**30]]
)
def test_labels_that_are_none_are_reported(labels: Any) -> None:
    with pytest.raises(UserError, match="data_batch_1 has no class from 0 to 99 for each of its 3 images"):
        cifar.batch(batch(labels=labels), "data_batch_1", ("labels",))


# What fuzzing found: each of these ended in a traceback.


def test_parquet_of_other_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    store.write_table(path, {"a": ["xyzw"] * 4})
    whole = path.read_bytes()
    damaged = 0
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :])
        try:
            store.read_table(path)
        except UserError as error:
            assert "t.parquet can't be read as Parquet" in str(error)
            damaged += 1
    assert damaged > len(whole) // 4


def test_parquet_with_other_metadata_of_pandas_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for said in (b"{}", b'{"columns": [{}], "index_columns": [{}]}', b'{"columns": 1, "index_columns": [], "x": 1}'):
        table = pa.table({"a": [1.0, 2.0], "label": [0, 1], "client": [1, 2]}).replace_schema_metadata({"pandas": said})
        pq.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(UserError, match=r"t.parquet can't be read as Parquet \((Key|Type)Error"):
            own.table(tmp_path, path=str(tmp_path / "t.parquet"), label="label", client="client")


def test_a_type_of_numbers_that_numpy_lacks_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(UserError, match=r"m.safetensors can't be read as safetensors"):
        store.read_tensors(tmp_path / "m.safetensors")


@pytest.mark.parametrize("data", [{"u": {"x": "", "y": ""}}, "text", [], {"u": []}])
def test_leaf_of_another_form_is_refused(tmp_path: Path, data: Any) -> None:
    content = {"users": ["u"], "num_samples": [0], "user_data": data}
    (tmp_path / "a.json").write_text(json.dumps(content))
    if data == {"u": {"x": "", "y": ""}}:
        content = {"users": "ab", "num_samples": [1, 1], "user_data": "ab"}
        (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"a.json isn't in LEAF's format"):
        leaf._part(tmp_path, leaf._images)


@pytest.mark.parametrize("content", [b'"3","a\x89b","c"\n', b'"3","' + b"a" * 200_000 + b'","c"\n'])
def test_news_that_are_no_text_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"train.csv can't be read as CSV"):
        text._articles(tmp_path / "train.csv")


@pytest.mark.parametrize(
    "change", [{"files": []}, {"files": [{}]}, {"files": {"x": 1}}, {"files": {"x": {}}}, {"own": []}, {"inputs": "x"},
               {"files": {"../x": {"sha256": ""}}}, {"files": {"/etc/passwd": {"sha256": ""}}}],
)  # fmt: skip
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"1")
    manifest.write_manifest(tmp_path / "manifest.json", [file], {"study": "s"})
    assert manifest.verified(file, {"study": "s"})
    changed = store.read_json(tmp_path / "manifest.json") | change
    store.write_json(tmp_path / "manifest.json", changed)
    with pytest.raises(UserError, match=r"manifest.json isn't a manifest: each file needs"):
        manifest.verified(file, {"study": "s"})


def test_damaged_packing_inside_an_index_is_refused(tmp_path: Path) -> None:
    zip_of("federated_train.csv", "x-user-1k.zip", b"user_id,image_id,class\n" + b"1,2,3\n" * 99)(tmp_path)
    path = tmp_path / "x-user-1k.zip"
    whole = path.read_bytes()
    start = 30 + len("federated_train.csv")
    path.write_bytes(whole[:start] + b"\xff" * 9 + whole[start + 9 :])
    with zipfile.ZipFile(path) as zipped, pytest.raises(zlib.error):
        zipped.read("federated_train.csv")
    with pytest.raises(UserError, match=r"x-user-1k.zip can't be read"):
        list(index._table(path, "federated_train"))
