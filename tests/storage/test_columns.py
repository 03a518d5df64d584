"""Columns between numpy and Arrow: what Arrow's own functions give, without the pandas that those import."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clusterfl.storage.columns import to_arrow, to_numpy
from clusterfl.storage.store import read_table, write_table

COLUMNS = {
    "whole": np.arange(7) - 3,
    "bytes": np.arange(250, 257).astype(np.uint8),
    "real": np.array([0.0, -0.0, np.nan, np.inf, 1e-320]),
    "single": np.arange(5, dtype=np.float32),
    "every second": np.arange(10)[::2],
    "yes and no": np.arange(19) % 3 == 0,
    "none": np.zeros(0),
    "no text": np.array([], dtype=str),
    "texts": ["", "Zürich", "a\0b", "日本"],
    "fixed texts": np.array(["ab", "", "c"]),
    "objects": np.array(["ab", None], dtype=object),
    "numbers": [1, 2, 3],
    "seconds": np.array(["2026-01-02T03:04:05", "1969-12-31T23:59:59"], dtype="M8[s]"),
    "no second": np.array(["2026-01-02", "NaT"], dtype="M8[s]"),
    "days": np.array(["2026-01-02"], dtype="M8[D]"),
    "lists": np.arange(6.0).reshape(3, 2),
    "columns of lists": np.arange(6.0).reshape(2, 3).T,
}


def by_arrow(values):
    """What the library makes, lists of fixed length by hand."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])
    return pa.array(values)


@pytest.mark.parametrize("name", COLUMNS)
def test_arrows_own_array_and_back(name, tmp_path):
    values = COLUMNS[name]
    found, expected = to_arrow(values), by_arrow(values)
    found.validate(full=True)
    assert found.type == expected.type and found.null_count == expected.null_count
    for part, array in (("found", found), ("expected", expected)):  # the same bytes of a file, so NaN and -0, too
        pq.write_table(pa.table([array], names=["x"]), tmp_path / part)
    assert (tmp_path / "found").read_bytes() == (tmp_path / "expected").read_bytes()
    back = to_numpy(found)
    plain = np.asarray(values).shape if np.ndim(values) == 2 else None
    other = expected.flatten() if plain else expected
    by_library = other.to_numpy(zero_copy_only=False)
    np.testing.assert_array_equal(back, by_library.reshape(plain) if plain else by_library)
    assert back.dtype == by_library.dtype


def test_bytes_in_the_other_order_are_refused():
    with pytest.raises(pa.ArrowNotImplementedError, match="Byte-swapped"):
        to_arrow(np.arange(4, dtype=np.dtype(np.int32).newbyteorder()))


def test_part_of_an_array_is_that_part():
    assert to_numpy(pa.array([1, 2, 3, 4])[1:3]).tolist() == [2, 3]
    assert to_numpy(pa.array([True, False, True] * 7)[2:15]).tolist() == ([True, False, True] * 7)[2:15]
    assert to_numpy(pa.array([True, None])).tolist() == [True, None]
    assert to_numpy(pa.array([], pa.bool_())).dtype == bool
    assert to_numpy(pa.array([1.0, None])).tolist()[0] == 1
    assert to_numpy(by_arrow(COLUMNS["lists"])[1:]).tolist() == [[2, 3], [4, 5]]


def test_tables_need_no_pandas(tmp_path):
    """A fifth of the start of a stage that needs nothing else of it."""
    code = (
        "import sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from clusterfl.storage.store import read_table, write_table\n"
        f"path = Path({str(tmp_path / 't.parquet')!r})\n"
        "write_table(path, {'a': np.arange(3), 'b': np.ones((3, 2)), 'c': ['x', 'y', 'z'], 'd': np.ones(3, bool)})\n"
        "found = read_table(path)\nassert found['b'].shape == (3, 2), found\n"
        "print(*{'pandas', 'pyarrow.dataset'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert said == ""
    assert {key: values.tolist() for key, values in read_table(tmp_path / "t.parquet").items()}["c"] == ["x", "y", "z"]


def test_a_table_of_many_row_groups_is_one(tmp_path):
    write_table(tmp_path / "t.parquet", {"a": np.arange(10)})
    pq.write_table(pq.read_table(tmp_path / "t.parquet"), tmp_path / "t.parquet", row_group_size=3)
    assert read_table(tmp_path / "t.parquet")["a"].tolist() == list(range(10))
