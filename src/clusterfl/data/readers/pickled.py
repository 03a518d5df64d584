"""Pickles of plain values and arrays, as CIFAR's publisher wrote them; in general a pickle may run any program.

The standard library's unpickler reads them, and two things keep it harmless. `_inspect` checks the instructions before
any is executed: plain arrays need only few kinds, and stated lengths must be true. Then `find_class` returns objects of
this file for the five names that arrays need, never numpy's own, which would trust the pickle's shapes, types and
offsets.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError

AGAIN = "delete it, then download it again"
TYPES = ("u1", "uint8", "i4", "int32", "i8", "int64", "f4", "float32", "f8", "float64")
MOST_TUPLES = 100  # an array has at most nine
LONGEST_SHARED = 1000  # characters of a text that a pickle may refer to again
INSTRUCTIONS = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG1",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE",
    "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST",
    "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
}  # fmt: skip
# Instructions whose results a pickle may refer to again, besides short texts. Tuples aren't among them: hashing deeply
# nested pairs, in which both parts are the same object, takes forever.
SHARED = ("EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT", "STACK_GLOBAL", "REDUCE")


def _inspect(data: bytes) -> None:
    """Raise ValueError for a pickle that could take much more memory or time than its length suggests."""
    places: dict[Any, bool] = {}  # whether the object stored there may be referred to
    tuples, shareable = 0, False
    for instruction, value, _ in pickletools.genops(data):
        name = instruction.name
        if name not in INSTRUCTIONS:
            raise ValueError(f"the instruction {name}, which arrays don't need")
        if "PUT" in name or name == "MEMOIZE":
            place = len(places) if value is None else value
            if place > len(places) + 1:  # the unpickler would allocate all places before it
                raise ValueError(f"place {place} after {len(places)}")
            places[place] = shareable
        if "GET" in name and not places.get(value):
            raise ValueError(f"place {value}, which holds nothing that may come twice")
        tuples += "TUPLE" in name
        if tuples > MOST_TUPLES:
            raise ValueError(f"more than {MOST_TUPLES} tuples")
        shareable = name in SHARED or (isinstance(value, str | bytes) and len(value) <= LONGEST_SHARED)


class _Type:
    """An array's dtype: one of `TYPES`, little-endian."""

    def __init__(self, name: str, *_: Any):
        if not isinstance(name, str) or name.lstrip("<|") not in TYPES:
            raise ValueError(f"an array of {str(name)[:40]!r}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", "|"):
            raise ValueError(f"an array in byte order {state[1]!r}")


class _Array:
    """An array whose numbers are given at once, as to numpy's `_frombuffer`, or later, as with `_reconstruct`."""

    value: NDArray[Any] | None = None

    def __init__(self, raw: Any, kind: Any, shape: Any, order: Any = "C"):
        if isinstance(kind, _Type):
            self._fill(raw, kind, shape, order)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self._fill(raw, kind, shape, "F" if fortran else "C")

    def _fill(self, raw: Any, kind: Any, shape: Any, order: Any) -> None:
        """Read the numbers from the given bytes; an array can't be larger."""
        if not isinstance(kind, _Type) or not isinstance(shape, tuple) or order not in ("C", "F"):
            raise ValueError("an array without type, shape or order")
        data = raw.encode("latin1") if isinstance(raw, str) else raw
        self.value = np.frombuffer(data, kind.dtype).reshape(shape, order=order)


def _to_bytes(text: str, encoding: str) -> bytes:
    """Undo Python 3's encoding of byte strings for Python 2."""
    if encoding != "latin1":
        raise ValueError(f"a text in {encoding!r}")
    return text.encode("latin1")


# What pickles of arrays refer to, and what is called instead. `__call__`, because the instruction BUILD could set
# attributes of a class or function. The class of arrays is only passed on.
MEANT = {
    ("numpy._core.multiarray", "_reconstruct"): _Array.__call__,
    ("numpy._core.numeric", "_frombuffer"): _Array.__call__,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Type.__call__,
    ("_codecs", "encode"): _to_bytes.__call__,  # type: ignore[operator]
}


class _Arrays(pickle.Unpickler):
    """Knows the names in `MEANT` and no others."""

    source: str

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # its name before numpy 2
        if (module, name) not in MEANT:
            raise UserError(
                f"{self.source} asks for {module}.{name}, which no image file needs: it isn't the publisher's; {AGAIN}"
            )
        return MEANT[module, name]


def unpickled(data: bytes, source: str) -> dict[str, Any]:
    """Read a pickle of a dict with texts as keys, whose values are arrays, numbers and texts.

    Raises
    ------
    UserError
        If the pickle is damaged, or refers to anything but arrays.
    """
    unpickler = _Arrays(io.BytesIO(data), encoding="latin1")
    unpickler.source = source
    try:
        _inspect(data)
        found = unpickler.load()
    except UserError:
        raise
    except Exception as error:  # a damaged pickle is a damaged program: it may raise anything
        raise UserError(f"{source} can't be read ({type(error).__name__}: {error}); {AGAIN}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str | bytes) for key in found):
        raise UserError(f"{source} holds {type(found).__name__} instead of values by name; {AGAIN}")
    return {
        key if isinstance(key, str) else key.decode("latin1"): value.value if isinstance(value, _Array) else value
        for key, value in found.items()
    }
