"""Pickles of plain values and arrays, as CIFAR's publisher wrote them; a pickle may otherwise run any program.

An interpreter in Python, and none in C: it knows only the instructions that such pickles need, makes objects of the
two kinds below and no others, and takes no memory before the bytes for it are there.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError

AGAIN = "delete it, then download it again"
TYPES = ("u1", "uint8", "i4", "int32", "i8", "int64", "f4", "float32", "f8", "float64")
INSTRUCTIONS = (
    pickle.PROTO + pickle.FRAME + pickle.STOP + pickle.MARK + pickle.POP + pickle.POP_MARK + pickle.NONE
    + pickle.NEWTRUE + pickle.NEWFALSE + pickle.INT + pickle.BININT + pickle.BININT1 + pickle.BININT2 + pickle.LONG1
    + pickle.STRING + pickle.BINSTRING + pickle.SHORT_BINSTRING + pickle.BINBYTES + pickle.SHORT_BINBYTES
    + pickle.BINBYTES8 + pickle.UNICODE + pickle.BINUNICODE + pickle.SHORT_BINUNICODE + pickle.EMPTY_TUPLE
    + pickle.TUPLE + pickle.TUPLE1 + pickle.TUPLE2 + pickle.TUPLE3 + pickle.EMPTY_LIST + pickle.LIST + pickle.APPEND
    + pickle.APPENDS + pickle.EMPTY_DICT + pickle.DICT + pickle.SETITEM + pickle.SETITEMS + pickle.GET + pickle.BINGET
    + pickle.LONG_BINGET + pickle.PUT + pickle.BINPUT + pickle.LONG_BINPUT + pickle.MEMOIZE + pickle.GLOBAL
    + pickle.STACK_GLOBAL + pickle.REDUCE + pickle.BUILD
)  # fmt: skip


class _Type:
    """An array's type of numbers, which is one of `TYPES` in little-endian order."""

    def __init__(self, name: str, *_: Any):
        if not isinstance(name, str) or name.lstrip("<|") not in TYPES:
            raise ValueError(f"an array of {name!r}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", "|"):
            raise ValueError(f"an array in byte order {state[1]!r}")


class _Array:
    """An array whose numbers come later, or never."""

    value: NDArray[Any] | None = None

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self._fill(raw, kind, shape, "F" if fortran else "C")

    def _fill(self, raw: Any, kind: Any, shape: Any, order: Any) -> None:
        if not isinstance(kind, _Type) or not isinstance(shape, tuple) or order not in ("C", "F"):
            raise ValueError("an array without type, shape or order")
        data = raw.encode("latin1") if isinstance(raw, str) else bytes(memoryview(raw))
        self.value = np.frombuffer(data, kind.dtype).reshape(shape, order=order)


def _from_bytes(raw: Any, kind: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array._fill(raw, kind, shape, order)
    return array


def _to_bytes(text: str, encoding: str) -> bytes:
    """Undo how Python 3 writes byte strings for Python 2."""
    if encoding != "latin1":
        raise ValueError(f"a text in {encoding!r}")
    return text.encode("latin1")


class _Empty:
    """Stands for the class of arrays, which is only handed on."""


# What pickles of arrays refer to, and what is made of it here.
MEANT = {
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.numeric", "_frombuffer"): _from_bytes,
    ("numpy", "ndarray"): _Empty,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _to_bytes,
}


class _Arrays(pickle._Unpickler):
    """The interpreter."""

    stack: list[Any]
    metastack: list[list[Any]]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: bytes, source: str):
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.source = source

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # as it was called before numpy 2
        if (module, name) not in MEANT:
            raise UserError(
                f"{self.source} asks for {module}.{name}, which no image file needs: it isn't the publisher's; {AGAIN}"
            )
        return MEANT[module, name]

    def build(self) -> None:
        """Complete an array or its type, and nothing else: the instruction could set any object's attributes."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Type):
            raise ValueError(f"a state of {type(self.stack[-1]).__name__}")
        self.stack[-1].__setstate__(state)

    def byte_array(self) -> None:
        """Read bytes, for as many as there are: the instruction would take memory for as many as it states."""
        size = int.from_bytes(self.read(8), "little")
        self.stack.append(self.read(size))

    def set_items(self) -> None:
        """Put values under texts: the hash of tuples inside tuples can take for ever."""
        items = self.pop_mark()
        if not all(isinstance(key, str | bytes) for key in items[::2]):
            raise ValueError("a key that is no text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def set_item(self) -> None:
        """Put one value under a text."""
        value, key = self.stack.pop(), self.stack.pop()
        if not isinstance(key, str | bytes):
            raise ValueError("a key that is no text")
        self.stack[-1].update({key: value})

    def make_dict(self) -> None:
        """Make a dict of all since the mark."""
        items = self.pop_mark()
        self.stack.append({})
        self.metastack.append(self.stack)
        self.stack = items
        self.set_items()

    dispatch = {code: pickle._Unpickler.dispatch[code] for code in INSTRUCTIONS} | {  # type: ignore[assignment]
        pickle.BUILD[0]: build,
        pickle.BYTEARRAY8[0]: byte_array,
        pickle.SETITEMS[0]: set_items,
        pickle.SETITEM[0]: set_item,
        pickle.DICT[0]: make_dict,
    }


def unpickled(data: bytes, source: str) -> dict[str, Any]:
    """Read a pickle of a dict with texts as keys; arrays are made of its bytes, numbers and texts as they are.

    Raises
    ------
    UserError
        If the pickle is damaged, or refers to anything but arrays.
    """
    try:
        found = _Arrays(data, source).load()
    except UserError:
        raise
    except Exception as error:  # a damaged pickle is a damaged program: it ends in any way
        raise UserError(f"{source} can't be read ({type(error).__name__}: {error}); {AGAIN}") from error
    if not isinstance(found, dict):
        raise UserError(f"{source} holds {type(found).__name__} instead of values by name; {AGAIN}")
    return {
        key if isinstance(key, str) else key.decode("latin1"): value.value if isinstance(value, _Array) else value
        for key, value in found.items()
    }
